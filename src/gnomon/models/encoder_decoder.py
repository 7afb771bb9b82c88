"""Encoder and decoder on the same backbone, and the head that writes one text from another."""

from typing import Any, Unpack

import torch
from torch import Tensor, nn
from transformers import AutoModelForSeq2SeqLM, GenerationMixin
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput, Seq2SeqModelOutput
from transformers.modeling_utils import slice_logits_to_keep
from transformers.utils import TransformersKwargs
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.generic import can_return_tuple

from gnomon.models.backbone import GnomonModel, GnomonPreTrainedModel, initialization_rule
from gnomon.models.config import GnomonConfig
from gnomon.models.losses import token_loss
from gnomon.nn.projections import Linear


class TwoTables(GnomonPreTrainedModel):
    """What an encoder-decoder and its heads share: one table for the source and one for the target, tied or not."""

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Module:
        """Resize both tables, as transformers' own method does with the source's.

        Args:
            new_num_tokens: rows of each table; as they are if None.
            pad_to_multiple_of: round the rows up to a multiple of it.
            mean_resizing: draw new rows around the old ones.

        Returns:
            The source's table.
        """
        table = super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        decoder = self.base_model.decoder
        if decoder.embed_tokens is not table:
            rows = table.num_embeddings
            decoder.embed_tokens = self._get_resized_embeddings(decoder.embed_tokens, rows, mean_resizing=mean_resizing)
        return table


class GnomonEncoderDecoderModel(TwoTables):
    """An encoder and a decoder that looks at its output, without a head.

        m = Encoder(source),   output = Decoder(target, m)

    Source: MG section 2. The decoder has the encoder's embedding table when `tie_word_embeddings` is set.

    Args:
        config: with `encoder_layers` and `decoder_layers`.

    Raises:
        ValueError: when the config is of a single stack.
    """

    _tied_weights_keys = {"decoder.embed_tokens.weight": "encoder.embed_tokens.weight"}

    def __init__(self, config: GnomonConfig) -> None:
        if not config.is_encoder_decoder:
            raise ValueError(
                "an encoder-decoder needs encoder_layers and decoder_layers; "
                f"got a single stack of {config.num_hidden_layers} layers"
            )
        super().__init__(config)
        self.encoder = GnomonModel(config, side="encoder")
        self.decoder = GnomonModel(config, side="decoder")
        if self.encoder.embed_tokens is None:
            self._tied_weights_keys = {}
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The source's table, or the target's where the source is no text."""
        table: nn.Module = self.decoder.embed_tokens if self.encoder.embed_tokens is None else self.encoder.embed_tokens
        return table

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the source's table, and the target's with it where they are tied or the source has none."""
        has_source = self.encoder.embed_tokens is not None
        if has_source:
            self.encoder.embed_tokens = value
        if self.config.tie_word_embeddings or not has_source:
            self.decoder.embed_tokens = value

    @can_return_tuple
    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        decoder_position_ids: torch.LongTensor | None = None,
        encoder_outputs: Any = None,
        cache: Cache | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        decoder_inputs_embeds: torch.FloatTensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqModelOutput:
        """Read the source, then run the decoder.

        Args:
            input_ids: the source, (batch, source); or `inputs_embeds`, or `encoder_outputs`.
            attention_mask: 1 for a token of the source, 0 for padding: the decoder heeds it too.
            decoder_input_ids: the target, (batch, length); or `decoder_inputs_embeds`.
            decoder_attention_mask: 1 for a token of the target, 0 for padding, (batch, cached + length).
            decoder_position_ids: position of every token of the target.
            encoder_outputs: of an earlier call, in place of the source.
            cache: keys and values of earlier target tokens and of the source.
            inputs_embeds: embeddings of the source.
            decoder_inputs_embeds: embeddings of the target.
            use_cache: return a cache.
            kwargs: passed to the attention function.

        Returns:
            The decoder's last hidden state, the cache, and what the encoder gave.

        Raises:
            ValueError: for a source without a token, or a missing target.
        """
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            raise ValueError("an encoder-decoder needs decoder_input_ids, or labels to make them from; got neither")
        if encoder_outputs is None:
            check_source(input_ids if inputs_embeds is None else inputs_embeds, attention_mask)
            encoder_outputs = self.encoder(
                input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs
            )
        elif not isinstance(encoder_outputs, BaseModelOutput):
            last, *more = encoder_outputs if isinstance(encoder_outputs, tuple | list) else encoder_outputs.to_tuple()
            encoder_outputs = BaseModelOutput(last, *more[:2])
        outputs = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            position_ids=decoder_position_ids,
            inputs_embeds=decoder_inputs_embeds,
            encoder_hidden_states=encoder_outputs.last_hidden_state,
            encoder_attention_mask=attention_mask,
            cache=cache,
            use_cache=use_cache,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=outputs.last_hidden_state,
            cache=outputs.cache,
            decoder_hidden_states=outputs.hidden_states,
            decoder_attentions=outputs.attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
        )


