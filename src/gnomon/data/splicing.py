"""Connected digits of a real voice, put together of its single ones."""

import random

import numpy as np

from gnomon.data.audio import Clips, SoundHeader, read_sound
from gnomon.data.transcripts import ONES

DIGITS = ONES[:10]
FEWEST, MOST = 2, 6
"""How many digits stand in a clip."""

SHORTEST_PAUSE, LONGEST_PAUSE = 0.02, 0.15
"""Seconds between two digits."""


def splice_digits(clips: Clips, count: int, rate: int, seed: int = 0) -> None:
    """Add clips of connected digits, put together of the single digits among them.

    Args:
        clips: Training clips, among them one each that says `zero` to `nine` and nothing else; changed in place.
        count: How many clips are added.
        rate: Samples a second, in hertz.
        seed: Decides which digits and pauses.

    Raises:
        ValueError: A digit is missing, or the count is negative.
    """
    if count < 0:
        raise ValueError(f"the number of spliced clips must be 0 or more, not {count}")
    places = {text: row for row, text in enumerate(clips.texts) if text in DIGITS}
    missing = [digit for digit in DIGITS if digit not in places]
    if missing:
        raise ValueError(f"connected digits need a clip of every digit, and none says {missing[0]!r}: drop splicing")
    sounds = {digit: read_sound(clips.sounds[row], rate) for digit, row in places.items()}
    draw = random.Random(seed)
    for number in range(count):
        digits = draw.choices(DIGITS, k=draw.randint(FEWEST, MOST))
        parts: list[np.ndarray] = []
        for digit in digits:
            pause = np.zeros(round(draw.uniform(SHORTEST_PAUSE, LONGEST_PAUSE) * rate), dtype=np.float32)
            parts += [sounds[digit], pause]
        samples = np.concatenate(parts[:-1])
        text = " ".join(digits)
        clips.add(samples, text, f"spliced:{number}", text, SoundHeader(len(samples), rate))
