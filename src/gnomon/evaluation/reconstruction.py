"""How well hidden patches of images are painted."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from gnomon.evaluation.batches import check_batch_size, evaluation_mode, move


@dataclass(frozen=True)
class ReconstructionScore:
    """The hidden patches of a whole set, painted.

    Attributes:
        loss: Mean distance of a hidden pixel's value to what was painted, in the units that the model reads.
        level_error: The same in levels of 255.
        images: How many images there were.
    """

    loss: float
    level_error: float
    images: int

    def to_dict(self) -> dict[str, float | int]:
        """The fields, for JSON."""
        return asdict(self)


def evaluate_reconstruction(
    model: Any,
    rows: Any,
    *,
    collate: Callable[[Sequence[int]], dict[str, torch.Tensor]],
    deviation: float,
    batch_size: int = 16,
) -> ReconstructionScore:
    """Score a masked image model on a whole set.

    Args:
        model: Returns `.loss`, the mean over hidden pixels; runs in evaluation mode, restored afterwards.
        rows: Images; as many patches are hidden in each.
        collate: Numbers of rows -> their batch, with the patches that are hidden.
        deviation: What a level of 255 was divided by, after division by 255, to make a pixel value.
        batch_size: How many images go through the model at once.

    Raises:
        ValueError: The batch size is not positive, or there are no rows.
    """
    check_batch_size(batch_size)
    if not len(rows):
        raise ValueError("a masked image model is scored on at least one image, and there is none: hold some out")
    total = 0.0
    with evaluation_mode(model):
        for start in range(0, len(rows), batch_size):
            chosen = range(start, min(start + batch_size, len(rows)))
            total += float(model(**move(collate(chosen), model.device)).loss) * len(chosen)
    loss = total / len(rows)
    return ReconstructionScore(loss, loss * deviation * 255, len(rows))
