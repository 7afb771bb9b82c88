"""How often a classifier is right: accuracy, and F1 with every class of equal weight."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from gnomon.evaluation.batches import Rows, batches_by_length, check_batch_size, evaluation_mode, move


@dataclass(frozen=True)
class ClassificationScore:
    """A classifier's answers on a whole set.

    Attributes:
        loss: Nats per answer.
        accuracy: Share of right answers.
        macro_f1: The mean over classes of 2 TP / (2 TP + FP + FN), over the classes that occur.
        sequences: How many answers there were.
    """

    loss: float
    accuracy: float
    macro_f1: float
    sequences: int

    def to_dict(self) -> dict[str, float | int]:
        """The fields, for JSON."""
        return asdict(self)


def evaluate_classifier(
    model: Any,
    rows: Rows,
    *,
    collate: Callable[[Sequence[Any]], Mapping[str, torch.Tensor]],
    batch_size: int = 16,
    progress: Callable[[int, int], None] | None = None,
) -> ClassificationScore:
    """Score a classifier of transformers on a whole set.

    Args:
        model: Returns `.logits` (batch, classes); runs in evaluation mode, restored afterwards.
        rows: Each with its inputs and `labels`.
        collate: Makes a batch of rows, with `labels` (batch,).
        batch_size: How many rows go through the model at once.
        progress: Called after each batch with the rows done and the rows in all.

    Raises:
        ValueError: The batch size is not positive, or there are no rows.
    """
    check_batch_size(batch_size)
    if not len(rows):
        raise ValueError("a classifier is scored on at least one row, and there is none: hold some out")
    nats, done = 0.0, 0
    given: list[np.ndarray] = []
    wanted: list[np.ndarray] = []
    with evaluation_mode(model):
        for _, batch in batches_by_length(rows, batch_size):
            inputs = move(collate(batch), model.device)
            labels = inputs.pop("labels")
            logits = model(**inputs).logits.float()
            nats += F.cross_entropy(logits, labels, reduction="none").cpu().double().sum().item()
            given.append(logits.argmax(-1).cpu().numpy())
            wanted.append(labels.cpu().numpy())
            done += len(batch)
            if progress is not None:
                progress(done, len(rows))
    answers, truth = np.concatenate(given), np.concatenate(wanted)
    return ClassificationScore(nats / done, float((answers == truth).mean()), macro_f1(answers, truth), done)


def macro_f1(answers: np.ndarray, truth: np.ndarray) -> float:
    """The mean F1 of the classes that occur in answers or truth.

    >>> macro_f1(np.array([0, 0, 1]), np.array([0, 1, 1]))
    0.6666666666666666
    """
    scores = []
    for label in np.union1d(answers, truth):
        hits = int(((answers == label) & (truth == label)).sum())
        scores.append(2 * hits / (int((answers == label).sum()) + int((truth == label).sum())))
    return float(np.mean(scores))
