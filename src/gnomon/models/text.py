"""The heads for text."""

from typing import Unpack

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, GenerationMixin
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast, MaskedLMOutput
from transformers.modeling_utils import slice_logits_to_keep
from transformers.utils import TransformersKwargs
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.generic import can_return_tuple

from gnomon.models.backbone import GnomonModel, GnomonPreTrainedModel, initialization_rule
from gnomon.models.config import GnomonConfig
from gnomon.models.losses import token_loss
from gnomon.nn.projections import Linear


class GnomonForCausalLM(GnomonPreTrainedModel, GenerationMixin):
    """A language model that predicts the next token: `GnomonModel` and an output head.

        logits = W h,   loss = mean over targets of -log softmax(logits)[next token]

    Source: TF section 3.2. The head shares the embedding table when `tie_word_embeddings` is set.

    Args:
        config: of the model; `is_decoder` becomes True.

    Raises:
        ValueError: when the config says that the model is no decoder.
    """

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: GnomonConfig) -> None:
        if config.is_decoder is False:
            raise ValueError("a causal language model needs is_decoder: true; got false")
        if not config.is_encoder_decoder:  # the model refuses that one with its remedy
            config.is_decoder = True
        super().__init__(config)
        self.model = GnomonModel(config)
        std = initialization_rule(config)("embedding", "weight", config.vocab_size, config.hidden_size)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False, std=std)
        self.post_init()

    @can_return_tuple
    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        cache: Cache | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Unpack[TransformersKwargs],
    ) -> CausalLMOutputWithPast:
        """Predict the next token at every position.

        Args:
            input_ids: token ids, (batch, length); or give `inputs_embeds`.
            attention_mask: 1 for a token, 0 for padding, (batch, cached + length).
            position_ids: position of every token.
            inputs_embeds: embeddings in place of ids.
            cache: keys and values of earlier tokens.
            labels: the same ids as `input_ids` (they are shifted here), -100 where nothing is to be predicted.
            use_cache: return a cache.
            logits_to_keep: only the last so many positions (0: all), or these positions.
            kwargs: passed on; `num_items_in_batch` divides the summed loss instead of the count of targets here.

        Returns:
            Logits (batch, length, vocabulary), and the loss in nats a token when labels are given.
        """
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            cache=cache,
            use_cache=use_cache,
            **kwargs,
        )
        logits = self.lm_head(slice_logits_to_keep(outputs.last_hidden_state, logits_to_keep))
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            cache=outputs.cache,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class GnomonForMaskedLM(GnomonPreTrainedModel):
    """A language model that fills in hidden tokens from both sides: `GnomonModel` as encoder and an output head.

        logits = W h,   loss = mean over hidden tokens of -log softmax(logits)[token]

    Source: Devlin et al. 2019, section 3.1, with a plain linear head as the decoder's.

    Args:
        config: of the model; `is_decoder` becomes False.

    Raises:
        ValueError: when the config says that the model is a decoder.
    """

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: GnomonConfig) -> None:
        if config.is_decoder:
            raise ValueError("a masked language model looks both ways and needs is_decoder: false; got true")
        config.is_decoder = False
        super().__init__(config)
        self.model = GnomonModel(config)
        std = initialization_rule(config)("embedding", "weight", config.vocab_size, config.hidden_size)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False, std=std)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MaskedLMOutput:
        """Predict the token at every position.

        Args:
            input_ids: token ids with some hidden, (batch, length); or give `inputs_embeds`.
            attention_mask: 1 for a token, 0 for padding, (batch, length).
            position_ids: position of every token.
            inputs_embeds: embeddings in place of ids.
            labels: the hidden tokens' ids at their own places, -100 everywhere else.
            kwargs: passed on; `num_items_in_batch` divides the summed loss instead of the count of targets here.

        Returns:
            Logits (batch, length, vocabulary), and the loss in nats a hidden token when labels are given.
        """
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        logits = self.lm_head(outputs.last_hidden_state)
        loss = None
        if labels is not None:
            loss = token_loss(logits, labels, num_items=kwargs.get("num_items_in_batch"))
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


AutoModelForMaskedLM.register(GnomonConfig, GnomonForMaskedLM, exist_ok=True)
AutoModelForCausalLM.register(GnomonConfig, GnomonForCausalLM, exist_ok=True)

__all__ = ["GnomonForCausalLM", "GnomonForMaskedLM"]
