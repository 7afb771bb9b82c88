"""Images and texts that belong together, found by two towers."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gnomon.data.augmentation import ImageAugmentation
from gnomon.data.image_text import ImageTextSplits, load_image_text
from gnomon.data.image_text_rows import CaptionedImages, ImageTextCollator, ImageTextRows
from gnomon.data.tokenizers import load_tokenizer
from gnomon.evaluation.baselines import nearest_neighbor_accuracy
from gnomon.evaluation.retrieval import RetrievalScore, evaluate_retrieval
from gnomon.models.sizes import extents, resolve
from gnomon.training.data_options import DataOptions
from gnomon.training.options import Recipe
from gnomon.training.records import read_json
from gnomon.training.tasks import ORIGIN_KEYS
from gnomon.training.tasks.image_rows import augmentation_of, count_images
from gnomon.training.tasks.image_rows import load_processor as load_image_processor
from gnomon.training.tasks.task import Collate, DrawnRows, Task
from gnomon.training.tasks.text import pad_id, recipe_tokenizer

LONGEST_TEXT = 64
"""Tokens of the longest text, marks included, where the recipe does not say."""


@dataclass(frozen=True)
class ImageTextProcessor:
    """What makes numbers of images and of texts; saved beside a model as transformers has them.

    Attributes:
        image_processor: Images to pixel values.
        tokenizer: Texts to ids.
    """

    image_processor: Any
    tokenizer: PreTrainedTokenizerBase

    def __len__(self) -> int:
        """The tokenizer's ids."""
        return len(self.tokenizer)

    @property
    def bos_token_id(self) -> int | None:
        """What begins a text."""
        return self.tokenizer.bos_token_id

    @property
    def eos_token_id(self) -> int | None:
        """What ends a text."""
        return self.tokenizer.eos_token_id

    @property
    def pad_token_id(self) -> int | None:
        """What fills a batch."""
        return self.tokenizer.pad_token_id

    def save_pretrained(self, folder: str) -> None:
        """Write both."""
        self.image_processor.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


