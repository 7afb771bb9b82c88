"""Rows through the `datasets` library: data sets of the Hugging Face Hub, and those it saved to disk."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gnomon.data.files import Document, take_document, take_text


def is_saved_dataset(path: Path) -> bool:
    """Whether `datasets` wrote this folder with `save_to_disk`."""
    return (path / "dataset_dict.json").is_file() or (path / "state.json").is_file()


def read_hub(name: str, subset: str | None, split: str, column: str, others: Sequence[str] = ()) -> list[Document]:
    """The documents of one split of a Hub data set; empty rows are left out.

    Args:
        name: `name` or `owner/name`.
        subset: The configuration, where the data set has several.
        split: The split, or a slice of it such as `train[:1%]`.
        column: The column that holds the text.
        others: Further columns; empty rows are then kept.

    Raises:
        FileNotFoundError: There is no such data set, or the Hub cannot be reached.
        ValueError: There is no such split, subset or column.
    """
    import datasets

    try:
        rows = datasets.load_dataset(name, subset, split=split)
    except (ConnectionError, FileNotFoundError) as error:
        raise FileNotFoundError(
            f"data.source must be a file, a folder or a data set on the Hugging Face Hub, and {name!r} could not be "
            f"found as any of them ({_first_line(error)}): check the name and the network"
        ) from error
    except ValueError as error:
        raise ValueError(
            f"the Hub data set {name!r} could not be loaded ({_first_line(error)}): check data.split and data.subset"
        ) from error
    return take_rows(rows, column, f"{name}/{split}", others)


def read_saved(folder: Path, split: str | None, column: str, others: Sequence[str] = ()) -> list[Document]:
    """The documents of one split that `datasets` saved to disk; empty rows are left out.

    Args:
        folder: The folder.
        split: Which split of a `DatasetDict`; None for a folder that holds a single `Dataset`.
        column: The column that holds the text.
        others: Further columns; empty rows are then kept.

    Raises:
        ValueError: There is no such split or column.
    """
    import datasets

    rows = datasets.load_from_disk(folder)
    if isinstance(rows, datasets.DatasetDict):
        split = split or "train"
        if split not in rows:
            raise ValueError(f"{folder} has no split {split!r}, only {', '.join(rows)}: choose one of them")
        return take_rows(rows[split], column, f"{folder.name}/{split}", others)
    if split is not None:
        raise ValueError(f"{folder} holds a single unnamed split, so there is no {split!r}: drop the name")
    return take_rows(rows, column, folder.name, others)


def take_rows(rows: Any, column: str, name: str, others: Sequence[str] = ()) -> list[Document]:
    """The documents of a `datasets.Dataset`."""
    columns = (column, *others)
    for missing in (key for key in columns if key not in rows.column_names):
        take_text(dict.fromkeys(rows.column_names), missing, name)
    taken = (
        take_document(
            dict(zip(columns, values, strict=True)), column, others, f"row {number} of {name}", f"{name}:{number}"
        )
        for number, values in enumerate(zip(*(rows[key] for key in columns), strict=True), start=1)
    )
    documents = [document for document in taken if document.text or others]
    if not documents:
        raise ValueError(f"{name} holds no text at all in its column {column!r}: see data.column")
    return documents


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
