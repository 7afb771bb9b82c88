"""Load labeled images, split into what is trained on and what is held out, as rows of pixel values and labels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from gnomon.data.augmentation import ImageAugmentation, denormalize, normalize
from gnomon.data.collecting import collection_folder
from gnomon.data.collections import describe_collection, find_collection
from gnomon.data.converters import ARRAYS
from gnomon.data.hub import is_saved_dataset
from gnomon.data.image_processing import DEVIATION, MEAN, build_image_processor
from gnomon.data.images import LabeledImages, decode_image, read_arrays, read_class_folders, read_image_table
from gnomon.data.origins import check_origin, refuse_with_own_split
from gnomon.data.rows import find_table, looks_like_a_path, open_rows, open_table, side_folders
from gnomon.data.splitting import LeftOut, hold_out_groups

DEFAULT_SIZE = 224
"""The height and width of images that come as files, where nothing else is asked for."""

DEFAULT_PERCENT = 10.0


class ImageRows(Dataset[dict[str, torch.Tensor]]):
    """Images as `pixel_values` (channels, height, width) and `labels` (a number).

    An image that turns out to be damaged when it is used is replaced by the next good one, and listed.

    Args:
        images: The images.
        processor: What `build_image_processor` made.
    """

    def __init__(self, images: LabeledImages, processor: Any) -> None:
        self.images, self.processor = images, processor
        self.num_channels = len(processor.image_mean)
        size = (processor.size["height"], processor.size["width"])
        self._fits = isinstance(images.images, np.ndarray) and images.images.shape[1:3] == size

    def __len__(self) -> int:
        return len(self.images)

    @property
    def labels(self) -> np.ndarray:
        """Every row's class, without decoding an image."""
        return self.images.labels

    @property
    def lengths(self) -> list[int]:
        """Every row's length, which is the same for all."""
        return [1] * len(self)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """One row."""
        for step in range(len(self)):
            row = (index + step) % len(self)
            try:
                array = self.array(row)
            except ValueError as error:
                self.images.left_out.add_late(self.images.names[row], str(error))
                continue
            return {"pixel_values": self.pixel_values(array), "labels": torch.tensor(int(self.labels[row]))}
        raise ValueError(f"no image can be read any more ({self.images.left_out.describe(shown=1)})")

    def array(self, row: int) -> np.ndarray:
        """A row's image as it came, as (height, width, channels) bytes.

        Raises:
            ValueError: It cannot be read.
        """
        return decode_image(self.images.images[row], self.num_channels)

    def pixel_values(self, array: np.ndarray) -> torch.Tensor:
        """What the model reads, of an image of (height, width, channels) bytes."""
        if self._fits:  # the processor's own formula, without its detours
            levels = torch.from_numpy(array.transpose(2, 0, 1).astype(np.float32))
            return (levels / 255 - MEAN) / DEVIATION
        options = {"return_tensors": "pt", "input_data_format": "channels_last"}
        return self.processor(array, **options)["pixel_values"][0].float()

    def pixels(self) -> np.ndarray:
        """All rows as flat vectors of pixel values (rows, channels * height * width), for the baselines."""
        return torch.stack([self[row]["pixel_values"].flatten() for row in range(len(self))]).numpy()


@dataclass(frozen=True)
class ImageSplits:
    """Labeled images on the two sides of a split.

    Attributes:
        train: What is trained on.
        validation: What is held out.
        classes: The names of the classes, by number.
        processor: What makes pixel values of an image; save it with the model.
        source: Where the images come from.
    """

    train: ImageRows
    validation: ImageRows
    classes: tuple[str, ...]
    processor: Any
    source: str

    @property
    def model_fields(self) -> dict[str, Any]:
        """What a model's configuration takes from the data."""
        size = (self.processor.size["height"], self.processor.size["width"])
        return {
            "image_size": size[0] if size[0] == size[1] else list(size),
            "num_channels": self.train.num_channels,
            "num_labels": len(self.classes),
        }

    @property
    def left_out(self) -> LeftOut:
        """The images that could not be read, of both sides."""
        return LeftOut(self.train.images.left_out.reasons | self.validation.images.left_out.reasons)

    def collate(self, augmentation: ImageAugmentation | None = None) -> "ImageCollator":
        """What makes batches of rows, with augmentation for training."""
        return ImageCollator(len(self.classes), augmentation)

    def describe(self) -> str:
        """One sentence: how many images of what, and what was left out."""
        size = self.processor.size
        bad = self.left_out.describe()
        return (
            f"{self.source}: {len(self.train):,} training and {len(self.validation):,} validation images of "
            f"{len(self.classes)} classes, {size['height']} x {size['width']} pixels, "
            f"{'gray' if self.train.num_channels == 1 else 'color'}{f'; {bad}' if bad else ''}"
        )


