"""Turn long texts into arrays of token ids: all of it, in bounded memory."""

import copy
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

BLOCK_CHARACTERS = 1 << 22
"""How much text is encoded at once: enough to use all cores, and a bound on the memory that encodings take."""


def encode_documents(texts: Sequence[str], tokenizer: "PreTrainedTokenizerBase") -> Iterator[np.ndarray]:
    """The ids of each text, without marks, and never cut to the model's maximum length.

    Raises:
        ValueError: The tokenizer finds no token in a text.
    """
    encode, cut = _encoder(tokenizer)
    pieces = ((number, piece) for number, text in enumerate(texts) for piece in cut(text))
    encoded = (
        (number, np.array(ids, dtype=np.int32))
        for block in _blocks(pieces)
        for (number, _), ids in zip(block, encode([piece for _, piece in block]), strict=True)
    )
    for number, group in groupby(encoded, key=itemgetter(0)):
        ids = np.concatenate([piece_ids for _, piece_ids in group])
        if not len(ids):
            raise ValueError(
                f"the tokenizer finds no token in the document that begins {texts[number][:20]!r}: drop it"
            )
        yield ids


def _encoder(
    tokenizer: "PreTrainedTokenizerBase",
) -> tuple[Callable[[list[str]], Iterable[list[int]]], Callable[[str], Iterable[str]]]:
    """How texts become ids, and how a long text may be cut without changing them."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:

        def encode_slowly(texts: list[str]) -> Iterable[list[int]]:
            options = {"add_special_tokens": False, "truncation": False, "split_special_tokens": True}
            return [tokenizer.encode(text, **options) for text in texts]

        return encode_slowly, lambda text: [text]
    # A copy, because the settings below belong to the tokenizer's owner.
    backend = copy.deepcopy(backend)
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True

    def encode(texts: list[str]) -> Iterable[list[int]]:
        return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]

    return encode, cut_at_lines if treats_lines_alone(backend) else lambda text: [text]


def treats_lines_alone(backend: "Tokenizer") -> bool:
    """Whether a text may be cut before any line break that follows a visible character, with the same ids.

    So it is where the text is split there anyway: by this library's character tokenizer, and by GPT-2's words of
    all byte-level ones, none of which begins with a visible character and goes on with white space.
    """
    if backend.normalizer is not None or backend.pre_tokenizer is None:
        return False
    state = json.loads(backend.pre_tokenizer.__getstate__())
    if state["type"] == "Split":
        return state["pattern"] == {"String": "\n"} and state["behavior"] == "MergedWithNext"
    return state["type"] == "ByteLevel" and not state["add_prefix_space"]


def cut_at_lines(text: str, size: int = BLOCK_CHARACTERS // 4) -> Iterator[str]:
    """Pieces of a text of at least `size` characters (but the last), cut before a line break."""
    start = 0
    boundary = re.compile(r"(?<=\S)\n")
    while start < len(text):
        found = boundary.search(text, start + size)
        end = found.start() if found else len(text)
        yield text[start:end]
        start = end


def _blocks(pieces: Iterable[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    """Groups of numbered texts of about BLOCK_CHARACTERS together, each with at least one."""
    block: list[tuple[int, str]] = []
    size = 0
    for number, text in pieces:
        if block and size + len(text) > BLOCK_CHARACTERS:
            yield block
            block, size = [], 0
        block.append((number, text))
        size += len(text)
    yield block
