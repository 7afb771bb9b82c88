"""What a task is: how data become batches, which loss is learned from them, and which score says how well."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from gnomon.models.losses import token_loss
from gnomon.training.data_options import DataOptions
from gnomon.training.options import Recipe

Batch = dict[str, Tensor]
Collate = Callable[[list[Any]], Batch]


class Score(Protocol):
    """What an evaluation has found: a loss, and the numbers that the task names."""

    loss: float

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""


class Splits(Protocol):
    """Data before they are encoded, split into two sides."""

    train: Any
    validation: Any


def no_labels(rows: Any) -> list[str]:
    """A task without classes."""
    return []


def leave(model: PreTrainedModel, recipe: Recipe) -> None:
    """Leave the model as it is."""


def no_baselines(train: Any, validation: Any) -> dict[str, dict[str, float]]:
    """Nothing to compare with."""
    return {}


def both_sides(splits: Splits) -> Any:
    """The rows of both sides; a single document that is held out by its last part is whole again."""
    if not isinstance(splits.train, Mapping):
        return [*splits.train, *splits.validation]
    documents = dict(splits.train)
    for name, text in splits.validation.items():
        documents[name] = documents.get(name, "") + text
    return documents


def input_tokens(batch: Mapping[str, Tensor]) -> int:
    """How many tokens a batch holds, padding not counted."""
    return int(batch["attention_mask"].sum()) if "attention_mask" in batch else batch["input_ids"].numel()


def row_length(dataset: Any) -> int:
    """Tokens of a window."""
    return int(dataset.sequence_length)


def nothing_settled(config: Any) -> dict[str, Any]:
    """Data of any kind."""
    return {}


def every_row(dataset: Any, count: int) -> Any:
    """Some rows of a data set, evenly spread."""
    return EvenRows(dataset, count)


def aligned_loss(model: Any, batch: Mapping[str, Tensor], num_targets: Tensor | int, label_smoothing: float) -> Tensor:
    r"""Cross-entropy where the logits stand beside their labels, over all the targets of a step.

        loss = \sum_t [ -(1 - e) log P(y_t) - e/V \sum_v log P(v) ] / targets of the STEP

    so that micro-batches with different numbers of targets weigh by their targets, and accumulating them gives the
    gradient of one large batch. Source of the smoothing: Szegedy et al. 2016 (arXiv 1512.00567), section 7.

    Args:
        model: Gives `.logits` for a batch without labels.
        batch: With `labels`, -100 where there is no target.
        num_targets: Of all the micro-batches of the step.
        label_smoothing: e.
    """
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    return token_loss(model(**inputs).logits, batch["labels"], smoothing=label_smoothing, num_items=num_targets)


@dataclass(frozen=True)
class Task:
    """A kind of training, as a row of slots; what a slot's default does is told by its name.

    Attributes:
        measures: The numbers of a score, beside its loss, that go into metrics and ledger.
        load: Reads the data that a recipe names and splits them.
        build_processor: What makes numbers of the training side's rows, with `save_pretrained`: a tokenizer, say.
        encode: (rows of one side, processor, data options, labels, training) -> a data set of rows of tensors.
        collate: (processor, model) -> what makes a batch of rows.
        evaluate: (model, data set, processor, batch size) -> the score.
        labels: The classes that the training side's rows name.
        loss: (model, batch, targets of the step, label smoothing) -> the loss.
        finish_model: Settles what the recipe says of a new model beside its configuration.
        baselines: (training data set, validation data set), both as for an evaluation -> what a score has to beat.
        count: How many tokens a batch holds.
        unit: What is counted so, in the plural.
        classes: How many answers a guess has, by the model's configuration.
        part: Some rows of a data set.
        length: Tokens of one row of a data set, for its costs.
        load_processor: (checkpoint's folder, its model) -> its processor, where that is more than a tokenizer.
        join: The rows of both sides as one.
        settled: By the model's configuration, the keys of `data` that a trained model has settled.
        makes_ids: Whether the processor makes ids of text though the recipe names no tokenizer.
    """

    measures: tuple[str, ...]
    load: Callable[[DataOptions], Splits]
    build_processor: Callable[[Recipe, Any], Any]
    encode: Callable[[Any, Any, DataOptions, Sequence[str], bool], Any]
    collate: Callable[[Any, PreTrainedModel], Collate]
    evaluate: Callable[[PreTrainedModel, Any, Any, int], Score]
    labels: Callable[[Any], list[str]] = no_labels
    loss: Callable[[Any, Mapping[str, Tensor], Any, float], Tensor] = aligned_loss
    finish_model: Callable[[PreTrainedModel, Recipe], None] = leave
    baselines: Callable[[Any, Any], dict[str, dict[str, float]]] = no_baselines
    count: Callable[[Mapping[str, Tensor]], int] = input_tokens
    unit: str = "tokens"
    classes: Callable[[Any], int] = lambda config: config.vocab_size
    part: Callable[[Any, int], Any] = every_row
    length: Callable[[Any], int] = row_length
    load_processor: Callable[[Path, PreTrainedModel], Any] | None = None
    join: Callable[[Any], Any] = both_sides
    settled: Callable[[Any], dict[str, Any]] = nothing_settled
    makes_ids: bool = False

    def measured(self, score: Score) -> dict[str, float]:
        """The numbers of a score as metrics and ledger name them."""
        return {"validation_loss": score.loss, **{name: getattr(score, name) for name in self.measures}}


class EvenRows(torch.utils.data.Dataset):
    """Some rows of a data set, evenly spread.

    Args:
        rows: All of them.
        count: How many are taken.
    """

    def __init__(self, rows: Any, count: int) -> None:
        self.rows, self.count = rows, min(count, len(rows))

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(self.count))

    def __getitem__(self, index: int, /) -> Any:
        return self.rows[self.place(index)]

    def place(self, index: int) -> int:
        """Where a row of the part stands in the whole."""
        return index * len(self.rows) // self.count


@contextmanager
def drawing(epoch: Sequence[int], row: int) -> Iterator[None]:
    """Draw what depends on seed, stage, epoch and row alone; torch's own generator is afterwards what it was.

    A run then goes on as if it had never stopped, however many rows were read ahead.

    Args:
        epoch: Seed, stage and epoch.
        row: Which one, or the first of a batch.
    """
    drawn = np.random.SeedSequence([*epoch, row]).generate_state(1, np.uint64)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(drawn[0] >> 1))
        yield


class DrawnRows(EvenRows):
    """Some rows whose batches are changed at random, anew every epoch: by seed, stage, epoch and the first row."""

    _epoch = (0, 0, 0)

    def begin_epoch(self, seed: int, stage: int, epoch: int) -> None:
        """Draw for this epoch from now on."""
        self._epoch = (seed, stage, epoch)

    def __getitem__(self, index: int, /) -> Any:
        return {**super().__getitem__(index), "row": index}

    def collate_drawn(self, rows: Sequence[Any], *, collate: Collate) -> Batch:
        """A batch, made with what is drawn for its first row."""
        with drawing(self._epoch, int(rows[0]["row"])):
            return collate(rows)
