"""Every model class of the library, and how the contract tests make it, feed it and read it.

A new head joins with one entry in `HEADS`; a test refuses a public model class that has none.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gnomon import (
    GnomonConfig,
    GnomonEncoderDecoderModel,
    GnomonForAudioClassification,
    GnomonForCausalLM,
    GnomonForCTC,
    GnomonForImageClassification,
    GnomonForImageTextContrastive,
    GnomonForImageTextMaskedModeling,
    GnomonForMaskedImageModeling,
    GnomonForMaskedLM,
    GnomonForSeq2SeqLM,
    GnomonForSequenceClassification,
    GnomonForSpeechSeq2Seq,
    GnomonForTokenClassification,
    GnomonModel,
)
from samples import PLACED, POSITIONED, VARIANTS, build, random_ids

FEW = ("l2_norm_gelu", "grouped queries", "linear", "gated")
TWO = ("l2_norm_gelu", "sub, linear")
LENGTH = 12


def token_ids(config: GnomonConfig, rows: int, length: int, seed: int = 1) -> dict[str, Tensor]:
    """A batch of random tokens."""
    return {"input_ids": random_ids(rows, length, seed=seed, vocab_size=config.vocab_size)}


def next_tokens(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The targets of a causal language model: its own inputs."""
    return {"labels": batch["input_ids"]}


def own_tokens(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The targets of a masked language model, as if every token had been hidden."""
    return {"labels": batch["input_ids"]}


def five_labels(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """A label for each token."""
    return {"labels": batch["input_ids"] % 5}


@dataclass(frozen=True)
class Head:
    """One model class.

    Attributes:
        cls: the class.
        output: the output that has one row a position.
        is_causal: whether a position sees only earlier ones (and there is a cache).
        fields: what its configuration needs besides the variant's.
        inputs: (config, rows, length, seed) -> keyword arguments, each with the rows first and the positions second.
        targets: inputs -> the keyword arguments that make it return a loss, or None if it has none.
        variants: which of `samples.VARIANTS` it is tried in.
    """

    cls: type
    output: str
    is_causal: bool
    fields: dict[str, Any] = field(default_factory=dict)
    inputs: Callable[..., dict[str, Tensor]] = token_ids
    targets: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None
    variants: tuple[str, ...] = FEW


HEADS = {
    "language model": Head(GnomonForCausalLM, "logits", True, targets=next_tokens, variants=tuple(VARIANTS)),
    "decoder": Head(GnomonModel, "last_hidden_state", True),
    "encoder": Head(
        GnomonModel,
        "last_hidden_state",
        False,
        fields={"is_decoder": False},
        variants=(*FEW, *PLACED, *POSITIONED),
    ),
    "masked language model": Head(
        GnomonForMaskedLM, "logits", False, fields={"is_decoder": False}, targets=own_tokens, variants=TWO
    ),
    "token classifier": Head(
        GnomonForTokenClassification,
        "logits",
        False,
        fields={"is_decoder": False, "num_labels": 5},
        targets=five_labels,
        variants=TWO,
    ),
}

ELSEWHERE = {
    GnomonEncoderDecoderModel: "test_encoder_decoder.py",
    GnomonForSeq2SeqLM: "test_encoder_decoder.py",
    GnomonForSequenceClassification: "test_classification.py",
    GnomonForImageClassification: "test_vision.py",
    GnomonForImageTextContrastive: "test_multimodal.py",
    GnomonForImageTextMaskedModeling: "test_multiway.py",
    GnomonForMaskedImageModeling: "test_vision.py",
    GnomonForCTC: "test_speech_models.py",
    GnomonForAudioClassification: "test_speech_models.py",
    GnomonForSpeechSeq2Seq: "test_speech_models.py",
}
"""Model classes whose outputs are not one row an input position, and the module that has their contract."""


@dataclass(frozen=True)
class Case:
    """A head in a variant."""

    name: str
    variant: str

    @property
    def head(self) -> Head:
        return HEADS[self.name]

    @property
    def fields(self) -> dict[str, Any]:
        return {**VARIANTS[self.variant], **self.head.fields}

    @property
    def has_positions(self) -> bool:
        return self.fields.get("positions") != "none"

    @property
    def has_score_scale(self) -> bool:
        has_tokens = "pattention" in (self.fields.get("projection", "pattention"), self.fields.get("feed_forward"))
        return has_tokens and self.fields.get("score") != "gelu"

    def build(self, **options: Any):
        """The model, by default with its weights times 4."""
        return build(self.head.cls, self.fields, **options)

    def batch(self, rows: int = 3, length: int = LENGTH, seed: int = 1) -> dict[str, Tensor]:
        """Inputs without targets."""
        return self.head.inputs(GnomonConfig(**self.fields), rows, length, seed)

    def outputs(self, model, batch: dict[str, Tensor], **more: Any) -> Tensor:
        """What the head gives for each position."""
        return getattr(model(**batch, **more), self.head.output)

    def loss(self, model, batch: dict[str, Tensor], **more: Any) -> Tensor:
        """The head's loss; without one, a fixed function of its outputs."""
        if self.head.targets is not None:
            return model(**batch, **self.head.targets(batch), **more).loss
        outputs = self.outputs(model, batch, **more)
        return (outputs * torch.linspace(-1, 1, outputs.shape[-1])).square().mean()

    def __str__(self) -> str:
        return f"{self.name}, {self.variant}"


CASES = [Case(name, variant) for name, head in HEADS.items() for variant in head.variants]
CAUSAL = [case for case in CASES if case.head.is_causal]


def positions(batch: dict[str, Tensor], part: slice | Tensor | list[int]) -> dict[str, Tensor]:
    """Some positions of every row."""
    return {name: tensor[:, part] for name, tensor in batch.items()}


def rows(batch: dict[str, Tensor], part: slice | Tensor | list[int]) -> dict[str, Tensor]:
    """Some rows."""
    return {name: tensor[part] for name, tensor in batch.items()}


def changed(batch: dict[str, Tensor], row: int | slice, position: int | slice) -> dict[str, Tensor]:
    """The batch with other, equally valid entries at one place."""
    result = {}
    for name, tensor in batch.items():
        result[name] = tensor.clone()
        result[name][row, position] = (
            tensor[row, position].roll(1, -1)
            if tensor.dim() > 2
            else (tensor[row, position] + 1) % tensor.max().clamp(min=2)
        )
    return result


def chunks(length: int, sizes: tuple[int, ...]) -> list[slice]:
    """Consecutive pieces of the given sizes."""
    ends = list(itertools.accumulate(sizes))
    assert ends[-1] == length
    return [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def gap(found: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest number expected (or 1)."""
    return ((found - expected).abs().max() / expected.abs().max().clamp(min=1.0)).item()


SAME = 1e-5
DIFFERENT = 1e-3
"""What `gap` has to be below or above."""
