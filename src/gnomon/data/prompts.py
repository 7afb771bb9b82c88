"""The telephone prompts: from unpacked packages to WAV files with a table, and which prompts are held out."""

import csv
import gzip
import shutil
import wave
from collections.abc import Hashable, Sequence
from pathlib import Path

from gnomon.data.converters import write_table
from gnomon.data.splitting import is_held_out

TRANSCRIPTS = "transcripts.tsv"

LANGUAGES = {"en": "English", "fr": "French", "it": "Italian", "ru": "Russian", "es": "Spanish"}
"""The ending of a package's name -> the class of its clips, and their folder."""

KEPT_FOR_TRAINING = ("digits", "letters", "phonetic")
"""Folders of prompts whose single words would be unknown if they were held out."""

PROMPTS_PERCENT = 10.0


def prepare_prompts(unpacked: Path, folder: Path) -> None:
    """Copy the spoken English prompts and write their transcripts; tones, silence and comments are left out."""
    rows = []
    for item, text in read_listing(unpacked, "en").items():
        source = _sound_file(unpacked, "en", item)
        if is_spoken(text) and source.is_file():
            rows.append((f"{item}.wav", text))
            _copy(source, folder / rows[-1][0])
    write_table(folder / TRANSCRIPTS, ("file", "text"), rows)


def prepare_languages(unpacked: Path, folder: Path) -> None:
    """Copy the spoken prompts of every language into a folder each, and write one table.

    Left out is what has no transcript, and what is a tone, a noise or silence by its own listing or the English one.
    """
    noises = {item for item, text in read_listing(unpacked, "en").items() if not is_spoken(text)}
    rows = []
    for code, language in LANGUAGES.items():
        for item, text in read_listing(unpacked, code).items():
            source = _sound_file(unpacked, code, item)
            if is_spoken(text) and item not in noises and source.is_file():
                rows.append((f"{language}/{item}.wav", language, item, text))
                _copy(source, folder / rows[-1][0])
    write_table(folder / TRANSCRIPTS, ("file", "label", "item", "text"), rows)


def read_listing(unpacked: Path, code: str) -> dict[str, str]:
    """Prompt -> what is said in it, of one language; comments and what has no text are left out.

    Args:
        unpacked: Where the packages were unpacked.
        code: The language, a key of `LANGUAGES`.
    """
    file = unpacked / f"usr/share/doc/asterisk-core-sounds-{code}/core-sounds-{code}.txt.gz"
    found: dict[str, str] = {}
    for line in gzip.decompress(file.read_bytes()).decode("utf-8-sig").splitlines():
        item, _, text = line.partition(":")
        if not line.startswith(";") and text.strip():
            found.setdefault(item.strip(), text.strip())
    return found


def is_spoken(text: str) -> bool:
    """Whether somebody says it: of a noise the listing has a remark in brackets.

    >>> is_spoken("Goodbye"), is_spoken("[this is a simple beep tone]")
    (True, False)
    """
    return text[0] not in "[(<"


def _sound_file(unpacked: Path, code: str, item: str) -> Path:
    """The clip of a prompt, which need not exist."""
    (root,) = unpacked.glob(f"usr/share/asterisk/sounds/{code}_*")
    return root / f"{item}.wav"


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def count_clips(folder: Path) -> dict[str, int]:
    """How many clips have a transcript, and how long they are together, in whole seconds."""
    with (folder / TRANSCRIPTS).open(encoding="utf-8", newline="") as file:
        clips = [row["file"] for row in csv.DictReader(file, delimiter="\t")]
    seconds = 0.0
    for clip in clips:
        with wave.open(str(folder / clip)) as sound:
            seconds += sound.getnframes() / sound.getframerate()
    return {"clips": len(clips), "seconds": round(seconds)}


def split_prompts(items: Sequence[str], said: Sequence[Hashable]) -> tuple[list[int], list[int]]:
    """The numbers of the clips that are trained on, and of those held out: the same prompts in every language.

    A tenth of the prompts is held out by their hashed names, but no digit, letter or spelling word. Clips in which the
    same is said as in a held-out one are on neither side.

    Args:
        items: Each clip's prompt, such as `vm-goodbye` or `digits/1`.
        said: What is said in it, and in which language.
    """
    held = [item.split("/")[0] not in KEPT_FOR_TRAINING and is_held_out(item, PROMPTS_PERCENT) for item in items]
    unseen = {words for words, is_held in zip(said, held, strict=True) if is_held}
    train = [row for row, is_held in enumerate(held) if not is_held and said[row] not in unseen]
    return train, [row for row, is_held in enumerate(held) if is_held]