def check_source(source: Tensor | None, attention_mask: Tensor | None) -> None:
    """Refuse a source in which there is nothing to look at (on the CPU, where looking is free).

    Args:
        source: ids or embeddings.
        attention_mask: 1 for a token, 0 for padding.

    Raises:
        ValueError: when it is missing, or a row has no token.
    """
    if source is None:
        raise ValueError("an encoder-decoder needs a source: input_ids, inputs_embeds or encoder_outputs; got none")
    if source.shape[1] == 0:
        raise ValueError("a source needs at least one token; got length 0: end every source with eos_token_id")
    if attention_mask is None or attention_mask.device.type != "cpu" or torch.compiler.is_compiling():
        return
    if attention_mask.dim() == 2 and not bool(attention_mask.any(dim=1).all()):
        row = int((~attention_mask.any(dim=1)).nonzero()[0])
        raise ValueError(
            f"a source needs at least one token; row {row} has none (its attention_mask is all 0): leave the row "
            "out, or end every source with eos_token_id"
        )


def shift_right(labels: Tensor, start: int | None, padding: int | None) -> Tensor:
    """The decoder's inputs for given targets: the targets one place later, after the start token.

    Args:
        labels: (batch, length), -100 where nothing is to be predicted.
        start: `decoder_start_token_id`.
        padding: what stands for -100.

    Returns:
        Ids of the same shape.

    Raises:
        ValueError: when the config has no start token.
    """
    if start is None:
        raise ValueError("labels need decoder_start_token_id in the config, to begin the decoder's text; it is unset")
    shifted = torch.cat((torch.full_like(labels[:, :1], start), labels[:, :-1]), dim=1)
    return shifted.masked_fill(shifted == -100, start if padding is None else padding)


class GnomonForSeq2SeqLM(TwoTables, GenerationMixin):
    """An encoder-decoder that writes a text from another: translation, summaries.

        logits = W h,   loss = mean over targets of -log softmax(logits)[target]

    Source: MG section 2. Encoder, decoder and head share one table when `tie_word_embeddings` is set.

    Args:
        config: with `encoder_layers` and `decoder_layers`.
    """

    _tied_weights_keys = {
        "model.decoder.embed_tokens.weight": "model.encoder.embed_tokens.weight",
        "lm_head.weight": "model.encoder.embed_tokens.weight",
    }

    def __init__(self, config: GnomonConfig) -> None:
        super().__init__(config)
        self.model = GnomonEncoderDecoderModel(config)
        std = initialization_rule(config, is_decoder=True)("embedding", "weight", config.vocab_size, config.hidden_size)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False, std=std)
        self.post_init()

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """The decoder's inputs for given targets (transformers' data collators ask for them)."""
        return shift_right(labels, self.config.decoder_start_token_id, self.config.pad_token_id)

    @can_return_tuple
    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        cache: Cache | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        decoder_inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqLMOutput:
        """Predict the target's tokens.

        Args:
            input_ids: the source, (batch, source).
            attention_mask: 1 for a token of the source, 0 for padding.
            decoder_input_ids: the target so far; from `labels` if not given.
            decoder_attention_mask: 1 for a token of the target, 0 for padding.
            encoder_outputs: of an earlier call, in place of the source.
            cache: keys and values of earlier target tokens and of the source.
            inputs_embeds: embeddings of the source, in place of ids.
            decoder_inputs_embeds: embeddings of the target, in place of ids.
            labels: the targets, NOT shifted against the decoder's inputs, -100 where nothing is to be predicted.
            use_cache: return a cache.
            logits_to_keep: only the last so many positions (0: all), or these positions.
            kwargs: passed on; `num_items_in_batch` divides the summed loss, `label_smoothing` spreads a share of
                each target over all ids.

        Returns:
            Logits (batch, length, vocabulary), and the loss in nats a token when labels are given.
        """
        if labels is not None and decoder_input_ids is None and decoder_inputs_embeds is None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        smoothing = kwargs.pop("label_smoothing", 0.0)
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            cache=cache,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        logits = self.lm_head(slice_logits_to_keep(outputs.last_hidden_state, logits_to_keep))
        loss = None
        if labels is not None:
            loss = token_loss(logits, labels, smoothing=smoothing, num_items=kwargs.get("num_items_in_batch"))
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            cache=outputs.cache,
            decoder_hidden_states=outputs.decoder_hidden_states,
            decoder_attentions=outputs.decoder_attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
            encoder_attentions=outputs.encoder_attentions,
        )


AutoModelForSeq2SeqLM.register(GnomonConfig, GnomonForSeq2SeqLM, exist_ok=True)

__all__ = ["GnomonEncoderDecoderModel", "GnomonForSeq2SeqLM", "check_source", "shift_right"]
