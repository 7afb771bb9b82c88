"""Folders of tones that stand for speech and for classes of sounds."""

import csv
from pathlib import Path

import numpy as np

WORDS = {"low": 300.0, "mid": 700.0, "high": 1500.0}
"""What is said, and its pitch in hertz."""


def write_sound(file: Path, words: list[str], rate: int = 8000, channels: int = 1) -> None:
    """A tone a word, with silence after each."""
    import soundfile

    file.parent.mkdir(parents=True, exist_ok=True)
    time = np.arange(round(0.2 * rate)) / rate
    parts = [np.concatenate((0.5 * np.sin(2 * np.pi * WORDS[word] * time), np.zeros(rate // 20))) for word in words]
    wave = np.concatenate(parts).astype(np.float32)
    soundfile.write(file, np.repeat(wave[:, None], channels, axis=1), rate)


def write_table(folder: Path, rows: list[tuple[str, str]]) -> None:
    """The table of transcripts."""
    with (folder / "transcripts.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("file", "text"), *rows])


def write_speech(folder: Path) -> list[tuple[str, str]]:
    """All twenty-seven sentences of three words, one of them in stereo at 44.1 kHz, with their table."""
    rows = []
    for number, words in enumerate(np.ndindex(3, 3, 3)):
        said = [list(WORDS)[word] for word in words]
        write_sound(folder / f"{number}.wav", said, *((44_100, 2) if number == 5 else (8000, 1)))
        rows.append((f"{number}.wav", " ".join(said)))
    write_table(folder, rows)
    return rows


def write_classes(folder: Path) -> None:
    """Ten sounds of each of two classes, one longer than the other."""
    for number in range(10):
        write_sound(folder / f"short/{number}.wav", [list(WORDS)[number % 3]])
        write_sound(folder / f"long/{number}.wav", [list(WORDS)[number % 3]] * 3)
