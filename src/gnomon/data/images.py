"""Read labeled images: arrays, folders of class folders, and tables with an image column."""

import io
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gnomon.data.rows import MediaRows, take_contents
from gnomon.data.splitting import LeftOut

IMAGE_ENDINGS = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})

DECODED_AT_ONCE = 20_000
"""Up to so many images are decoded when they are loaded, to find damaged ones; of more, each when it is used."""

IMAGE_COLUMNS = ("image", "file_name", "file", "path", "img")
LABEL_COLUMNS = ("label", "labels", "class", "category")
"""What columns are usually called."""

Picture = np.ndarray | Path | bytes
"""An image: an array of bytes (height, width) or (height, width, 3), a file, or a file's contents."""


@dataclass
class LabeledImages:
    """Images with the number of their class.

    Attributes:
        images: The images.
        labels: Each one's class, from 0.
        names: What an image is called in messages.
        classes: The names of the classes.
        left_out: What could not be read.
    """

    images: Sequence[Picture]
    labels: np.ndarray
    names: Sequence[str]
    classes: tuple[str, ...]
    left_out: LeftOut = field(default_factory=LeftOut)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Sequence[int]) -> "LabeledImages":
        """Some of the images, with the same classes."""
        chosen = np.asarray(rows, dtype=np.int64)
        if isinstance(self.images, np.ndarray):
            images: Sequence[Picture] = self.images[chosen]
        else:
            images = self.images.take(rows) if isinstance(self.images, LazyPictures) else _pick(self.images, rows)
        return LabeledImages(
            images=images,
            labels=self.labels[chosen],
            names=_pick(self.names, rows),
            classes=self.classes,
            left_out=self.left_out,
        )


def _pick(values: Sequence[Any], rows: Sequence[int]) -> list[Any]:
    return [values[row] for row in rows]


def decode_image(picture: Picture, channels: int) -> np.ndarray:
    """An image as (height, width, channels) bytes; color becomes gray and gray color, as asked.

    Transparent pixels are put on white. Gray is ITU-R 601: 0.299 red + 0.587 green + 0.114 blue.

    Args:
        picture: An array, a file, or a file's contents.
        channels: 1 or 3.

    Raises:
        ValueError: It is no image that can be read, or an array of another shape.
    """
    from PIL import Image

    if isinstance(picture, np.ndarray):
        if picture.dtype != np.uint8 or picture.ndim not in (2, 3) or (picture.ndim == 3 and picture.shape[2] != 3):
            raise ValueError(
                "an image array must be bytes of shape (height, width) or (height, width, 3), not "
                f"{picture.dtype} of {picture.shape}"
            )
        if picture.ndim == 2 + (channels == 3):
            return picture if picture.ndim == 3 else picture[:, :, None]
        image = Image.fromarray(picture)
    else:
        try:
            # Read whole: a damaged file would stay open otherwise.
            image = Image.open(io.BytesIO(picture if isinstance(picture, bytes) else picture.read_bytes()))
            image.load()
        except Image.DecompressionBombError as error:
            raise ValueError(str(error)) from error
        except Image.UnidentifiedImageError as error:
            raise ValueError("it is no image, or empty") from error
        except FileNotFoundError as error:
            raise ValueError("there is no such file") from error
        except (OSError, SyntaxError, ValueError, EOFError) as error:
            raise ValueError(str(error).rstrip(".") or "it is damaged") from error
        image = _to_eight_bits(image)
    array = np.asarray(image.convert("L" if channels == 1 else "RGB"))
    return array if channels == 3 else array[:, :, None]


