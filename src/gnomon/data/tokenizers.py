"""Tokenizers: bytes, characters, byte-level BPE, or any that a folder holds.

All are ordinary `PreTrainedTokenizerFast`s: `save_pretrained` writes them, `AutoTokenizer` reads them back, and
decoding gives the text that was encoded, character by character. The built ones have two special tokens, whose ids
follow the vocabulary's own:

- `<|endoftext|>` is `bos` and `eos` in one. Packing writes it before every document and after the last, so that
  a document's first token is predicted from a known start, its end is learned, and a prompt-free sample begins
  like a document. One token suffices, because an end is always followed by a start.
- `<|pad|>` is a token of its own: collators that hide padding from the loss would hide an `eos` used as padding too.
- `<|mask|>` is there where a task asks for it.

Text that happens to contain such a name stays text: no document can forge its own end. A tokenizer without a mask
stays so wherever it is used (`split_special_tokens`), one with a mask where gnomon reads data.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

SEPARATOR = "<|endoftext|>"
PADDING = "<|pad|>"
UNKNOWN = "<|unknown|>"
MASK = "<|mask|>"

KINDS = ("byte", "char", "bpe")
DEFAULT_BPE_SIZE = 4096
NUM_BYTES = 256


def build_tokenizer(
    spec: Mapping[str, Any],
    documents: Mapping[str, str] | None = None,
    special_tokens: Mapping[str, str] | None = None,
) -> "PreTrainedTokenizerBase":
    """The tokenizer that a recipe asks for.

    Args:
        spec: `{kind: byte}`, `{kind: char}`, `{kind: bpe, vocab_size: N}` or `{folder: DIR}`.
        documents: Name -> TRAINING text: the alphabet of `char` and the merges of `bpe` are taken from it, and
            never from held-out text. Not needed for `byte` and for a folder.
        special_tokens: What a task needs beyond marks and padding, such as `{mask_token: MASK}`; a tokenizer from a
            folder brings its own.

    Raises:
        ValueError: The specification is incomplete or contradicts itself, or the text does not yield a vocabulary
            of that size.
        FileNotFoundError: There is no such folder.
    """
    unknown = sorted(set(spec) - {"kind", "vocab_size", "folder"})
    if unknown:
        raise ValueError(f"a tokenizer has the keys kind, vocab_size and folder, not {unknown[0]!r}: drop it")
    kind, folder, size = spec.get("kind"), spec.get("folder"), spec.get("vocab_size")
    if (kind is None) == (folder is None):
        raise ValueError(
            f"a tokenizer needs either a kind ({', '.join(KINDS)}) or a folder, not "
            f"{'neither' if kind is None else 'both'}: write for example tokenizer: {{kind: char}}"
        )
    if size is not None and kind != "bpe":
        raise ValueError(f"tokenizer.vocab_size ({size}) can be chosen for kind bpe alone: drop it, or write kind: bpe")
    if folder is not None:
        return load_tokenizer(folder)
    special = dict(special_tokens or {})
    if kind == "byte":
        return wrap(byte_level_tokenizer(use_regex=False), **special)
    if kind not in KINDS:
        raise ValueError(f"tokenizer.kind must be one of {', '.join(KINDS)}, not {kind!r}")
    texts = [text for text in (documents or {}).values() if text]
    if not texts:
        raise ValueError(f"a tokenizer of kind {kind!r} is made from training text, and there is none")
    if kind == "char":
        return wrap(character_tokenizer(texts), unk_token=UNKNOWN, **special)
    return wrap(train_bpe(texts, DEFAULT_BPE_SIZE if size is None else size, num_special=2 + len(special)), **special)


def load_tokenizer(folder: str | Path) -> "PreTrainedTokenizerBase":
    """The tokenizer that a local folder holds; nothing is looked up on the network and none of its code runs.

    Raises:
        FileNotFoundError: There is no such folder.
        ValueError: There is no tokenizer in it, or none that can mark where a document ends.
    """
    from transformers import AutoTokenizer

    path = Path(folder).expanduser()
    if not path.is_dir():
        raise FileNotFoundError(f"there is no tokenizer folder {path}: give a folder that save_pretrained wrote")
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} holds no tokenizer that transformers can load: it needs tokenizer.json, as save_pretrained "
            "writes it"
        ) from error
    if tokenizer is None or not len(tokenizer):
        raise ValueError(f"{path} holds no tokenizer: it needs tokenizer.json, as save_pretrained writes it")
    document_marks(tokenizer)
    return tokenizer


def document_marks(tokenizer: "PreTrainedTokenizerBase") -> tuple[int, int]:
    """The ids that stand before and after a document: `bos` and `eos`, or the one of them that there is.

    Raises:
        ValueError: The tokenizer has neither.
    """
    start, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    start, end = end if start is None else start, start if end is None else end
    if start is None or end is None:
        raise ValueError(
            "a tokenizer must have an eos_token or a bos_token that marks where a document ends, but "
            f"{tokenizer.name_or_path or type(tokenizer).__name__} has neither: set tokenizer.eos_token and save it"
        )
    return start, end


def byte_level_tokenizer(*, use_regex: bool) -> "Tokenizer":
    """A tokenizer whose id of a byte is the byte itself, 0 to 255, without any merges.

    Args:
        use_regex: Whether text is first split into words as GPT-2 does; merges then stay inside a word.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE(vocab=byte_vocabulary(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def byte_vocabulary() -> dict[str, int]:
    """GPT-2's printable stand-in of every byte -> the byte.

    Printable Latin-1 characters stand for themselves; the other bytes take the code points from 256 on.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(NUM_BYTES) if byte not in printable]
    vocabulary = {chr(byte): byte for byte in printable}
    vocabulary |= {chr(NUM_BYTES + rank): byte for rank, byte in enumerate(others)}
    return dict(sorted(vocabulary.items(), key=lambda item: item[1]))


def character_tokenizer(texts: Iterable[str]) -> "Tokenizer":
    """One token a character of the texts, in the order of their code points; any other character is unknown."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(set().union(*texts))
    vocabulary = {character: index for index, character in enumerate(alphabet)} | {UNKNOWN: len(alphabet)}
    # Without merges, BPE takes a text apart into characters; without fusing, each unknown one is counted.
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN, fuse_unk=False))
    # Lines are encoded one by one, which gives the same ids and costs less.
    tokenizer.pre_tokenizer = pre_tokenizers.Split("\n", "merged_with_next")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def train_bpe(texts: Iterable[str], vocab_size: int, num_special: int = 2) -> "Tokenizer":
    """Byte-level BPE learned from the texts; the same texts give the same merges.

    Args:
        texts: The training documents.
        vocab_size: The number of ids, special tokens included.
        num_special: How many of them are special.
    """
    from tokenizers import trainers

    smallest = NUM_BYTES + num_special
    if isinstance(vocab_size, bool) or not isinstance(vocab_size, int) or vocab_size < smallest:
        raise ValueError(
            f"tokenizer.vocab_size must be a whole number of at least {smallest} (the bytes and {num_special} special "
            f"tokens), not {vocab_size!r}"
        )
    tokenizer = byte_level_tokenizer(use_regex=True)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - num_special, initial_alphabet=list(byte_vocabulary()), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    found = tokenizer.get_vocab_size() + num_special
    if found < vocab_size:
        raise ValueError(
            f"the training text yields no more than {found} BPE tokens, fewer than tokenizer.vocab_size "
            f"{vocab_size}: lower it to at most {found}, or train on more text"
        )
    return tokenizer


def wrap(tokenizer: "Tokenizer", **special_tokens: str) -> "PreTrainedTokenizerBase":
    """Make a `tokenizers` object a transformers tokenizer with this library's special tokens.

    One with a mask token reads the names of special tokens in a text, as whoever asks a model to fill in a mask writes
    its name; gnomon's own data stay text all the same (`encode_documents`).
    """
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=SEPARATOR,
        eos_token=SEPARATOR,
        pad_token=PADDING,
        clean_up_tokenization_spaces=False,
        split_special_tokens="mask_token" not in special_tokens,
        **special_tokens,
    )
