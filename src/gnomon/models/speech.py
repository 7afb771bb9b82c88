"""The heads for sound: its transcript by CTC or by a decoder, and its class."""

from dataclasses import dataclass
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForAudioClassification,
    AutoModelForCTC,
    AutoModelForSpeechSeq2Seq,
    GenerationMixin,
)
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutput, Seq2SeqLMOutput, SequenceClassifierOutput
from transformers.modeling_utils import slice_logits_to_keep
from transformers.models.auto.modeling_auto import MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES
from transformers.utils import TransformersKwargs
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.generic import can_return_tuple

from gnomon.models.backbone import GnomonModel, GnomonPreTrainedModel, initialization_rule
from gnomon.models.classification import check_labels, classification_loss, pool
from gnomon.models.config import GnomonConfig
from gnomon.models.ctc import ctc_loss
from gnomon.models.encoder_decoder import GnomonEncoderDecoderModel, TwoTables, shift_right
from gnomon.models.losses import token_loss
from gnomon.nn.projections import Linear


def check_sound(config: GnomonConfig, *, is_pair: bool, needs_vocabulary: bool) -> GnomonConfig:
    """Refuse a configuration that is not the one of a head for sound.

    Args:
        config: of the model.
        is_pair: whether the head has a decoder.
        needs_vocabulary: whether it writes text.

    Returns:
        The same config.

    Raises:
        ValueError: with what is missing and the remedy.
    """
    if config.num_mel_bins is None:
        raise ValueError("a model of sound needs num_mel_bins in its config; got none: set it, 80 as a rule")
    if config.is_encoder_decoder != is_pair:
        wanted = "encoder_layers and decoder_layers" if is_pair else "num_hidden_layers alone"
        raise ValueError(
            f"this head needs {wanted}; got encoder_layers {config.encoder_layers} and decoder_layers "
            f"{config.decoder_layers}: GnomonForSpeechSeq2Seq has a decoder, the other heads for sound have none"
        )
    if needs_vocabulary and config.vocab_size is None:
        raise ValueError("a head that writes text needs vocab_size in its config; got none: set it, the tokenizer's")
    return config


