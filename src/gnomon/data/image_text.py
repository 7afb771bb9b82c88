"""Load images with text, split into what is trained on and what is held out, as rows for two towers or one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gnomon.data.augmentation import ImageAugmentation
from gnomon.data.collecting import collection_folder
from gnomon.data.collections import describe_collection, find_collection
from gnomon.data.converters import read_names, read_sheet, readable_name
from gnomon.data.hub import is_saved_dataset
from gnomon.data.image_processing import build_image_processor
from gnomon.data.image_text_rows import CaptionedImages, ImageTextCollator, ImageTextRows
from gnomon.data.images import IMAGE_COLUMNS, LabeledImages, LazyPictures, leave_out_damaged
from gnomon.data.origins import check_held_out, check_origin, refuse_with_own_split
from gnomon.data.rows import find_table, looks_like_a_path, open_rows, open_table
from gnomon.data.splitting import LeftOut, hold_out_groups
from gnomon.data.tokenizers import build_tokenizer
from gnomon.data.vision import DEFAULT_PERCENT, DEFAULT_SIZE

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TEXT_COLUMNS = ("text", "caption", "name", "title")
"""What a table's column with the text is usually called."""

DEFAULT_ARTIST = "openmoji"
"""Whose emoji are held out: the drawings that look least like the others."""

NAMES_PERCENT = 10.0
"""How many of a hundred names are held out where there is one artist only."""


@dataclass(frozen=True)
class ImageTextSplits:
    """Images with text on the two sides of a split.

    Attributes:
        train: What is trained on.
        validation: What is held out.
        tokenizer: Makes ids of texts; save it with the model.
        processor: Makes pixel values of images; save it with the model.
        source: Where the pairs come from.
    """

    train: ImageTextRows
    validation: ImageTextRows
    tokenizer: "PreTrainedTokenizerBase"
    processor: Any
    source: str

    @property
    def model_fields(self) -> dict[str, Any]:
        """What a model's configuration takes from the data."""
        size = (self.processor.size["height"], self.processor.size["width"])
        return {
            "image_size": size[0] if size[0] == size[1] else list(size),
            "num_channels": self.train.images.num_channels,
            "vocab_size": len(self.tokenizer),
            "pad_token_id": self.tokenizer.pad_token_id,
        }

    @property
    def left_out(self) -> LeftOut:
        """The images that could not be read, of both sides."""
        return LeftOut(self.train.pairs.images.left_out.reasons | self.validation.pairs.images.left_out.reasons)

    def collate(self, augmentation: ImageAugmentation | None = None) -> ImageTextCollator:
        """What makes batches of rows, with augmentation for training."""
        return ImageTextCollator(self.tokenizer.pad_token_id, augmentation)

    def describe(self) -> str:
        """One sentence: how many pairs of how many texts, and what was left out."""
        size, bad = self.processor.size, self.left_out.describe()
        return (
            f"{self.source}: {len(self.train):,} training and {len(self.validation):,} validation images with "
            f"{len(set(self.train.texts)):,} and {len(set(self.validation.texts)):,} different texts, "
            f"{size['height']} x {size['width']} pixels{f'; {bad}' if bad else ''}"
        )


def load_image_text(
    *,
    name: str | None = None,
    source: str | Path | None = None,
    image_column: str | None = None,
    text_column: str | None = None,
    artist: str | None = None,
    validation: str | Path | None = None,
    validation_percent: float | None = None,
    split: str | None = None,
    subset: str | None = None,
    image_size: int | Sequence[int] | None = None,
    num_channels: int = 3,
    tokenizer: "PreTrainedTokenizerBase | Mapping[str, Any] | None" = None,
    longest_text: int = 64,
) -> ImageTextSplits:
    """Load images with text, and hold some out: the same ones every time.

    Of the emoji by four artists one artist is held out, so that every name is known and no drawing is; of a single
    artist's a tenth of the names. Of anything else `validation` is held out if given, else the texts that, hashed,
    fall below a percentage, so that no text stands on both sides.

    Args:
        name: A data set of the catalog.
        source: A table of images and texts (.csv, .tsv, .jsonl, .json, .parquet), a folder with one, a folder that
            `datasets` saved, or a data set's name on the Hub.
        image_column: The table's column with the image or its file; one with a usual name if None.
        text_column: The table's column with the text; one with a usual name if None.
        artist: Whose emoji are held out; openmoji if None, the hardest.
        validation: What is held out: a folder or table, or of a Hub data set a split.
        validation_percent: How many of a hundred texts are held out otherwise; 10 if None.
        split: The split of a Hub data set that is trained on; `train` if None.
        subset: A Hub data set's configuration.
        image_size: Height and width in pixels; the emoji's own if None, else 224.
        num_channels: 1 (gray) or 3 (color).
        tokenizer: A tokenizer, or which one is made of the training texts; one token a character if None.
        longest_text: The most tokens of a text, marks included.

    Raises:
        ValueError: An option has no meaning here or is out of range, or there is nothing that can be read.
        FileNotFoundError: There is no such file, folder or data set, or it has not been fetched yet.
    """
    check_origin(name, source)
    columns = {"image_column": image_column, "text_column": text_column}
    options = {"validation": validation, "validation_percent": validation_percent, "split": split, "subset": subset}
    if name is not None:
        refuse_with_own_split(name, {**columns, **options})
        find_collection(name, "images with text")
        train, held_out = _read_emoji(name, artist)
        title = describe_collection(name).split(" (")[0]
    else:
        if artist is not None:
            raise ValueError(f"data.artist ({artist!r}) has no meaning for a source: drop it, or use the set emoji")
        train, held_out = _read_source(str(source), columns, options)
        title = str(source)
    if image_size is None:
        own = train.images.images.shape[1:3] if isinstance(train.images.images, np.ndarray) else None
        size = own or (DEFAULT_SIZE, DEFAULT_SIZE)
    else:
        size = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
    processor = build_image_processor((int(size[0]), int(size[1])), num_channels)
    if tokenizer is None or isinstance(tokenizer, Mapping):
        texts = {str(number): text for number, text in enumerate(dict.fromkeys(train.texts))}
        tokenizer = build_tokenizer(tokenizer or {"kind": "char"}, texts)
    sides = [ImageTextRows(pairs, processor, tokenizer, longest_text) for pairs in (train, held_out)]
    return ImageTextSplits(sides[0], sides[1], tokenizer, processor, title)


