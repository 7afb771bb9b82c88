"""Texts with a label each, as batches for a classifier: `start text end`, padded on the right."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gnomon.data.encoding import encode_documents
from gnomon.data.tables import Row
from gnomon.data.tokenizers import document_marks

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class LabeledText(torch.utils.data.Dataset):
    """Texts as ids, and the number of each one's label.

    Args:
        sequences: The ids of every text, its marks included.
        labels: The number of every text's label.
        num_skipped: How many rows had no text and were left out.
        num_truncated: How many texts were cut.
    """

    def __init__(self, sequences: Sequence[np.ndarray], labels: np.ndarray, num_skipped: int, num_truncated: int):
        self.sequences = sequences
        self.labels = labels
        self.num_skipped = num_skipped
        self.num_truncated = num_truncated
        self.lengths = np.array([len(ids) for ids in sequences])

    @property
    def sequence_length(self) -> int:
        """The mean length, for cost accounting."""
        return max(1, round(float(self.lengths.mean())))

    def __len__(self) -> int:
        return len(self.sequences)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {
            "input_ids": torch.from_numpy(self.sequences[index].astype(np.int64)),
            "labels": torch.tensor(int(self.labels[index])),
        }


def label_names(rows: Sequence[Row]) -> list[str]:
    """The labels that occur in training rows of (text, label), sorted; an empty label is none.

    Raises:
        ValueError: There are fewer than two.
    """
    names = sorted({label for text, label in rows if text.strip() and label})
    if len(names) < 2:
        raise ValueError(f"a classifier needs at least two different labels, and the training rows have {names}")
    return names


def encode_labeled(
    rows: Sequence[Row], tokenizer: "PreTrainedTokenizerBase", sequence_length: int, names: Sequence[str]
) -> LabeledText:
    """Encode rows of (text, label); those without text or without label are counted and left out.

    Args:
        rows: Of one side of the split.
        tokenizer: Any with a `bos` or an `eos` token, which begin and end every text.
        sequence_length: The longest sequence, marks included; a longer text is cut, and counted.
        names: The labels by their number, as `label_names` gives them.

    Raises:
        ValueError: No row is left, a label is unknown, or there is no room for text between the marks.
    """
    if sequence_length < 3:
        raise ValueError(f"data.sequence_length must be at least 3, two marks and a token, not {sequence_length}")
    kept = [(text, label) for text, label in rows if text.strip() and label]
    if not kept:
        raise ValueError(f"none of the {len(rows)} rows has a text and a label: see data.column and data.label_column")
    numbers = {name: number for number, name in enumerate(names)}
    unknown = sorted({label for _, label in kept} - set(numbers))
    if unknown:
        raise ValueError(
            f"the label {unknown[0]!r} ({len(unknown)} such) is none of the {len(names)} that the classifier has "
            f"({', '.join(names[:5])}, ...): hold out rows of labels that are trained on"
        )
    start, end = document_marks(tokenizer)
    encoded = list(encode_documents([text for text, _ in kept], tokenizer))
    room = sequence_length - 2
    sequences = [np.concatenate([[start], ids[:room], [end]]).astype(np.int32) for ids in encoded]
    return LabeledText(
        sequences,
        np.array([numbers[label] for _, label in kept]),
        num_skipped=len(rows) - len(kept),
        num_truncated=sum(len(ids) > room for ids in encoded),
    )


def collate_labeled(rows: Sequence[Mapping[str, Any]], pad_token_id: int = 0) -> dict[str, torch.Tensor]:
    """Stack texts into a batch, filled on the right.

    Args:
        rows: Each with `input_ids` and a label.
        pad_token_id: What fills `input_ids`, where `attention_mask` (1 = keep) is 0.

    Returns:
        `input_ids`, `attention_mask` and `labels` (batch,).
    """
    pad = torch.nn.utils.rnn.pad_sequence
    return {
        "input_ids": pad([row["input_ids"] for row in rows], batch_first=True, padding_value=pad_token_id),
        "attention_mask": pad([torch.ones_like(row["input_ids"]) for row in rows], batch_first=True),
        "labels": torch.stack([row["labels"] for row in rows]),
    }


def majority_label(labels: np.ndarray) -> int:
    """The label that occurs most often; of equals the first."""
    return min(Counter(labels.tolist()).items(), key=lambda item: (-item[1], item[0]))[0]
