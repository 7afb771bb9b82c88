"""Hidden patches of images."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from gnomon.data.image_processing import DEVIATION
from gnomon.data.vision import ImageCollator, ImageRows
from gnomon.evaluation.reconstruction import ReconstructionScore, evaluate_reconstruction
from gnomon.models.vision import DEFAULT_MASK_RATIO
from gnomon.training.data_options import DataOptions
from gnomon.training.tasks.image_rows import (
    ImageSet,
    augmentation_of,
    build_processor,
    count_images,
    join,
    load,
    load_processor,
    positions_of,
    settled,
)
from gnomon.training.tasks.task import Batch, Collate, Task


def encode(rows: ImageRows, processor: Any, data: DataOptions, labels: Sequence[str], training: bool) -> ImageSet:
    """Pixel values, with augmentation for training, and the share of them that is hidden."""
    return ImageSet(rows, augmentation_of(data) if training else None, data.mask_probability or DEFAULT_MASK_RATIO)


def make_collate(processor: Any, model: PreTrainedModel) -> Collate:
    """Images of one size are stacked."""
    return ImageCollator(1)


def loss(model: Any, batch: Mapping[str, Tensor], num_targets: Any, label_smoothing: float) -> Tensor:
    """The model's own loss over the hidden patches of a step."""
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    found: Tensor = model(**inputs, num_items_in_batch=num_targets).loss
    return found


def evaluate(model: PreTrainedModel, rows: ImageSet, processor: Any, batch_size: int) -> ReconstructionScore:
    """The mean error of a hidden pixel, the same patches of an image hidden every time."""
    stack, patches = make_collate(processor, model), positions_of(model.config)

    def collate(chosen: Sequence[int]) -> Batch:
        images = stack([rows[index] for index in chosen])["pixel_values"]
        return {"pixel_values": images, "bool_masked_pos": rows.masks(chosen, patches)}

    return evaluate_reconstruction(model, rows, collate=collate, deviation=DEVIATION, batch_size=batch_size)


def baselines(train: ImageSet, validation: ImageSet) -> dict[str, dict[str, float]]:
    """The median of each pixel over the training images, which has the smallest mean distance of all fixed images."""
    median = np.median(train.pixels(), axis=0)
    error = float(np.abs(validation.pixels() - median).mean())
    return {"median image": {"loss": error, "level_error": error * DEVIATION * 255}}


TASK = Task(
    measures=("level_error",),
    load=load,
    build_processor=build_processor,
    encode=encode,
    collate=make_collate,
    evaluate=evaluate,
    loss=loss,
    baselines=baselines,
    count=count_images,
    unit="images",
    classes=lambda config: 256,
    part=ImageSet.part,
    length=lambda rows: 1,
    load_processor=load_processor,
    join=join,
    settled=settled,
)
