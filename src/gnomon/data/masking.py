"""Text with some of its tokens hidden, for a model that reads both ways and says what they were."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from gnomon.data.packing import IGNORED_LABEL, PackedText

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

DEFAULT_MASK_PROBABILITY = 0.15
HIDDEN_SHARE, REPLACED_SHARE = 0.8, 0.1
"""Of the chosen tokens, how many become the mask and how many another token; the rest stays as it is."""


def mask_tokens(
    ids: np.ndarray,
    maskable: np.ndarray,
    *,
    mask_id: int,
    replacements: np.ndarray,
    probability: float,
    generator: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Choose tokens to be predicted and hide them: 80% behind the mask, 10% behind another token, 10% not at all.

    Source: BERT (arXiv 1810.04805), section 3.1 and appendix A.1. Differs: each token is chosen independently, and
    where none would be, one is, so that every sequence with text teaches something.

    Args:
        ids: A sequence, (length,).
        maskable: Which of them may be chosen.
        mask_id: The mask's id.
        replacements: The ids that a token may be replaced by.
        probability: Of being chosen.
        generator: Where chance comes from.

    Returns:
        The ids as the model sees them, and the labels: the true ids where chosen, -100 elsewhere.
    """
    chosen = (generator.random(len(ids)) < probability) & maskable
    if maskable.any() and not chosen.any():
        chosen[generator.choice(np.flatnonzero(maskable))] = True
    kind = generator.random(len(ids))
    others = replacements[generator.integers(len(replacements), size=len(ids))]
    seen = np.where(chosen & (kind < HIDDEN_SHARE), mask_id, ids)
    replaced = chosen & (kind >= HIDDEN_SHARE) & (kind < HIDDEN_SHARE + REPLACED_SHARE)
    return np.where(replaced, others, seen), np.where(chosen, ids, IGNORED_LABEL)


class MaskableText(torch.utils.data.Dataset):
    """The windows of a packed text, each begun by a start mark; every token of the text lies in exactly one.

    Args:
        packed: The text; its windows, made to predict the next token, are cut anew here.
        special_ids: Marks, which are neither hidden nor predicted.
    """

    def __init__(self, packed: PackedText, special_ids: Sequence[int]):
        self.packed = packed
        self.special_ids = np.array(sorted(special_ids))
        self.sequence_length = packed.sequence_length
        self.num_characters = packed.num_characters
        self.num_bytes = packed.num_bytes
        self.num_unknown = packed.num_unknown
        # The mark before the first document is the first window's start.
        self._body = packed.ids[1:-1]

    @property
    def text_ids(self) -> np.ndarray:
        """Every id of the text, without marks."""
        return self._body[~np.isin(self._body, self.special_ids)]

    def __len__(self) -> int:
        return -(-len(self._body) // (self.sequence_length - 1))

    def window(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """The ids of a window, and which of them may be hidden."""
        if not 0 <= index < len(self):
            raise IndexError(f"there are {len(self)} windows, and none of number {index}")
        body = self._body[index * (self.sequence_length - 1) :][: self.sequence_length - 1]
        ids = np.concatenate([[self.packed.start_id], body]).astype(np.int64)
        return ids, ~np.isin(ids, self.special_ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids, maskable = self.window(index)
        return {"input_ids": torch.from_numpy(ids), "maskable": torch.from_numpy(maskable)}


class MaskedText(torch.utils.data.Dataset):
    """Windows with tokens hidden at random, anew in every epoch.

    The choice depends on seed, stage, epoch and window and on nothing else, so that a run which is continued sees
    what it would have seen, whatever has drawn random numbers in between.

    Args:
        windows: The text.
        tokenizer: With a mask token.
        probability: Of a token's being chosen.
    """

    def __init__(
        self,
        windows: MaskableText,
        tokenizer: "PreTrainedTokenizerBase",
        probability: float = DEFAULT_MASK_PROBABILITY,
    ):
        self.windows = windows
        self.sequence_length = windows.sequence_length
        self.mask_id = mask_id_of(tokenizer)
        self.probability = probability
        self.replacements = np.setdiff1d(np.arange(len(tokenizer)), windows.special_ids)
        self._key: tuple[int, ...] = (0, 0, 0)

    def begin_epoch(self, *key: int) -> None:
        """Choose the masks that come next, by seed, stage and epoch."""
        self._key = key

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids, maskable = self.windows.window(index)
        seen, labels = mask_tokens(
            ids,
            maskable,
            mask_id=self.mask_id,
            replacements=self.replacements,
            probability=self.probability,
            generator=np.random.default_rng([*self._key, index]),
        )
        return {"input_ids": torch.from_numpy(seen), "labels": torch.from_numpy(labels)}


def mask_id_of(tokenizer: "PreTrainedTokenizerBase") -> int:
    """The id of a tokenizer's mask.

    Raises:
        ValueError: It has none.
    """
    if tokenizer.mask_token_id is None:
        raise ValueError(
            "a masked language model needs a tokenizer with a mask_token, and this one has none: let the recipe train "
            "one (tokenizer: {kind: bpe}), or set tokenizer.mask_token and save it"
        )
    return int(tokenizer.mask_token_id)
