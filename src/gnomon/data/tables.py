"""Load rows of text, a few columns each, split into what is trained on and what is held out."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gnomon.data.catalog import find_dataset
from gnomon.data.fetch import read_dataset
from gnomon.data.origins import check_origin, refuse_with_own_split
from gnomon.data.text import load_source, split_rows

Row = tuple[str, ...]


@dataclass(frozen=True)
class TableSplits:
    """The rows of the two sides of a split, each a value a column in the order they were asked for."""

    train: list[Row]
    validation: list[Row]


def load_table(
    columns: Sequence[str],
    *,
    name: str | None = None,
    source: str | Path | None = None,
    validation: str | Path | None = None,
    validation_percent: float | None = None,
    split: str | None = None,
    subset: str | None = None,
) -> TableSplits:
    """Load some columns of a table, and hold rows out: the same ones every time, and no text on both sides.

    Args:
        columns: Which; the first decides, hashed, on which side a row of a source stands. A catalog's table is split
            by its own first column, whatever is asked for.
        name: A table of the catalog.
        source: A .jsonl, .json, .csv or .parquet file, a folder of such files or one that
            `datasets.Dataset.save_to_disk` wrote, or a data set's name on the Hub.
        validation: As for `gnomon.data.text.load_text`, as are the other options.
        validation_percent: Of a source's rows; 10 if None.
        split: The split of a Hub data set to train on.
        subset: A Hub data set's configuration.

    Raises:
        ValueError: There is no such column, an option has no meaning here, or a row holds no text.
        FileNotFoundError: There is no such file, folder or data set, or it has not been fetched yet.
    """
    check_origin(name, source)
    options = {"validation": validation, "validation_percent": validation_percent, "split": split, "subset": subset}
    if name is None:
        sides = load_source(str(source), columns[0], columns[1:], **options)
        return TableSplits(*([(document.text, *document.others) for document in side] for side in sides))
    refuse_with_own_split(name, options)
    dataset = find_dataset(name)
    missing = [column for column in columns if column not in dataset.columns]
    if missing:
        held = f"the columns {', '.join(dataset.columns)}" if dataset.columns else "plain text without columns"
        raise ValueError(f"the data set {name!r} has {held}, and no {missing[0]!r}: name another column or data set")
    sides = split_rows(read_dataset(name), dataset.columns[0], dataset.held_out_percent)
    return TableSplits(*([tuple(row[column] for column in columns) for row in side] for side in sides))