class Listener(GnomonPreTrainedModel):
    """What heads of one stack for sound share: the layer that transformers takes for their embeddings.

    It is hooked where everything before an adapter is frozen and activations are recomputed.
    """

    main_input_name = "input_features"
    input_modalities = ("audio",)

    def get_input_embeddings(self) -> nn.Module:
        """The projection of the filterbanks."""
        layer: nn.Module = self.model.embed_features.projection
        return layer

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Put another layer in its place."""
        self.model.embed_features.projection = value


SILENT = -1e4
"""The logit of every token but the blank where there is no sound; softmax makes exactly 0 of it, in float16 too."""


@dataclass
class GnomonCTCOutput(CausalLMOutput):
    """What `GnomonForCTC` returns.

    Args:
        skipped: how many rows of the batch were too short for their labels, and gave no loss.
    """

    skipped: torch.LongTensor | None = None


class GnomonForCTC(Listener):
    """The transcript of sound, one token or a blank for every position.

        logits = W dropout(h),   loss = -log of the sum over alignments of prod_t softmax(logits_t)

    Source: Graves et al. 2006. The blank is `pad_token_id`, or the last id where that is unset; positions of padding
    say blank and nothing else, so that whoever takes the likeliest tokens reads nothing there.

    Args:
        config: of the model, with `num_mel_bins` and `vocab_size`.

    Raises:
        ValueError: for a config without these, or of an encoder-decoder.
    """

    def __init__(self, config: GnomonConfig) -> None:
        super().__init__(check_sound(config, is_pair=False, needs_vocabulary=True))
        self.model = GnomonModel(config)
        self.dropout = nn.Dropout(config.hidden_dropout)
        std = initialization_rule(config)("embedding", "weight", config.vocab_size, config.hidden_size)
        self.ctc_head = Linear(config.hidden_size, config.vocab_size, bias=True, std=std)
        self.post_init()

    @property
    def blank(self) -> int:
        """The id that stands for no token."""
        pad = self.config.pad_token_id
        return int(self.config.vocab_size - 1 if pad is None else pad)

    @can_return_tuple
    def forward(
        self,
        input_features: torch.FloatTensor | None = None,
        attention_mask: Tensor | None = None,
        labels: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> GnomonCTCOutput:
        """Transcribe every row.

        Args:
            input_features: filterbanks (batch, frames, mel bins).
            attention_mask: 1 for a frame, 0 for padding, (batch, frames).
            labels: token ids (batch, length), then -100 or blanks.
            kwargs: passed on; `num_items_in_batch` divides the summed loss instead of the count of labels here.

        Returns:
            Logits (batch, positions, vocabulary), and with labels the loss in nats a label, and the rows skipped.

        Raises:
            ValueError: without features, or for features or labels that do not fit.
        """
        num_items = kwargs.pop("num_items_in_batch", None)
        embeds, mask = self.model.embed_features(check_features(input_features), attention_mask)
        outputs = self.model(inputs_embeds=embeds, attention_mask=mask, **{"use_cache": False, **kwargs})
        logits = self.ctc_head(self.dropout(outputs.last_hidden_state))
        if mask is not None:
            silence = torch.full_like(logits[0, 0], SILENT)
            silence[self.blank] = 0.0
            logits = torch.where(mask.bool().unsqueeze(-1), logits, silence)
        loss, skipped = None, None
        if labels is not None:
            loss, skipped = ctc_loss(logits, labels, mask, blank=self.blank, num_items=num_items)
        return GnomonCTCOutput(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            skipped=skipped,
        )


class GnomonForAudioClassification(Listener):
    """The class of sound.

        logits = W dropout(pool(h))

    Args:
        config: of the model, with `num_mel_bins`, `num_labels` and `classifier_pooling` (the mean if unset).

    Raises:
        ValueError: for a config without these, or of an encoder-decoder.
    """

    def __init__(self, config: GnomonConfig) -> None:
        super().__init__(check_sound(config, is_pair=False, needs_vocabulary=False))
        self.num_labels = check_labels(config.num_labels)
        self.model = GnomonModel(config)
        self.dropout = nn.Dropout(config.hidden_dropout)
        std = initialization_rule(config)("embedding", "weight", self.num_labels, config.hidden_size)
        self.classifier = Linear(config.hidden_size, self.num_labels, bias=True, std=std)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_features: torch.FloatTensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> SequenceClassifierOutput:
        """Classify every row.

        Args:
            input_features: filterbanks (batch, frames, mel bins).
            attention_mask: 1 for a frame, 0 for padding, (batch, frames).
            labels: class numbers (batch,), -100 for none; or numbers as `problem_type` says.
            kwargs: passed on; `label_smoothing` spreads a share of each target over all labels, `num_items_in_batch`
                divides the summed loss instead of the count of targets here.

        Returns:
            Logits (batch, labels), and the loss in nats a row when labels are given.

        Raises:
            ValueError: without features, or for features that do not fit.
        """
        smoothing, num_items = kwargs.pop("label_smoothing", 0.0), kwargs.pop("num_items_in_batch", None)
        embeds, mask = self.model.embed_features(check_features(input_features), attention_mask)
        outputs = self.model(inputs_embeds=embeds, attention_mask=mask, **{"use_cache": False, **kwargs})
        pooled = pool(outputs.last_hidden_state, mask, self.config.classifier_pooling or "mean")
        logits = self.classifier(self.dropout(pooled))
        loss = None
        if labels is not None:
            kind = self.config.problem_type
            loss = classification_loss(logits, labels, kind, smoothing=smoothing, num_items=num_items)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class GnomonForSpeechSeq2Seq(TwoTables, GenerationMixin):
    """An encoder of sound and a decoder that writes its transcript.

        logits = W h,   loss = mean over targets of -log softmax(logits)[target]

    Source: MG section 2 for the pair; the head shares the decoder's table when `tie_word_embeddings` is set.

    Args:
        config: with `num_mel_bins`, `encoder_layers`, `decoder_layers` and `vocab_size`.

    Raises:
        ValueError: for a config without these.
    """

    main_input_name = "input_features"
    input_modalities = ("audio",)
    _tied_weights_keys = {"lm_head.weight": "model.decoder.embed_tokens.weight"}

    def __init__(self, config: GnomonConfig) -> None:
        super().__init__(check_sound(config, is_pair=True, needs_vocabulary=True))
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
        input_features: torch.FloatTensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        cache: Cache | None = None,
        decoder_inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqLMOutput:
        """Predict the transcript's tokens.

        Args:
            input_features: filterbanks (batch, frames, mel bins); or `encoder_outputs`.
            attention_mask: 1 for a frame, 0 for padding, (batch, frames).
            decoder_input_ids: the transcript so far; from `labels` if not given.
            decoder_attention_mask: 1 for a token of the transcript, 0 for padding.
            encoder_outputs: of an earlier call, in place of the filterbanks.
            cache: keys and values of earlier tokens and of the sound.
            decoder_inputs_embeds: embeddings of the transcript, in place of ids.
            labels: the targets, NOT shifted against the decoder's inputs, -100 where nothing is to be predicted.
            use_cache: return a cache.
            logits_to_keep: only the last so many positions (0: all), or these positions.
            kwargs: passed on; `num_items_in_batch` divides the summed loss, `label_smoothing` spreads a share of
                each target over all ids.

        Returns:
            Logits (batch, length, vocabulary), and the loss in nats a token when labels are given.

        Raises:
            ValueError: without features, for features that do not fit, or a row without a frame.
        """
        if labels is not None and decoder_input_ids is None and decoder_inputs_embeds is None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        smoothing, embed = kwargs.pop("label_smoothing", 0.0), self.model.encoder.embed_features
        embeds, mask = None, embed.shorten(attention_mask)
        if encoder_outputs is None:
            embeds, mask = embed(check_features(input_features), attention_mask)
        outputs = self.model(
            inputs_embeds=embeds,
            attention_mask=mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            cache=cache,
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


def check_features(input_features: Tensor | None) -> Tensor:
    """Refuse a call without sound.

    Raises:
        ValueError: there are no features.
    """
    if input_features is None:
        raise ValueError("input_features are missing; give filterbanks (batch, frames, mel bins)")
    return input_features


AutoModelForCTC.register(GnomonConfig, GnomonForCTC, exist_ok=True)
AutoModelForAudioClassification.register(GnomonConfig, GnomonForAudioClassification, exist_ok=True)
AutoModelForSpeechSeq2Seq.register(GnomonConfig, GnomonForSpeechSeq2Seq, exist_ok=True)
# The pipeline for speech tells a model with a decoder from one with CTC by this table of names alone.
MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES[GnomonConfig.model_type] = GnomonForSpeechSeq2Seq.__name__

__all__ = ["GnomonCTCOutput", "GnomonForAudioClassification", "GnomonForCTC", "GnomonForSpeechSeq2Seq"]