class ImageCollator:
    """Rows to a batch: `pixel_values` (batch, channels, height, width) and `labels` (batch,).

    Args:
        num_classes: How many classes there are.
        augmentation: Changes the images, for training. With mixup, `labels` become shares (batch, classes).
    """

    def __init__(self, num_classes: int, augmentation: ImageAugmentation | None = None) -> None:
        self.num_classes, self.augmentation = num_classes, augmentation

    def __call__(self, rows: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """One batch."""
        pixel_values = torch.stack([row["pixel_values"] for row in rows])
        labels = torch.stack([row["labels"] for row in rows])
        if self.augmentation is not None:
            images, labels = self.augmentation(denormalize(pixel_values, MEAN, DEVIATION), labels, self.num_classes)
            pixel_values = normalize(images, MEAN, DEVIATION)
        return {"pixel_values": pixel_values, "labels": labels}


def load_images(
    *,
    name: str | None = None,
    source: str | Path | None = None,
    image_column: str | None = None,
    label_column: str | None = None,
    validation: str | Path | None = None,
    validation_percent: float | None = None,
    split: str | None = None,
    subset: str | None = None,
    image_size: int | Sequence[int] | None = None,
    num_channels: int | None = None,
) -> ImageSplits:
    """Load labeled images, and hold some out: the same ones every time.

    A catalog data set holds out what its entry says. Of anything else `validation` is held out if given; else the
    folder `validation` or `test` beside a folder `train`; else the images whose hashed name falls below a percentage.

    Args:
        name: A data set of the catalog.
        source: A folder of class folders, a table (.csv, .tsv, .jsonl, .json, .parquet) or a folder with one,
            an .npz file, a folder that `datasets` saved, or a data set's name on the Hub.
        image_column: A table's column with the image; one with a usual name if None.
        label_column: A table's column with the label; one with a usual name if None.
        validation: What is held out: a folder or table, or of a Hub data set a split.
        validation_percent: How many of a hundred images are held out otherwise; 10 if None.
        split: The split of a Hub data set that is trained on; `train` if None.
        subset: A Hub data set's configuration.
        image_size: Height and width in pixels; the images' own if None and all are alike, else 224.
        num_channels: 1 (gray) or 3 (color); the images' own if None and known, else 3.

    Raises:
        ValueError: An option has no meaning here or is out of range, or there is nothing that can be read.
        FileNotFoundError: There is no such file, folder or data set, or it has not been fetched yet.
    """
    check_origin(name, source)
    columns = {"image_column": image_column, "label_column": label_column}
    options = {"validation": validation, "validation_percent": validation_percent, "split": split, "subset": subset}
    if name is not None:
        refuse_with_own_split(name, {**columns, **options})
        find_collection(name, "images")
        train, held_out = read_arrays(collection_folder(name) / ARRAYS)
        title = describe_collection(name).split(" (")[0]
    else:
        train, held_out = _read_sides(str(source), columns, validation, split, subset)
        title = str(source)
        if held_out is None:
            train, held_out = _hold_out(train, DEFAULT_PERCENT if validation_percent is None else validation_percent)
        elif validation_percent is not None:
            raise ValueError("data.validation_percent has no meaning here, because a side is held out: drop it")
    size, channels = _shape(train, image_size, num_channels)
    processor = build_image_processor(size, channels)
    return ImageSplits(ImageRows(train, processor), ImageRows(held_out, processor), train.classes, processor, title)


def _read_sides(
    source: str, columns: dict[str, str | None], validation: str | Path | None, split: str | None, subset: str | None
) -> tuple[LabeledImages, LabeledImages | None]:
    """The images of a source, and those of an explicit validation side if there is one."""
    path = Path(source).expanduser()
    if path.is_file() and path.suffix == ".npz":
        return read_arrays(path)
    if path.exists() and not is_saved_dataset(path):
        sides = side_folders(path) if path.is_dir() and validation is None else None
        train = _read_place(sides[0] if sides else path, columns, None)
        other = sides[1] if sides else None if validation is None else Path(validation).expanduser()
        return train, None if other is None else _read_place(other, columns, train.classes)
    if not path.exists() and looks_like_a_path(source):
        raise FileNotFoundError(f"there is no file or folder {source}: check data.source")
    train = read_image_table(open_rows(source, split or "train", subset), **columns)
    if validation is None:
        return train, None
    return train, read_image_table(open_rows(source, str(validation), subset), classes=train.classes, **columns)


def _read_place(place: Path, columns: dict[str, str | None], classes: Sequence[str] | None) -> LabeledImages:
    """The images of a folder or a table."""
    if not place.exists():
        raise FileNotFoundError(f"there is no file or folder {place}: check data.source and data.validation")
    table = place if place.is_file() else find_table(place, ("metadata", "labels"))
    if table is None:
        return read_class_folders(place, classes)
    return read_image_table(open_table(table), classes=classes, **columns)


def _hold_out(images: LabeledImages, percent: float) -> tuple[LabeledImages, LabeledImages]:
    """Split by the hashed name."""
    held = hold_out_groups(images.names, percent)
    sides = ([row for row, is_held in enumerate(held) if is_held is side] for side in (False, True))
    train, validation = (images.take(rows) for rows in sides)
    return train, validation


def _shape(
    images: LabeledImages, image_size: int | Sequence[int] | None, num_channels: int | None
) -> tuple[tuple[int, int], int]:
    """Height and width, and channels: as asked, else the arrays' own, else those of color pictures in files."""
    is_array = isinstance(images.images, np.ndarray)
    if image_size is None:
        size = images.images.shape[1:3] if is_array else (DEFAULT_SIZE, DEFAULT_SIZE)
    else:
        size = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
    if len(size) != 2:
        raise ValueError(f"an image size is one number or a height and a width, not {list(size)}")
    own = 1 if is_array and images.images.ndim == 3 else 3
    return (int(size[0]), int(size[1])), own if num_channels is None else num_channels
