"""Rows through the `datasets` library: from disk, and from a Hub that stands in for the real one."""

import datasets
import pytest

from gnomon.data.text import load_text

TRAIN, TEST = ["one", "", "two", "three", None], ["four", "five"]


@pytest.fixture
def saved(tmp_path):
    """A DatasetDict with two splits, saved to disk."""
    parts = {"train": TRAIN, "test": TEST}
    splits = datasets.DatasetDict(
        {name: datasets.Dataset.from_dict({"text": rows, "n": range(len(rows))}) for name, rows in parts.items()}
    )
    splits.save_to_disk(tmp_path / "saved")
    return tmp_path / "saved"


def test_saved_splits_are_chosen_by_name(saved):
    """`split` and `validation` name splits of the folder; empty rows and nulls are left out, others keep order."""
    splits = load_text(source=saved, validation="test")
    assert list(splits.train.values()) == ["one", "two", "three"]
    assert list(splits.validation.values()) == TEST
    swapped = load_text(source=saved, split="test", validation="train")
    assert list(swapped.train.values()) == TEST


def test_saved_split_is_divided_by_row(saved):
    """Without `validation`, rows of the one split are held out, by a percentage of them."""
    splits = load_text(source=saved)
    assert sorted([*splits.train.values(), *splits.validation.values()]) == ["one", "three", "two"]


def test_saved_single_data_set_has_no_split_names(tmp_path):
    """A folder with a single Dataset is divided by row, and naming a split of it is an error."""
    datasets.Dataset.from_dict({"text": TEST}).save_to_disk(tmp_path / "one")
    assert len(load_text(source=tmp_path / "one").train) == 1
    with pytest.raises(ValueError, match="holds a single unnamed split, so there is no 'test'"):
        load_text(source=tmp_path / "one", validation="test")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "dev"}, "no split 'dev', only train, test"),
        ({"validation": "train"}, "must be another split"),
        ({"column": "body"}, "no column 'body', only text, n"),
        ({"column": "n"}, "must hold text, but row 1 of .* holds int"),
        ({"subset": "en"}, "local file or folder"),
    ],
)
def test_wrong_choice_of_a_saved_data_set_is_refused(saved, options, message):
    """A split, column or subset that is not there is an error that lists those that are."""
    with pytest.raises(ValueError, match=message):
        load_text(source=saved, **options)


def test_hub_name_goes_to_datasets_with_subset_and_split(monkeypatch):
    """Anything that is no path is a Hub name; subset, split and validation reach `datasets.load_dataset`."""
    calls = []

    def load_dataset(*arguments, **options):
        calls.append((arguments, options))
        return datasets.Dataset.from_dict({"body": TEST if options["split"] == "test" else ["one", "two"]})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    splits = load_text(source="owner/words", subset="en", validation="test", column="body")
    assert calls == [
        (("owner/words", "en"), {"split": "train"}),
        (("owner/words", "en"), {"split": "test"}),
    ]
    assert splits.train == {"owner/words/train:1": "one", "owner/words/train:2": "two"}
    assert list(splits.validation.values()) == TEST


def test_unreachable_hub_is_one_clear_sentence():
    """Without a network a Hub name that is not cached is an error that names it, not a traceback of requests."""
    with pytest.raises(FileNotFoundError, match=r"'owner/no-such-words' could not be found.*check the name"):
        load_text(source="owner/no-such-words")
