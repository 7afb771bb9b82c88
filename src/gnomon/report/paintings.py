"""Samples of a model that paints hidden patches: each image whole, with the patches hidden, and as it was painted."""

from typing import Any

import numpy as np
import torch

from gnomon.data.augmentation import denormalize
from gnomon.data.image_processing import DEVIATION, MEAN
from gnomon.evaluation.batches import evaluation_mode, move
from gnomon.models.inputs import patches_to_image
from gnomon.models.sizes import extents, image_grid
from gnomon.report.samples import Sample

GAP, HIDDEN = 255, 160
"""Levels of gray: between the three pictures, and in place of a hidden patch."""


def painted_samples(model: Any, rows: Any, count: int = 12) -> tuple[list[Sample], str]:
    """Samples of a painter, evenly spread, and a sentence on what they show.

    Args:
        model: Returns `.reconstruction`, whole images.
        rows: `ImageSet`, which hides the same patches of a row every time.
        count: How many samples there are at most.
    """
    count = min(count, len(rows))
    chosen = [number * len(rows) // count for number in range(count)]
    grid, patch = image_grid(model.config.to_dict()), extents(model.config.patch_size)
    batch = {
        "pixel_values": torch.stack([rows[row]["pixel_values"] for row in chosen]),
        "bool_masked_pos": rows.masks(chosen, grid[0] * grid[1]),
    }
    with evaluation_mode(model):
        painted = model(**move(batch, model.device)).reconstruction.cpu()
    whole = batch["pixel_values"]
    height, width = whole.shape[2:]
    size = whole.shape[1] * patch[0] * patch[1]
    cells = batch["bool_masked_pos"].unsqueeze(-1).expand(-1, -1, size).float()
    hidden = patches_to_image(cells, patch, grid)[:, :, :height, :width].bool()
    samples = []
    for number, row in enumerate(chosen):
        distance = float((painted[number] - whole[number])[hidden[number]].abs().mean()) * DEVIATION * 255
        filled = torch.where(hidden[number], painted[number], whole[number])
        pictures = [_levels(whole[number]), _levels(whole[number]), _levels(filled)]
        pictures[1][hidden[number].permute(1, 2, 0).numpy()] = HIDDEN
        samples.append(
            Sample(
                label="",
                prediction="",
                is_right=None,
                image=_beside(pictures),
                name=rows.images.names[rows.place(row)],
                remark=f"hidden pixels are painted {distance:.0f} of 255 levels off",
            )
        )
    return samples, f"{count} of {len(rows):,} images: whole, with its hidden patches gray, and with them painted."


def _levels(image: torch.Tensor) -> np.ndarray:
    """Pixel values (channels, height, width) as (height, width, channels) bytes."""
    return (denormalize(image, MEAN, DEVIATION) * 255).round().byte().permute(1, 2, 0).contiguous().numpy()


def _beside(pictures: list[np.ndarray]) -> np.ndarray:
    """Pictures from left to right, with a gap between them."""
    height, width, channels = pictures[0].shape
    gap = np.full((height, max(1, width // 12), channels), GAP, dtype=np.uint8)
    parts = [part for each in pictures for part in (gap, each)][1:]
    return np.concatenate(parts, axis=1)