def _to_eight_bits(image: Any) -> Any:
    """Put transparency on white, and scale 16-bit gray down instead of cutting it off at 255."""
    from PIL import Image

    if image.mode in ("I;16", "I;16L", "I;16B", "I", "F"):
        values = np.asarray(image, dtype=np.float64)
        scale = 257.0 if values.max(initial=0) > 255 else 1.0
        return Image.fromarray(np.clip(np.round(values / scale), 0, 255).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image


def read_arrays(file: Path) -> tuple[LabeledImages, LabeledImages]:
    """Both sides of a split from an `.npz` file.

    Args:
        file: With the arrays `train_images` and `validation_images` (count, height, width) or
            (count, height, width, 3), bytes; `train_labels` and `validation_labels` (count,); and `classes`.

    Raises:
        ValueError: An array is missing or does not fit.
    """
    with np.load(file, allow_pickle=False) as arrays:
        needed = [f"{side}_{part}" for side in ("train", "validation") for part in ("images", "labels")]
        missing = [name for name in [*needed, "classes"] if name not in arrays]
        if missing:
            raise ValueError(
                f"{file} must hold the arrays {', '.join(needed)} and classes, but {missing[0]} is missing: see "
                "numpy.savez"
            )
        classes = tuple(map(str, arrays["classes"]))
        sides = []
        for side in ("train", "validation"):
            images, labels = arrays[f"{side}_images"], arrays[f"{side}_labels"].astype(np.int64)
            if len(images) != len(labels) or (len(labels) and not 0 <= labels.min() <= labels.max() < len(classes)):
                raise ValueError(
                    f"{file} must hold one label from 0 to {len(classes) - 1} for every image, but {side}_labels has "
                    f"{len(labels)} of {labels.min(initial=0)} to {labels.max(initial=0)} for {len(images)} images"
                )
            names = [f"{file.name}:{side}:{row}" for row in range(len(labels))]
            sides.append(LabeledImages(images, labels, names, classes))
    return sides[0], sides[1]


def read_class_folders(folder: Path, classes: Sequence[str] | None = None) -> LabeledImages:
    """Images in folders that are named after their classes; files that are no images are left out and listed.

    Args:
        folder: Holds a folder a class, each with images, also in subfolders; one without any is no class.
        classes: The classes that there may be, in order; those of the folder, sorted, if None.

    Raises:
        ValueError: There are no class folders, a class is unknown, or there is no image.
    """
    places = sorted(place for place in folder.iterdir() if place.is_dir() and not place.name.startswith("."))
    if not places:
        raise ValueError(
            f"an image folder must hold one folder a class, but {folder} holds none: move the images of each class "
            "into a folder with the class's name"
        )
    within = {
        place: [file for file in sorted(place.rglob("*")) if file.suffix.lower() in IMAGE_ENDINGS and file.is_file()]
        for place in places
    }
    known = tuple(classes) if classes is not None else tuple(place.name for place in places if within[place])
    files: list[Path] = []
    labels: list[int] = []
    for place, found in within.items():
        if not found:
            continue
        if place.name not in known:
            raise ValueError(
                f"{place} holds images of the class {place.name!r}, which is not among the {len(known)} trained on "
                f"({', '.join(known[:10])}): rename or remove the folder"
            )
        files += found
        labels += [known.index(place.name)] * len(found)
    if not files:
        raise ValueError(
            f"the class folders of {folder} hold no image (none of {', '.join(sorted(IMAGE_ENDINGS))}): put some in"
        )
    names = [file.relative_to(folder).as_posix() for file in files]
    return leave_out_damaged(LabeledImages(files, np.array(labels, dtype=np.int64), names, known), str(folder))


def read_image_table(
    rows: MediaRows,
    *,
    image_column: str | None = None,
    label_column: str | None = None,
    classes: Sequence[str] | None = None,
) -> LabeledImages:
    """Images and labels of a table; images that cannot be read are left out and listed.

    Args:
        rows: Each with an image (a file's name, its contents, or both) and a label (a word or a whole number).
        image_column: The column with the image; one with a usual name if None.
        label_column: The column with the label; one with a usual name if None.
        classes: The classes that there may be, in order; those of the table if None, sorted unless it names them.

    Raises:
        ValueError: A column is missing, a label is unknown, or no image can be read.
    """
    pictures = rows.find_column(image_column, IMAGE_COLUMNS, "data.image_column")
    label = rows.find_column(label_column, LABEL_COLUMNS, "data.label_column")
    words = rows.column(label)
    titles = rows.class_names(label)
    if titles:
        words = [titles[word] for word in words]
    blank = {row for row, word in enumerate(words) if word is None or str(word).strip() == ""}
    if len(blank) == len(words):
        raise ValueError(f"{rows.name} holds no label in its column {label!r}: name another as data.label_column")
    present = sorted(
        {word for row, word in enumerate(words) if row not in blank}, key=lambda word: (isinstance(word, str), word)
    )
    known = tuple(classes) if classes is not None else titles or tuple(map(str, present))
    numbers = {word: number for number, word in enumerate(known)}
    for row, word in enumerate(words):
        if row not in blank and str(word) not in numbers:
            raise ValueError(
                f"row {row + 1} of {rows.name} has the label {word!r}, which is not among the {len(known)} known ones "
                f"({', '.join(known[:10])}): mend the label or leave the row out"
            )
    labels = np.array([numbers.get(str(word), 0) for word in words], dtype=np.int64)
    lazy = LazyPictures(rows, pictures)
    if isinstance(rows[0][pictures], str):
        names = [name or f"row {row} of {rows.name}" for row, name in enumerate(rows.column(pictures), start=1)]
    else:
        names = [f"{rows.name}:{row}" for row in range(1, len(rows) + 1)]
    images = LabeledImages(lazy, labels, names, known)
    for row in blank:
        images.left_out.add(f"row {row + 1} of {rows.name}", "it has no label")
    return leave_out_damaged(images, rows.name, blank)


class LazyPictures(Sequence[Picture]):
    """The images of a table's column, each read from its row when it is asked for."""

    def __init__(self, rows: MediaRows, column: str) -> None:
        self.rows, self.column = rows, column

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        value = self.rows[int(index)][self.column]
        return take_contents(value, f"row {int(index) + 1} of {self.rows.name}", self.rows.base)[0]

    def take(self, rows: Sequence[int]) -> "LazyPictures":
        """Some of the images."""
        return LazyPictures(self.rows.take(rows), self.column)


def leave_out_damaged(images: LabeledImages, where: str, others: Collection[int] = ()) -> LabeledImages:
    """Without the images that cannot be read, which are listed; of very many, those are found when they are used.

    Args:
        images: What there is.
        where: What holds them, for messages.
        others: Rows that are left out whatever their image.

    Raises:
        ValueError: None can be read.
    """
    kept = []
    for row in range(min(len(images), DECODED_AT_ONCE)):
        if row in others:
            continue
        try:
            decode_image(images.images[row], 3)
            kept.append(row)
        except ValueError as error:
            images.left_out.add(images.names[row], str(error))
    kept += [row for row in range(DECODED_AT_ONCE, len(images)) if row not in others]
    if not kept:
        raise ValueError(f"{where} holds no image that can be read ({images.left_out.describe(shown=1)})")
    return images if len(kept) == len(images) else images.take(kept)
