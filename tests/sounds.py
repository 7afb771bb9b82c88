"""Tiny models of sound and batches for them, which several test modules share."""

from typing import Any

import torch
from torch import Tensor

from gnomon import GnomonForAudioClassification, GnomonForCTC, GnomonForSpeechSeq2Seq
from samples import VARIANTS, build

FRAMES, BINS = 37, 8
SOUND = {"num_mel_bins": BINS, "num_conv_pos_embeddings": 4, "vocab_size": 20}
PAIR = {
    "num_hidden_layers": None,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
CLASSES = {"vocab_size": None, "num_labels": 5}
FIELDS: dict[type, dict[str, Any]] = {
    GnomonForCTC: SOUND,
    GnomonForAudioClassification: SOUND | CLASSES,
    GnomonForSpeechSeq2Seq: SOUND | PAIR,
}
"""What every head for sound needs besides a variant's fields."""


def listener(cls: type, variant: str = "sub, linear", **changes: Any):
    """A model of sound."""
    return build(cls, {**VARIANTS[variant], **FIELDS[cls], **changes})


def sound(rows: int = 3, frames: int = FRAMES, seed: int = 1) -> Tensor:
    """Filterbanks."""
    return torch.randn(rows, frames, BINS, generator=torch.Generator().manual_seed(seed))


def labels_for(cls: type) -> Tensor:
    """Targets of three rows, padded where they are transcripts."""
    if cls is GnomonForAudioClassification:
        return torch.tensor([0, 3, 4])
    return torch.tensor([[5, 6, 7, 5], [8, 8, 9, -100], [4, -100, -100, -100]])


def call(cls: type, model, features: Tensor, mask: Tensor | None = None):
    """The logits for some sound."""
    more = {"decoder_input_ids": torch.tensor([[1, 5, 6]] * len(features))} if cls is GnomonForSpeechSeq2Seq else {}
    return model(input_features=features, attention_mask=mask, **more).logits
