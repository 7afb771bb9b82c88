"""Rows of images with text, and batches of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from gnomon.data.augmentation import ImageAugmentation, denormalize, normalize
from gnomon.data.encoding import encode_documents
from gnomon.data.image_processing import DEVIATION, MEAN
from gnomon.data.images import LabeledImages
from gnomon.data.tokenizers import document_marks
from gnomon.data.vision import ImageRows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass
class CaptionedImages:
    """Images with a text each.

    Attributes:
        images: The images; their labels number the distinct texts.
        texts: Each image's text.
    """

    images: LabeledImages
    texts: list[str]

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, rows: Sequence[int]) -> "CaptionedImages":
        """Some of the images."""
        return CaptionedImages(self.images.take(rows), [self.texts[row] for row in rows])


class ImageTextRows(Dataset[dict[str, torch.Tensor]]):
    """Pairs as `pixel_values` (channels, height, width), `input_ids` and `attention_mask` (length,).

    A text stands between the tokenizer's marks for a document's start and end.

    Args:
        pairs: The images with their texts.
        processor: What `build_image_processor` made.
        tokenizer: Any with a `bos` or an `eos` token.
        longest_text: The most tokens of a text, marks included; a longer one is cut, and counted.

    Raises:
        ValueError: There is no room for a token between the marks.
    """

    def __init__(
        self, pairs: CaptionedImages, processor: Any, tokenizer: "PreTrainedTokenizerBase", longest_text: int = 64
    ) -> None:
        if longest_text < 3:
            raise ValueError(f"a text needs room for at least 3 tokens, two marks among them, not {longest_text}")
        self.pairs, self.images, self.tokenizer = pairs, ImageRows(pairs.images, processor), tokenizer
        start, end = document_marks(tokenizer)
        encoded = list(encode_documents(pairs.texts, tokenizer))
        self.token_ids = [
            torch.tensor([start, *ids[: longest_text - 2].tolist(), end], dtype=torch.long) for ids in encoded
        ]
        self.num_truncated = sum(len(ids) > longest_text - 2 for ids in encoded)

    def __len__(self) -> int:
        return len(self.pairs)

    @property
    def texts(self) -> list[str]:
        """Every row's text."""
        return self.pairs.texts

    @property
    def lengths(self) -> list[int]:
        """Every row's tokens, without decoding an image."""
        return [len(ids) for ids in self.token_ids]

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """One row; a damaged image is replaced together with its text by the next good pair, and listed."""
        for step in range(len(self)):
            row = (index + step) % len(self)
            try:
                array = self.images.array(row)
            except ValueError as error:
                self.pairs.images.left_out.add_late(self.pairs.images.names[row], str(error))
                continue
            ids = self.token_ids[row]
            return {
                "pixel_values": self.images.pixel_values(array),
                "input_ids": ids,
                "attention_mask": torch.ones_like(ids),
            }
        raise ValueError(f"no image can be read any more ({self.pairs.images.left_out.describe(shown=1)})")

    def pixels(self) -> np.ndarray:
        """All images as flat vectors of pixel values (rows, channels * height * width), for the baselines."""
        return self.images.pixels()


class ImageTextCollator:
    """Rows to a batch: `pixel_values`, and `input_ids` and `attention_mask` filled on the right.

    Args:
        pad_token_id: What fills `input_ids`.
        augmentation: Changes the images, for training; without mixup, as there is nothing to mix of two texts.

    Raises:
        ValueError: The augmentation mixes images.
    """

    def __init__(self, pad_token_id: int, augmentation: ImageAugmentation | None = None) -> None:
        if augmentation is not None and augmentation.mixup:
            raise ValueError(f"images with text cannot be mixed (mixup is {augmentation.mixup}): set mixup to 0")
        self.pad_token_id, self.augmentation = pad_token_id, augmentation

    def __call__(self, rows: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """One batch."""
        pixel_values = torch.stack([row["pixel_values"] for row in rows])
        if self.augmentation is not None:
            nothing = torch.zeros(len(rows), dtype=torch.long)
            images, _ = self.augmentation(denormalize(pixel_values, MEAN, DEVIATION), nothing, 1)
            pixel_values = normalize(images, MEAN, DEVIATION)
        ids, masks = ([row[key] for row in rows] for key in ("input_ids", "attention_mask"))
        return {
            "pixel_values": pixel_values,
            "input_ids": pad_sequence(ids, batch_first=True, padding_value=self.pad_token_id),
            "attention_mask": pad_sequence(masks, batch_first=True),
        }
