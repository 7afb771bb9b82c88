"""What the tasks of images share: how a recipe's data are named, and rows that bring their augmentation or masks."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoImageProcessor, PreTrainedModel

from gnomon.data.augmentation import ImageAugmentation
from gnomon.data.images import LabeledImages
from gnomon.data.vision import ImageCollator, ImageRows, ImageSplits, load_images
from gnomon.models.inputs import random_mask
from gnomon.models.sizes import extents, image_grid, resolve
from gnomon.training.data_options import DataOptions
from gnomon.training.options import Recipe
from gnomon.training.recipe import model_fields
from gnomon.training.records import read_json
from gnomon.training.tasks import ORIGIN_KEYS
from gnomon.training.tasks.task import Batch, Collate, DrawnRows

PROCESSOR_FILE = "preprocessor_config.json"


class ImageSet(DrawnRows):
    """Images of one side of a split, all or some, with what the task does to them.

    Args:
        rows: The images with their labels.
        augmentation: Random changes of training images, or None.
        mask_ratio: Share of the patches that is hidden, or None.
        count: How many are taken, evenly spread; all if None.
    """

    def __init__(
        self,
        rows: ImageRows,
        augmentation: ImageAugmentation | None = None,
        mask_ratio: float | None = None,
        count: int | None = None,
    ) -> None:
        super().__init__(rows, len(rows) if count is None else count)
        self.augmentation, self.mask_ratio = augmentation, mask_ratio
        self.labels = rows.labels[[self.place(index) for index in range(self.count)]]
        self.lengths = [1] * self.count

    def part(self, count: int) -> "ImageSet":
        """Some of the rows."""
        return ImageSet(self.rows, self.augmentation, self.mask_ratio, count)

    def pixels(self) -> np.ndarray:
        """Every row as a flat vector, for the baselines."""
        return torch.stack([self[index]["pixel_values"].flatten() for index in range(len(self))]).numpy()

    def array(self, index: int) -> np.ndarray:
        """A row's image as it came."""
        return self.rows.array(self.place(index))

    @property
    def images(self) -> Any:
        """The names of the images, and what could not be read."""
        return self.rows.images

    def masks(self, indices: Sequence[int], patches: int) -> Tensor:
        """Which patches of these rows an evaluation hides: always the same ones of a row."""
        ratio = self.mask_ratio or 0.0
        drawn = (random_mask(1, patches, ratio, torch.Generator().manual_seed(self.place(row))) for row in indices)
        return torch.cat(list(drawn))

    def collator(self, model: PreTrainedModel) -> Collate:
        """What makes a batch of training rows."""
        collate: Collate = ImageCollator(len(self.rows.images.classes), self.augmentation)
        if self.mask_ratio is not None:
            patch = extents(model.config.patch_size)
            collate = partial(collate_hidden, collate=collate, ratio=self.mask_ratio, patch=patch)
        return partial(self.collate_drawn, collate=collate)


def collate_hidden(
    rows: Sequence[Any], *, collate: Callable[[Any], Batch], ratio: float, patch: tuple[int, int]
) -> Batch:
    """A batch of images with patches hidden at random.

    Args:
        rows: Of an `ImageSet`.
        collate: Makes `pixel_values` of them.
        ratio: Share of the patches that is hidden.
        patch: Height and width of one.

    Returns:
        `pixel_values`, `bool_masked_pos`, and `labels`, 1 where a patch is hidden and else -100: a trainer counts the
        targets of a step by them.
    """
    pixel_values = collate(rows)["pixel_values"]
    patches = -(-pixel_values.shape[2] // patch[0]) * -(-pixel_values.shape[3] // patch[1])
    hidden = random_mask(len(rows), patches, ratio)
    return {"pixel_values": pixel_values, "bool_masked_pos": hidden, "labels": torch.where(hidden, 1, -100)}


def load(data: DataOptions) -> ImageSplits:
    """The images of both sides; those that cannot be read are named once."""
    keys = {*ORIGIN_KEYS, "image_column", "label_column", "image_size", "num_channels"}
    splits = load_images(**data.model_dump(include=keys))
    if splits.left_out.reasons:
        logging.getLogger("gnomon").warning("%s", splits.describe())
    return splits


def join(splits: ImageSplits) -> ImageRows:
    """The images of both sides."""
    sides = (splits.train.images, splits.validation.images)
    parts = [side.images for side in sides]
    is_array = all(isinstance(part, np.ndarray) for part in parts)
    images = LabeledImages(
        images=np.concatenate(parts) if is_array else [picture for part in parts for picture in part],
        labels=np.concatenate([side.labels for side in sides]),
        names=[name for side in sides for name in side.names],
        classes=splits.classes,
        left_out=splits.left_out,
    )
    return ImageRows(images, splits.processor)


def build_processor(recipe: Recipe, rows: ImageRows) -> Any:
    """The data's own image processor, which has to make what the model reads.

    Raises:
        ValueError: The model is none of images, or has another image size or number of channels.
    """
    checkpoint = recipe.model.get("checkpoint")
    fields = resolve(read_json(Path(checkpoint) / "config.json") if checkpoint else model_fields(recipe.model))
    height, width = rows.processor.size["height"], rows.processor.size["width"]
    if fields["image_size"] is None:
        raise ValueError(f"task {recipe.task} needs a model of images; set model.image_size, here {height}.")
    if extents(fields["image_size"]) != (height, width) or fields["num_channels"] != rows.num_channels:
        wanted = extents(fields["image_size"])
        raise ValueError(
            f"the model reads {fields['num_channels']} channels of {wanted[0]} x {wanted[1]} pixels, and the data give "
            f"{rows.num_channels} of {height} x {width}; set data.image_size and data.num_channels, or those of model."
        )
    return rows.processor


def load_processor(folder: Path, model: PreTrainedModel) -> Any:
    """The image processor that was saved with a model.

    Raises:
        FileNotFoundError: There is none.
    """
    if not (folder / PROCESSOR_FILE).is_file():
        raise FileNotFoundError(
            f"the checkpoint {folder} has no image processor ({PROCESSOR_FILE}); name a folder that a run has written."
        )
    return AutoImageProcessor.from_pretrained(folder, local_files_only=True)


def settled(config: Any) -> dict[str, Any]:
    """The keys of `data` that a trained model has settled."""
    return {"image_size": config.image_size, "num_channels": config.num_channels}


def augmentation_of(data: DataOptions) -> ImageAugmentation | None:
    """The recipe's changes of training images."""
    return None if data.augmentation is None else ImageAugmentation(**data.augmentation.model_dump())


def with_labels(rows: ImageRows, labels: Sequence[str]) -> ImageRows:
    """The rows with their classes numbered as the model numbers them.

    Raises:
        ValueError: A class is none of the model's.
    """
    classes = rows.images.classes
    if tuple(classes) == tuple(labels):
        return rows
    if unknown := [name for name in classes if name not in labels]:
        raise ValueError(
            f"the class {unknown[0]!r} is none of the {len(labels)} that the model knows ({', '.join(labels[:5])}"
            f"{', ...' if len(labels) > 5 else ''}); leave its images out, or train on them."
        )
    numbers = np.array([labels.index(name) for name in classes])
    images = replace(rows.images, labels=numbers[rows.images.labels], classes=tuple(labels))
    return ImageRows(images, rows.processor)


def count_images(batch: Batch) -> int:
    """Images of a batch, by which the costs of a model of images are counted."""
    return len(batch["pixel_values"])


def positions_of(config: Any) -> int:
    """The patches of an image of a model's own size."""
    rows, columns = image_grid(config.to_dict())
    return rows * columns
