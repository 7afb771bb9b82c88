"""Pack documents into fixed-length sequences for next-token prediction, losing and repeating nothing.

The documents become one stream of ids, a mark before each and after the last:

    <|endoftext|> first document <|endoftext|> second document <|endoftext|>

which is cut into windows of `sequence_length` ids. Neighbors share one id: the last of a window, predicted there, is
the first of the next, given there. So of the N ids of the stream every one but the first is predicted exactly once,
every character of the text and every document's end included, in ceil((N - 1) / (sequence_length - 1)) windows. The
last window may be shorter. A window may hold several documents; attention reaches across their marks.
A tokenizer with different `bos` and `eos` writes both, `bos document eos`, and no `bos` is predicted.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gnomon.data.encoding import encode_documents
from gnomon.data.tokenizers import document_marks

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IGNORED_LABEL = -100
"""The label of an id that is not predicted."""


class PackedText(torch.utils.data.Dataset):
    """The windows of a packed text, as a map-style torch data set over one array of ids.

    An array rather than a `datasets.Dataset`: a window is a slice of it, so nothing is copied, cached on disk or
    read again when a run resumes, and the order of an epoch is the sampler's alone.

    Args:
        ids: The stream of ids.
        sequence_length: How many ids a window holds, at least 2.
        start_id: The mark before a document.
        end_id: The mark after a document.
        num_documents: How many documents the stream holds.
        num_characters: How many characters they hold.
        num_bytes: How many bytes they take as UTF-8.
        num_unknown: How many ids stand for text that the tokenizer does not know.
    """

    def __init__(
        self,
        ids: np.ndarray,
        sequence_length: int,
        *,
        start_id: int,
        end_id: int,
        num_documents: int,
        num_characters: int,
        num_bytes: int,
        num_unknown: int,
    ):
        self.ids = ids
        self.sequence_length = sequence_length
        self.start_id = start_id
        self.end_id = end_id
        self.num_documents = num_documents
        self.num_characters = num_characters
        self.num_bytes = num_bytes
        self.num_unknown = num_unknown

    @property
    def num_predicted(self) -> int:
        """How many ids are predicted in one pass over the windows."""
        unpredicted = 1 if self.start_id == self.end_id else self.num_documents
        return len(self.ids) - unpredicted

    def __len__(self) -> int:
        return -(-(len(self.ids) - 1) // (self.sequence_length - 1))

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self)} windows, and none of number {index}")
        start = (index % len(self)) * (self.sequence_length - 1)
        window = torch.from_numpy(self.ids[start : start + self.sequence_length].astype(np.int64))
        labels = window.clone()
        labels[0] = IGNORED_LABEL
        if self.start_id != self.end_id:
            labels[window == self.start_id] = IGNORED_LABEL
        return {"input_ids": window, "labels": labels}


def pack(
    documents: Mapping[str, str],
    tokenizer: "PreTrainedTokenizerBase",
    sequence_length: int,
    *,
    allow_short: bool = False,
) -> PackedText:
    """Encode documents and pack them into windows, in the order in which they are given.

    Args:
        documents: Name -> text.
        tokenizer: Any tokenizer with a `bos` or an `eos` token. Its special tokens are not recognized in the text.
        sequence_length: How many ids a window holds, at least 2.
        allow_short: Whether the whole text may be shorter than one window: to evaluate on, not to train on.

    Returns:
        The windows, each a mapping of `input_ids` and `labels` (shifted by the model, not here).

    Raises:
        ValueError: The sequence length is too small, or there is no text, or less than one window of it.
    """
    if isinstance(sequence_length, bool) or not isinstance(sequence_length, int) or sequence_length < 2:
        raise ValueError(
            f"data.sequence_length must be a whole number of at least 2, not {sequence_length!r}: "
            "one id to read and one to predict"
        )
    texts = [text for text in documents.values() if text]
    if not texts:
        raise ValueError("the text is empty, so there is nothing to predict: give at least one document with text")
    start_id, end_id = document_marks(tokenizer)
    head = [end_id, start_id] if start_id != end_id else [end_id]
    unknown_id, num_unknown = tokenizer.unk_token_id, 0
    parts = [np.array([start_id], dtype=np.int32)]
    for ids in encode_documents(texts, tokenizer):
        if unknown_id is not None:
            num_unknown += int(np.count_nonzero(ids == unknown_id))
        parts += [ids, np.array(head, dtype=np.int32)]
    parts[-1] = np.array([end_id], dtype=np.int32)
    stream = np.concatenate(parts)
    if len(stream) < sequence_length and not allow_short:
        raise ValueError(
            f"the text makes {len(stream)} tokens, fewer than one sequence of {sequence_length}: "
            "lower data.sequence_length or give more text"
        )
    return PackedText(
        stream,
        sequence_length,
        start_id=start_id,
        end_id=end_id,
        num_documents=len(texts),
        num_characters=sum(map(len, texts)),
        num_bytes=sum(len(text.encode("utf-8")) for text in texts),
        num_unknown=num_unknown,
    )


def collate(rows: Sequence[Mapping[str, Any]], pad_token_id: int = 0) -> dict[str, torch.Tensor]:
    """Stack windows into a batch; shorter ones are filled on the right.

    Args:
        rows: Windows, each with `input_ids` and `labels`.
        pad_token_id: What fills `input_ids`. Any id will do: the labels there are -100, and `attention_mask`
            (1 = keep), which a batch with filling alone has, is 0.

    Returns:
        `input_ids`, `labels` and, where windows were filled, `attention_mask`.
    """
    lengths = [len(row["input_ids"]) for row in rows]

    def stack(tensors: Iterable[torch.Tensor], value: int) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence(list(tensors), batch_first=True, padding_value=value)

    batch = {
        "input_ids": stack((row["input_ids"] for row in rows), pad_token_id),
        "labels": stack((row["labels"] for row in rows), IGNORED_LABEL),
    }
    if min(lengths) < max(lengths):
        batch["attention_mask"] = stack((torch.ones(length, dtype=torch.int64) for length in lengths), 0)
    return batch
