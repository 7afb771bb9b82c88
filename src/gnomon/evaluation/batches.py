"""What every evaluation does alike: batches of equal length, ids inside the vocabulary, modes restored afterwards."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import nn


class Rows(Protocol):
    """What is evaluated on: rows of tensors, each with the `input_ids` (length,) that the model reads."""

    def __len__(self) -> int:
        """The number of rows."""

    def __getitem__(self, index: int, /) -> Mapping[str, torch.Tensor]:
        """One row."""


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients inside the block; every module's own mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def check_batch_size(batch_size: int) -> None:
    """Refuse a batch without rows.

    Raises:
        ValueError: It is not positive.
    """
    if batch_size < 1:
        raise ValueError(f"the batch size of an evaluation must be at least 1, not {batch_size}")


def equal_length_batches(rows: Rows, batch_size: int) -> Iterator[list[Mapping[str, torch.Tensor]]]:
    """Runs of neighboring rows of one length, at most `batch_size` of them, so that nothing is ever padded."""
    batch: list[Mapping[str, torch.Tensor]] = []
    for index in range(len(rows)):
        row = rows[index]
        if batch and (len(batch) == batch_size or len(row["input_ids"]) != len(batch[0]["input_ids"])):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def batches_by_length(rows: Rows, batch_size: int) -> Iterator[tuple[list[int], list[Mapping[str, torch.Tensor]]]]:
    """All rows in batches, sorted by their length so that little is padded, each with its rows' numbers.

    Rows that have to be read or decoded know their lengths without it, as `rows.lengths`.
    """
    lengths = getattr(rows, "lengths", None)
    if lengths is None:
        lengths = [len(rows[index]["input_ids"]) for index in range(len(rows))]
    order = sorted(range(len(rows)), key=lambda index: (lengths[index], index))
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        yield chosen, [rows[index] for index in chosen]


def check_vocabulary(input_ids: torch.Tensor, vocabulary: int) -> None:
    """Refuse ids that the model has no embedding for; indexing with them would end in a crash or worse.

    Raises:
        ValueError: There is one.
    """
    largest = int(input_ids.max())
    if largest >= vocabulary:
        raise ValueError(
            f"the text holds the token id {largest}, outside the model's vocabulary of {vocabulary}: "
            "use the tokenizer that the model was trained with"
        )


def move(batch: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """The batch's tensors on a device."""
    return {name: value.to(device) for name, value in batch.items()}
