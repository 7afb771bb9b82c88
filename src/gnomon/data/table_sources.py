"""Readers of the foreign formats that the catalog's tables are published in.

Each reader takes the folder that the packages were unpacked into and returns rows, column -> text.
"""

import re
from html.parser import HTMLParser
from pathlib import Path

PARTS_OF_SPEECH = ("noun", "verb", "adj", "adv")
# fmt: off
LEXICAL_FILES = (
    "adj.all", "adj.pert", "adv.all", "noun.tops", "noun.act", "noun.animal", "noun.artifact", "noun.attribute",
    "noun.body", "noun.cognition", "noun.communication", "noun.event", "noun.feeling", "noun.food", "noun.group",
    "noun.location", "noun.motive", "noun.object", "noun.person", "noun.phenomenon", "noun.plant", "noun.possession",
    "noun.process", "noun.quantity", "noun.relation", "noun.shape", "noun.state", "noun.substance", "noun.time",
    "verb.body", "verb.change", "verb.cognition", "verb.communication", "verb.competition", "verb.consumption",
    "verb.contact", "verb.creation", "verb.emotion", "verb.motion", "verb.perception", "verb.possession",
    "verb.social", "verb.stative", "verb.weather", "adj.participle",
)
# fmt: on
"""The names of WordNet's lexical files, by their number."""

SHORTEST_PAIR, LONGEST_PAIR = 3, 40
"""How many English words a pair of sentences may have."""

PARAGRAPHS = frozenset({"p", "h1", "h2", "h3", "h4", "h5", "h6"})
INVISIBLE = frozenset({"script", "style"})


def read_wordnet(folder: Path) -> list[dict[str, str]]:
    """WordNet's definitions, each with the lexical file that its meaning is kept in, and the words that have it.

    Args:
        folder: The unpacked package.

    Returns:
        Rows of `text` (the definition), `label` (one of 45, such as `noun.plant`) and `words`, joined by commas.
    """
    rows = []
    for part in PARTS_OF_SPEECH:
        file = folder / f"usr/share/wordnet/data.{part}"
        for line in file.read_bytes().decode("latin-1").splitlines():
            if not line.startswith(" "):  # the license stands before the data, indented
                fields, gloss = line.split(" | ", 1)
                words = fields.split()
                count = int(words[3], 16)
                named = [word.replace("_", " ") for word in words[4 : 4 + 2 * count : 2]]
                # Example sentences follow the definition, in quotes.
                text = gloss.split('; "')[0].strip()
                rows.append({"text": text, "label": LEXICAL_FILES[int(words[1])], "words": ", ".join(named)})
    return rows


def read_ding(folder: Path) -> list[dict[str, str]]:
    """Phrases and sentences of the TU Chemnitz dictionary with their translation; single words are left out.

    Args:
        folder: The unpacked package.

    Returns:
        Rows of `en` and `de`, each pair once, with at least three English words.
    """
    pairs: dict[tuple[str, str], None] = {}
    for line in (folder / "usr/share/trans/de-en").read_text(encoding="utf-8").split("\n"):
        german, sides, english = line.partition(" :: ")
        germans, englishes = german.split("|"), english.split("|")
        if line.startswith("#") or not sides or len(germans) != len(englishes):
            continue
        for de, en in zip(map(clean_entry, germans), map(clean_entry, englishes), strict=True):
            if de and len(en.split()) >= SHORTEST_PAIR:
                pairs[en, de] = None
    return [{"en": en, "de": de} for en, de in pairs]


def clean_entry(entry: str) -> str:
    """The first alternative of a dictionary entry, without grammar, fields of use, remarks and pronunciation.

    >>> clean_entry(" Abseilgerät {n} (Klettern) [sport]; Abseilzeug ")
    'Abseilgerät'
    """
    return " ".join(re.sub(r"\{[^}]*\}|\[[^\]]*\]|/[^/;]*/|\([^)]*\)", "", entry.split(";")[0]).split())


def read_libreoffice_help(folder: Path, language: str = "de") -> list[dict[str, str]]:
    """Paragraphs of LibreOffice's help in two languages, paired by file and by the paragraph's own id.

    Args:
        folder: The unpacked packages of both languages.
        language: The other language's folder.

    Returns:
        Rows of `en` and the other language, each pair once, with 3 to 40 English words and different texts.
    """
    english, other = (_paragraphs(folder, name) for name in ("en-US", language))
    pairs = {
        (text, other[place]): None
        for place, text in english.items()
        if place in other and text != other[place] and SHORTEST_PAIR <= len(text.split()) <= LONGEST_PAIR
    }
    return [{"en": en, language: text} for en, text in pairs]


def _paragraphs(folder: Path, language: str) -> dict[tuple[str, str], str]:
    """(File, id) -> text of every paragraph and heading of one language."""
    root = folder / "usr/share/libreoffice/help" / language / "text"
    found = {}
    for file in sorted(root.rglob("*.html")):
        parser = _Paragraphs()
        parser.feed(file.read_text(encoding="utf-8"))
        name = file.relative_to(root).as_posix()
        found.update({(name, place): text for place, text in parser.texts.items()})
    return found


class _Paragraphs(HTMLParser):
    """The text of every paragraph or heading that has an id."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[str, str] = {}
        self._open: tuple[str, str] | None = None
        self._words: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin a paragraph."""
        self._hidden += tag in INVISIBLE
        place = dict(attrs).get("id")
        if tag in PARAGRAPHS:
            self._end()
            if place:
                self._open = (tag, place)

    def handle_endtag(self, tag: str) -> None:
        """End the paragraph that is open."""
        self._hidden -= tag in INVISIBLE
        if self._open is not None and tag == self._open[0]:
            self._end()

    def handle_data(self, data: str) -> None:
        """Take text."""
        if self._open is not None and not self._hidden:
            self._words.append(data)

    def _end(self) -> None:
        text = " ".join("".join(self._words).split())
        if self._open is not None and text:
            self.texts[self._open[1]] = text
        self._open, self._words = None, []
