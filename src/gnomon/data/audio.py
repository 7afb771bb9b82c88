"""Read sound: files of any kind, rate and number of channels, as one channel at the rate that the model hears."""

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gnomon.data.rows import MediaRows, take_contents
from gnomon.data.splitting import LeftOut
from gnomon.optional import import_optional

if TYPE_CHECKING:
    from transformers import SequenceFeatureExtractor

AUDIO_ENDINGS = frozenset({".aiff", ".au", ".flac", ".mp3", ".ogg", ".opus", ".wav"})
AUDIO_COLUMNS = ("audio", "file", "file_name", "path")
"""What a table's column with the sound is usually called."""

NUM_MEL_BINS = 80
WINDOW_SECONDS, HOP_SECONDS = 0.025, 0.010
HIGHEST_RATE = 16_000
"""The rate in hertz that sound is brought down to where nothing else is asked for; lower rates are kept."""

DECODED_SECONDS = 3600.0
"""Up to so much sound is decoded when it is loaded, to find damaged files; of more, each when it is used."""

SHORTEST_FRAMES = 2
"""Features are normalized over their frames, which takes two."""

Sound = Path | bytes | np.ndarray
"""A file, a file's contents, or samples (float32) of one channel at the model's rate."""


@dataclass(frozen=True)
class SoundHeader:
    """What a file says about its sound."""

    samples: int
    rate: int

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.samples / self.rate


def read_header(sound: Path | bytes) -> SoundHeader:
    """The length and rate of a sound, without decoding it.

    Raises:
        ValueError: It is no sound that can be read, or it is empty.
    """
    soundfile = import_optional("soundfile", "speech")
    if isinstance(sound, Path) and not sound.is_file():
        raise ValueError("there is no such file")
    try:
        with soundfile.SoundFile(io.BytesIO(sound) if isinstance(sound, bytes) else sound) as file:
            header = SoundHeader(file.frames, file.samplerate)
    except (soundfile.LibsndfileError, OSError, TypeError) as error:
        raise ValueError("it is no sound that can be read") from error
    if not header.samples:
        raise ValueError("it is empty")
    return header


def read_sound(sound: Sound, rate: int) -> np.ndarray:
    """One channel of samples (float32, from -1 to 1) at the rate asked for.

    Several channels are averaged; another rate is resampled by soxr at its high quality.

    Args:
        sound: A file, a file's contents, or samples at that rate.
        rate: In hertz.

    Raises:
        ValueError: It is no sound that can be read, is empty, or holds something else than numbers.
    """
    if isinstance(sound, np.ndarray):
        return sound
    soundfile = import_optional("soundfile", "speech")
    read_header(sound)
    try:
        samples, own = soundfile.read(
            io.BytesIO(sound) if isinstance(sound, bytes) else sound, dtype="float32", always_2d=True
        )
    except (soundfile.LibsndfileError, OSError) as error:
        raise ValueError("it is damaged") from error
    mono = samples.mean(axis=1)
    if not len(mono):
        raise ValueError("it is cut off")
    if not np.isfinite(mono).all():
        raise ValueError("it holds values that are no numbers")
    if own == rate:
        return mono
    return import_optional("soxr", "speech").resample(mono, own, rate).astype(np.float32)


def build_feature_extractor(rate: int) -> "SequenceFeatureExtractor":
    """transformers' extractor of 80 logarithmic mel bins, of windows of 25 ms every 10 ms, saved with the model.

    Each utterance's bins are normalized to mean 0 and deviation 1 over its frames.

    Args:
        rate: Samples a second, in hertz.

    Raises:
        ValueError: The rate is too low for 80 bins.
    """
    from transformers import ParakeetFeatureExtractor

    if rate < 4_000:
        raise ValueError(
            f"speech needs at least 4,000 samples a second, not {rate}: record at 8,000 or more, or set "
            "data.sampling_rate where only some recordings are so poor"
        )
    window = round(rate * WINDOW_SECONDS)
    return ParakeetFeatureExtractor(
        feature_size=NUM_MEL_BINS,
        sampling_rate=rate,
        hop_length=round(rate * HOP_SECONDS),
        win_length=window,
        n_fft=max(512, 1 << (window - 1).bit_length()),
    )


def count_frames(samples: int, extractor: Any) -> int:
    """How many frames of features so many samples give."""
    return samples // extractor.hop_length


@dataclass
class Clips:
    """Sounds with what is said or heard in them.

    Attributes:
        sounds: The sounds.
        texts: A transcript or a class each.
        names: What a clip is called in messages.
        groups: Clips of one group stand on one side of a split.
        headers: Length and rate of each.
        left_out: What could not be read.
    """

    sounds: list[Sound]
    texts: list[str]
    names: list[str]
    groups: list[str]
    headers: list[SoundHeader]
    left_out: LeftOut = field(default_factory=LeftOut)

    def __len__(self) -> int:
        return len(self.sounds)

    @property
    def seconds(self) -> float:
        """How long they are together."""
        return sum(header.seconds for header in self.headers)

    def add(self, sound: Sound, text: str, name: str, group: str, header: SoundHeader) -> None:
        """Put a clip at the end."""
        self.sounds.append(sound)
        self.texts.append(text)
        self.names.append(name)
        self.groups.append(group)
        self.headers.append(header)

    def take(self, rows: Sequence[int]) -> "Clips":
        """Some of the clips."""
        chosen = Clips([], [], [], [], [], self.left_out)
        for row in rows:
            chosen.add(self.sounds[row], self.texts[row], self.names[row], self.groups[row], self.headers[row])
        return chosen


def read_clips(rows: MediaRows, audio: str, text: str, group: str | None) -> Clips:
    """The clips of a table that can be read; the others are left out and listed.

    Args:
        rows: The table.
        audio: Its column with the sound.
        text: Its column with the transcript or the class.
        group: Its column with the group, such as the speaker; the text itself if None.

    Raises:
        ValueError: Nothing can be read.
    """
    clips = Clips([], [], [], [], [])
    for number in range(len(rows)):
        row = rows[number]
        where = f"row {number + 1} of {rows.name}"
        name, words = where, row[text]
        try:
            sound, name = take_contents(row[audio], where, rows.base)
            if words is None or not str(words).strip():
                raise ValueError(f"it has no {text}")
            header = read_header(sound)
            if clips.seconds <= DECODED_SECONDS:
                read_sound(sound, header.rate)
        except ValueError as error:
            clips.left_out.add(name, str(error))
            continue
        clips.add(sound, str(words), name, str(row[group]) if group else str(words), header)
    if not len(clips):
        raise ValueError(f"{rows.name} holds no sound that can be read ({clips.left_out.describe(shown=1)})")
    return clips


def choose_rate(clips: Clips, asked: int | None) -> int:
    """The rate that is asked for, else the lowest one of the clips, and 16,000 at most.

    A higher rate than that of the poorest recording would show the model which recording it hears.
    """
    return asked if asked is not None else min(HIGHEST_RATE, *(header.rate for header in clips.headers))
