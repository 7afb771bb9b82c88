"""What was said, as a recognizer writes it: lower case, figures as words, no punctuation."""

import re
import unicodedata

ONES = (
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
)
TENS = ("zero", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
SCALES = ((1_000_000_000, "billion"), (1_000_000, "million"), (1_000, "thousand"), (100, "hundred"))
LARGEST = 10**12
"""Numbers from here on are read figure by figure."""

SYMBOLS = {"*": "star", "#": "pound", "&": "and", "%": "percent", "@": "at", "+": "plus", "=": "equals"}
"""How signs are read in English; the star and the pound are keys of a telephone."""


def normalize_transcript(text: str, language: str | None = None) -> str:
    """A transcript in lower case without punctuation, its words one space apart; apostrophes inside words stay.

    Remarks in brackets are not spoken and are left out. In English, figures and some signs become words: a number
    as a number, but figure by figure where it hangs on a letter (`H.323`) or begins with a zero.

    Args:
        text: As it was written.
        language: `en` to write out figures; None to keep them.

    Raises:
        ValueError: There are no words for the figures of that language.

    >>> normalize_transcript("... Press 1, or dial 500 [beep]: it's on H.323!", "en")
    "press one or dial five hundred it's on h three two three"
    """
    if language not in (None, "en"):
        raise ValueError(f"figures are written out in English (en) only, not in {language!r}: leave data.language out")
    text = unicodedata.normalize("NFKC", text).lower().replace("\u2019", "'")
    text = re.sub(r"\[[^\]]*\]|\([^)]*\)|<[^>]*>", " ", text)
    if language == "en":
        text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)
        text = re.sub(r"((?:[^\W\d]\.?)?)(\d+)", _spell_match, text)
        text = re.sub("[" + re.escape("".join(SYMBOLS)) + "]", lambda match: f" {SYMBOLS[match[0]]} ", text)
    text = "".join(
        character if character.isalnum() or character == "'" or _is_mark(character) else " " for character in text
    )
    text = re.sub(r"(?<!\w)'+|'+(?!\w)", " ", text)
    return " ".join(text.split())


def _is_mark(character: str) -> bool:
    """Whether it changes the letter before it, as accents and vowel signs do."""
    return unicodedata.category(character).startswith("M")


def _spell_match(match: re.Match[str]) -> str:
    before, figures = match[1], match[2]
    by_figure = before or (len(figures) > 1 and figures.startswith("0")) or int(figures) >= LARGEST
    words = " ".join(ONES[int(figure)] for figure in figures) if by_figure else spell_number(int(figures))
    return f"{before.rstrip('.')} {words} "


def spell_number(number: int) -> str:
    """A number from 0 to 999,999,999,999 in English words.

    >>> spell_number(21), spell_number(1_500_007)
    ('twenty one', 'one million five hundred thousand seven')
    """
    if number < 20:
        return ONES[number]
    if number < 100:
        return TENS[number // 10] + (f" {ONES[number % 10]}" if number % 10 else "")
    scale, word = next((scale, word) for scale, word in SCALES if number >= scale)
    rest = f" {spell_number(number % scale)}" if number % scale else ""
    return f"{spell_number(number // scale)} {word}{rest}"