def _read_emoji(name: str, artist: str | None) -> tuple[CaptionedImages, CaptionedImages]:
    """The two sides of a catalog set of emoji."""
    folder = collection_folder(name)
    names = [readable_name(each) for each, _ in read_names(folder)]
    sheets = {file.stem: file for file in sorted(folder.glob("*.webp"))}
    if len(sheets) == 1:
        if artist is not None:
            raise ValueError(f"data.artist ({artist!r}) cannot be held out of {name!r}, which has one artist: drop it")
        ((only, file),) = sheets.items()
        pairs = _captioned(read_sheet(file, len(names)), names, [f"{only}/{each}" for each in names])
        held = hold_out_groups(names, NAMES_PERCENT)
        rows = [[row for row, is_held in enumerate(held) if is_held is side] for side in (False, True)]
        return pairs.take(rows[0]), pairs.take(rows[1])
    artist = DEFAULT_ARTIST if artist is None else artist
    if artist not in sheets:
        raise ValueError(f"data.artist must be one of {', '.join(sheets)}, not {artist!r}")
    sides = []
    for side in ([each for each in sheets if each != artist], [artist]):
        pictures = np.concatenate([read_sheet(sheets[each], len(names)) for each in side])
        titles = [f"{each}/{word}" for each in side for word in names]
        sides.append(_captioned(pictures, names * len(side), titles))
    return sides[0], sides[1]


def _captioned(pictures: Any, texts: list[str], names: Sequence[str]) -> CaptionedImages:
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    labels = np.array([numbers[text] for text in texts], dtype=np.int64)
    return CaptionedImages(LabeledImages(pictures, labels, names, tuple(numbers)), texts)


def _read_source(
    source: str, columns: Mapping[str, str | None], options: Mapping[str, Any]
) -> tuple[CaptionedImages, CaptionedImages]:
    """The two sides of a source."""
    validation, percent = options["validation"], options["validation_percent"]
    check_held_out(validation, percent)
    path = Path(source).expanduser()
    is_remote = is_saved_dataset(path) or not (path.exists() or looks_like_a_path(source))
    train = _read_pairs(source, columns, options["split"] or "train", options["subset"], is_remote)
    if validation is not None:
        place, side = (source, str(validation)) if is_remote else (str(validation), "train")
        return train, _read_pairs(place, columns, side, options["subset"], is_remote)
    held = hold_out_groups(train.texts, DEFAULT_PERCENT if percent is None else percent)
    sides = [[row for row, is_held in enumerate(held) if is_held is side] for side in (False, True)]
    return train.take(sides[0]), train.take(sides[1])


def _read_pairs(
    source: str, columns: Mapping[str, str | None], split: str, subset: str | None, is_remote: bool
) -> CaptionedImages:
    """The pairs of a table, a folder with one, or a data set of `datasets`; those without text are left out."""
    path = Path(source).expanduser()
    if is_remote:
        rows = open_rows(source, split, subset)
    else:
        table = find_table(path, ("metadata", "captions")) if path.is_dir() else path
        if table is None:
            raise ValueError(
                f"a folder of images with text must hold a table of them, but {path} holds none: add captions.csv with "
                "the columns file and text"
            )
        rows = open_table(table)
    image = rows.find_column(columns["image_column"], IMAGE_COLUMNS, "data.image_column")
    text = rows.find_column(columns["text_column"], TEXT_COLUMNS, "data.text_column")
    texts = [str(value or "").strip() for value in rows.column(text)]
    kept = [row for row, words in enumerate(texts) if words]
    if not kept:
        raise ValueError(f"{rows.name} holds no text at all in its column {text!r}: name another as data.text_column")
    files = rows.column(image) if isinstance(rows[0][image], str) else [""] * len(rows)
    names = [f"{rows.name}:{row} {file or ''}".rstrip() for row, file in enumerate(files, start=1)]
    pairs = _captioned(LazyPictures(rows, image), texts, names)
    for row, words in enumerate(texts):
        if not words:
            pairs.images.left_out.add(names[row], "it has no text")
    pairs = pairs if len(kept) == len(texts) else pairs.take(kept)
    good = leave_out_damaged(pairs.images, rows.name)
    known = dict(zip(pairs.images.names, pairs.texts, strict=True))
    return CaptionedImages(good, [known[each] for each in good.names])
