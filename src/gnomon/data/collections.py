"""The data sets of images and speech that the library knows by name. Imports neither torch nor numpy."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gnomon.data.converters import (
    EMOJI_ARTISTS,
    count_arrays,
    count_pictures,
    prepare_emoji,
    prepare_fashion_mnist,
)
from gnomon.data.prompts import LANGUAGES, count_clips, prepare_languages, prepare_prompts


@dataclass(frozen=True)
class Collection:
    """One data set of the catalog that is kept as files of its own: arrays, sheets of pictures, or sound.

    Fetching checks what arrived by its counts, not by a file hash, because a distribution may repackage the same
    pictures.

    Args:
        name: The name in a recipe and on the command line.
        title: What it is, in one line.
        kind: What its rows are.
        license: The license of the pictures or sounds.
        origin: `embedded`, `debian` or `npm`: where it is fetched from.
        packages: The requirements that apt or npm is asked for; none if embedded.
        download_bytes: The size of the packages together; 0 if embedded.
        counts: What it holds: unit -> number.
        held_out: What is validated on and never trained on, in words.
        count: Counts what a folder holds, by the same units.
        prepare: Reads the unpacked packages (first folder) and writes the files (second folder); None if embedded.
    """

    name: str
    title: str
    kind: Literal["images", "speech", "sounds with classes", "images with text"]
    license: str
    origin: Literal["embedded", "debian", "npm"]
    packages: tuple[str, ...]
    download_bytes: int
    counts: Mapping[str, int]
    held_out: str
    count: Callable[[Path], dict[str, int]]
    prepare: Callable[[Path, Path], None] | None = None

    @property
    def is_embedded(self) -> bool:
        """Whether it lies inside this package, so that nothing has to be fetched."""
        return self.origin == "embedded"

    @property
    def size(self) -> str:
        """The counts in words, such as `60,000 training images, 10,000 validation images`."""
        return ", ".join(f"{number:,} {unit}" for unit, number in self.counts.items())


COLLECTIONS: dict[str, Collection] = {
    collection.name: collection
    for collection in (
        Collection(
            name="digits",
            title="Handwritten digits, 8 x 8, grey",
            kind="images",
            license="CC BY 4.0 (E. Alpaydin and C. Kaynak, UCI Machine Learning Repository)",
            origin="embedded",
            packages=(),
            download_bytes=0,
            counts={"training images": 1437, "validation images": 360},
            held_out="the last fifth, which other people wrote",
            count=count_arrays,
        ),
        Collection(
            name="emoji-noto",
            title="Emoji of Google's Noto with their names, 32 x 32, color",
            kind="images with text",
            license="Apache-2.0 (Google)",
            origin="embedded",
            packages=(),
            download_bytes=0,
            counts={"names": 1561, "pictures": 1561},
            held_out="a tenth of the names",
            count=count_pictures,
        ),
        Collection(
            name="fashion-mnist",
            title="Fashion-MNIST, clothes, 28 x 28, grey",
            kind="images",
            license="MIT (Zalando SE)",
            origin="debian",
            packages=("dataset-fashion-mnist",),
            download_bytes=30_900_652,
            counts={"training images": 60_000, "validation images": 10_000},
            held_out="its own test set",
            count=count_arrays,
            prepare=prepare_fashion_mnist,
        ),
        Collection(
            name="prompts-en",
            title="Telephone prompts, one English voice, 8 kHz, with transcripts",
            kind="speech",
            license="CC BY-SA 3.0 (Allison Smith, Digium)",
            origin="debian",
            packages=("asterisk-core-sounds-en", "asterisk-core-sounds-en-wav"),
            download_bytes=18_295_708,
            counts={"clips": 551, "seconds": 1456},
            held_out="a tenth of the clips but for digits, letters and spelling words",
            count=count_clips,
            prepare=prepare_prompts,
        ),
        # Every language has a voice and recordings of its own, but for English and Spanish, which one woman reads: what
        # tells the classes apart tells voices as much as languages.
        Collection(
            name="prompts-languages",
            title="Telephone prompts in five languages, 8 kHz, one voice each (English and Spanish share one)",
            kind="sounds with classes",
            license="CC BY-SA 3.0 (English and Spanish: Allison Smith; French: June Wallack), CC BY 3.0 (Italian: "
            "Carlo Flora; Russian: Maxim Topal)",
            origin="debian",
            packages=tuple(f"asterisk-core-sounds-{code}{ending}" for code in LANGUAGES for ending in ("", "-wav")),
            download_bytes=97_724_736,
            counts={"clips": 2667, "seconds": 7382},
            held_out="a tenth of the prompts, each in all languages, but no digits, letters and spelling words",
            count=count_clips,
            prepare=prepare_languages,
        ),
        Collection(
            name="emoji",
            title="Emoji by four artists with their names, 32 x 32, color",
            kind="images with text",
            license="Apache-2.0 (noto), CC BY 4.0 (twemoji), MIT (fluent-emoji-flat), CC BY-SA 4.0 (openmoji)",
            origin="npm",
            packages=tuple(f"@iconify-json/{artist}@{version}" for artist, version in EMOJI_ARTISTS.items()),
            download_bytes=7_095_917,
            counts={"names": 1561, "pictures": 6244},
            held_out="one artist: openmoji",
            count=count_pictures,
            prepare=prepare_emoji,
        ),
    )
}
"""Every data set of images or speech by name."""

SOURCES = {
    "embedded": "inside the package gnomon",
    "debian": "the Debian archive, through apt-get (unpacked, never installed)",
    "npm": "the npm registry, through npm (unpacked, never installed)",
}


def find_collection(name: str, kind: str | None = None) -> Collection:
    """The catalog's entry of that name.

    Args:
        name: The data set.
        kind: What its rows must be; anything if None.

    Raises:
        ValueError: There is none, or its rows are something else.
    """
    fitting = [entry.name for entry in COLLECTIONS.values() if kind in (None, entry.kind)]
    what = f"data set of {kind}" if kind else "data set of images or speech"
    if name not in COLLECTIONS:
        near = difflib.get_close_matches(name, fitting, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(
            f"a {what} must be one of {', '.join(fitting)}, not {name!r}: {hint}for data of your own, name a file or "
            "a folder as data.source"
        )
    if name not in fitting:
        raise ValueError(
            f"the data set {name!r} holds {COLLECTIONS[name].kind}, not {kind}: use {' or '.join(fitting)}, or name "
            "a file or a folder as data.source"
        )
    return COLLECTIONS[name]


def describe_collection(name: str) -> str:
    """One sentence: what it is, how large, where from, under which license, what is held out.

    >>> print(describe_collection("digits"))
    digits: Handwritten digits, 8 x 8, grey (1,437 training images, 360 validation images; held out: the last fifth, \
which other people wrote), inside the package gnomon; license: CC BY 4.0 (E. Alpaydin and C. Kaynak, UCI Machine \
Learning Repository)
    """
    entry = find_collection(name)
    where = SOURCES[entry.origin]
    if not entry.is_embedded:
        where = f"{entry.download_bytes / 1e6:.1f} MB as {', '.join(entry.packages)} from {where}"
    return f"{name}: {entry.title} ({entry.size}; held out: {entry.held_out}), {where}; license: {entry.license}"