class PairSet(DrawnRows):
    """Images with a text each, all of a side or some.

    Args:
        rows: All of them.
        augmentation: Random changes of training images, or None.
        count: How many are taken, evenly spread; all if None.
    """

    def __init__(
        self, rows: ImageTextRows, augmentation: ImageAugmentation | None = None, count: int | None = None
    ) -> None:
        super().__init__(rows, len(rows) if count is None else count)
        self.augmentation = augmentation
        self.texts = [rows.texts[self.place(index)] for index in range(self.count)]
        self.lengths, self.num_truncated = [1] * self.count, rows.num_truncated  # texts of any length, side by side
        self.pairs, self.images = rows.pairs, rows.images

    def part(self, count: int) -> "PairSet":
        """Some of the rows."""
        return PairSet(self.rows, self.augmentation, count)

    def collator(self, model: PreTrainedModel) -> Collate:
        """What makes a batch of training rows."""
        return partial(self.collate_drawn, collate=ImageTextCollator(pad_id(self.rows.tokenizer), self.augmentation))

    def mean_length(self) -> int:
        """Tokens of a text, on average."""
        return max(1, sum(self.rows.lengths) // len(self.rows))


def load(data: DataOptions) -> ImageTextSplits:
    """Images with texts, of both sides; those that cannot be read are named once."""
    keys = {*ORIGIN_KEYS, "image_column", "text_column", "artist", "image_size"}
    splits = load_image_text(**data.model_dump(include=keys), num_channels=data.num_channels or 3)
    if splits.left_out.reasons:
        logging.getLogger("gnomon").warning("%s", splits.describe())
    return splits


def build_processor(recipe: Recipe, rows: ImageTextRows) -> ImageTextProcessor:
    """The recipe's tokenizer, and the data's image processor, which has to make what the model reads.

    Raises:
        ValueError: The model has no two towers, or reads images of another size or number of channels.
    """
    checkpoint = recipe.model.get("checkpoint")
    written = read_json(Path(checkpoint) / "config.json") if checkpoint else recipe.model
    if not written.get("vision_config"):
        raise ValueError(f"task {recipe.task} needs a model of two towers; give model.vision_config and text_config.")
    fields, processor = resolve(written["vision_config"]), rows.images.processor
    size, wanted = (processor.size["height"], processor.size["width"]), extents(fields["image_size"])
    if size != wanted or rows.images.num_channels != fields["num_channels"]:
        raise ValueError(
            f"the model reads {fields['num_channels']} channels of {wanted[0]} x {wanted[1]} pixels, and the data give "
            f"{rows.images.num_channels} of {size[0]} x {size[1]}; set data.image_size and data.num_channels, or those "
            "of model.vision_config."
        )
    texts = {str(number): text for number, text in enumerate(dict.fromkeys(rows.texts))}
    return ImageTextProcessor(processor, recipe_tokenizer(recipe, texts))


def load_processor(folder: Path, model: PreTrainedModel) -> ImageTextProcessor:
    """What was saved with a model."""
    return ImageTextProcessor(load_image_processor(folder, model), load_tokenizer(folder))


def encode(
    rows: ImageTextRows, processor: ImageTextProcessor, data: DataOptions, labels: Sequence[str], training: bool
) -> PairSet:
    """Pixel values and ids, with augmentation for training."""
    longest = data.sequence_length or LONGEST_TEXT
    pairs = ImageTextRows(rows.pairs, processor.image_processor, processor.tokenizer, longest)
    return PairSet(pairs, augmentation_of(data) if training else None)


def make_collate(processor: ImageTextProcessor, model: PreTrainedModel) -> Collate:
    """Images of one size are stacked, texts filled on the right."""
    return ImageTextCollator(pad_id(processor.tokenizer))


def loss(model: Any, batch: Mapping[str, Tensor], num_targets: Any, label_smoothing: float) -> Tensor:
    """The contrast within a micro-batch.

    Raises:
        ValueError: Labels are to be smoothed, and there are none.
    """
    if label_smoothing:
        raise ValueError(f"label_smoothing is {label_smoothing}, and pairs have no labels; leave it at 0.")
    found: Tensor = model(**batch, return_loss=True).loss
    return found


def evaluate(model: PreTrainedModel, rows: Any, processor: ImageTextProcessor, batch_size: int) -> RetrievalScore:
    """Recall of the right text among all, and of the right image."""
    return evaluate_retrieval(model, rows, collate=make_collate(processor, model), batch_size=batch_size)


def baselines(train: PairSet, validation: PairSet) -> dict[str, dict[str, float]]:
    """The text of the training image whose pixels are nearest."""
    numbers = {text: number for number, text in enumerate(dict.fromkeys((*train.texts, *validation.texts)))}
    known, asked = (np.array([numbers[text] for text in side.texts]) for side in (train, validation))
    found = nearest_neighbor_accuracy(train.rows.pixels(), known, validation.rows.pixels(), asked)
    return {"nearest neighbor": {"image_to_text_recall_at_1": found}}


def join(splits: ImageTextSplits) -> ImageTextRows:
    """The pairs of both sides.

    Raises:
        ValueError: They are not held in memory as one array each.
    """
    sides = (splits.train.pairs, splits.validation.pairs)
    if not all(isinstance(side.images.images, np.ndarray) for side in sides):
        raise ValueError("--split all is for a set of the catalog; score validation and train one after the other.")
    texts = [text for side in sides for text in side.texts]
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    first = sides[0].images
    images = type(first)(
        np.concatenate([side.images.images for side in sides]),
        np.array([numbers[text] for text in texts], dtype=np.int64),
        [name for side in sides for name in side.images.names],
        tuple(numbers),
    )
    return ImageTextRows(CaptionedImages(images, texts), splits.processor, splits.tokenizer)


def settled(config: Any) -> dict[str, Any]:
    """The keys of `data` that a trained model has settled."""
    return {"image_size": config.vision_config.image_size, "num_channels": config.vision_config.num_channels}


TASK = Task(
    measures=("recall_at_1",),
    load=load,
    build_processor=build_processor,
    encode=encode,
    collate=make_collate,
    evaluate=evaluate,
    loss=loss,
    baselines=baselines,
    count=count_images,
    unit="images",
    classes=lambda config: 1,  # what guessing costs follows from the batch: the first loss stands for it
    part=PairSet.part,
    length=PairSet.mean_length,
    load_processor=load_processor,
    join=join,
    settled=settled,
)
