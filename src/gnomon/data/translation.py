"""Pairs of sentences as batches for an encoder-decoder: `source end`, and `target end` to be predicted."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gnomon.data.encoding import encode_documents
from gnomon.data.packing import IGNORED_LABEL
from gnomon.data.tables import Row
from gnomon.data.tokenizers import document_marks

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class SentencePairs(torch.utils.data.Dataset):
    """Sentences and their translations, as ids and as text.

    Args:
        sources: The ids of every source, its end included.
        targets: The ids of every target, its end included.
        texts: Every pair as text, whole even where its ids were cut.
        num_skipped: How many pairs were left out for an empty side.
        num_too_long: How many were left out for their length, or cut.
    """

    def __init__(
        self,
        sources: Sequence[np.ndarray],
        targets: Sequence[np.ndarray],
        texts: Sequence[Row],
        *,
        num_skipped: int,
        num_too_long: int,
    ):
        self.sources = sources
        self.targets = targets
        self.texts = texts
        self.num_skipped = num_skipped
        self.num_too_long = num_too_long
        self.lengths = np.array([max(len(s), len(t)) for s, t in zip(sources, targets, strict=True)])

    @property
    def sequence_length(self) -> int:
        """The mean length, for cost accounting."""
        return max(1, round(float(self.lengths.mean())))

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {
            "input_ids": torch.from_numpy(self.sources[index].astype(np.int64)),
            "labels": torch.from_numpy(self.targets[index].astype(np.int64)),
        }


def encode_pairs(
    rows: Sequence[Row], tokenizer: "PreTrainedTokenizerBase", sequence_length: int, *, cut: bool
) -> SentencePairs:
    """Encode rows of (source, target); a pair with an empty side is counted and left out.

    Args:
        rows: Of one side of the split.
        tokenizer: Of both languages, with a `bos` or an `eos` token.
        sequence_length: The longest side, its end included.
        cut: What becomes of longer pairs. True, to evaluate on: they are cut, so that no sentence goes unscored;
            False, to train on: they are left out, since half a sentence is no translation. Either way they are
            counted.

    Raises:
        ValueError: No pair is left.
    """
    kept = [(source, target) for source, target in rows if source.strip() and target.strip()]
    if not kept:
        raise ValueError(
            f"none of the {len(rows)} pairs has a source and a target: see data.source_column and data.target_column"
        )
    _, end = document_marks(tokenizer)
    sides = [list(encode_documents([pair[side] for pair in kept], tokenizer)) for side in range(2)]
    room = sequence_length - 1
    fits = [max(len(source), len(target)) <= room for source, target in zip(*sides, strict=True)]
    chosen = [number for number, fit in enumerate(fits) if fit or cut]
    if not chosen:
        raise ValueError(
            f"all {len(kept)} pairs are longer than data.sequence_length {sequence_length}: raise it, up to the "
            "model's max_position_embeddings"
        )
    sources, targets = ([np.append(side[number][:room], end).astype(np.int32) for number in chosen] for side in sides)
    return SentencePairs(
        sources,
        targets,
        [kept[number] for number in chosen],
        num_skipped=len(rows) - len(kept),
        num_too_long=fits.count(False),
    )


def collate_pairs(
    rows: Sequence[Mapping[str, Any]], *, pad_token_id: int, start_token_id: int
) -> dict[str, torch.Tensor]:
    """Stack pairs into a batch, filled on the right.

    Args:
        rows: Each with the ids of a source and of a target.
        pad_token_id: What fills ids.
        start_token_id: What the decoder reads first.

    Returns:
        `input_ids` and `attention_mask` of the sources; `labels`, -100 where filled; and `decoder_input_ids`, the
        labels moved right by one behind the start.
    """
    pad = torch.nn.utils.rnn.pad_sequence
    labels = [row["labels"] for row in rows]
    start = torch.tensor([start_token_id])
    return {
        "input_ids": pad([row["input_ids"] for row in rows], batch_first=True, padding_value=pad_token_id),
        "attention_mask": pad([torch.ones_like(row["input_ids"]) for row in rows], batch_first=True),
        "labels": pad(labels, batch_first=True, padding_value=IGNORED_LABEL),
        "decoder_input_ids": pad(
            [torch.cat([start, ids[:-1]]) for ids in labels], batch_first=True, padding_value=pad_token_id
        ),
    }
