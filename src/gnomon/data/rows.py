"""Rows of tables that point at images or sounds: local files, folders that `datasets` saved, and the Hub."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gnomon.data.files import READERS, read_text
from gnomon.data.hub import is_saved_dataset

TABLE_ENDINGS = (".csv", ".tsv", ".jsonl", ".json", ".parquet")

SIDES = {"train": ("train", "training"), "validation": ("validation", "valid", "val", "dev", "test")}
"""Side of a split -> what its folder may be called."""


class MediaRows(Sequence[Mapping[str, Any]]):
    """The rows of a table; those of `datasets` stay on disk, and their images and sounds undecoded.

    Args:
        rows: Mappings of column -> value, or a `datasets.Dataset`.
        name: What the table is called in messages.
        base: Where relative file names start; None if there are none.
    """

    def __init__(self, rows: Any, name: str, base: Path | None = None) -> None:
        self.rows, self.name, self.base = rows, name, base
        if not len(rows):
            raise ValueError(f"{name} holds no rows: give at least one")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(getattr(self.rows, "column_names", None) or self.rows[0])

    def column(self, name: str) -> list[Any]:
        """All values of one column, which had better be small."""
        if hasattr(self.rows, "column_names"):
            return list(self.rows[name])
        return [row[name] for row in self.rows]

    def class_names(self, column: str) -> tuple[str, ...] | None:
        """The names that the numbers in a column stand for, if the table knows them."""
        feature = getattr(self.rows, "features", {}).get(column)
        return tuple(feature.names) if hasattr(feature, "names") else None

    def find_column(self, asked: str | None, usual: Sequence[str], setting: str) -> str:
        """The column that was asked for, or the first of the usual ones.

        Args:
            asked: What the user named; None for the usual names.
            usual: Names that such a column often has.
            setting: How the user names it.

        Raises:
            ValueError: There is no such column.
        """
        for name in usual if asked is None else (asked,):
            if name in self.columns:
                return name
        wanted = f"a column {asked!r}" if asked is not None else f"a column {' or '.join(map(repr, usual))}"
        raise ValueError(f"{self.name} must have {wanted}, but it has {', '.join(self.columns)}: name one as {setting}")

    def take(self, rows: Sequence[int]) -> "MediaRows":
        """Some of the rows."""
        chosen = self.rows.select(rows) if hasattr(self.rows, "select") else [self.rows[row] for row in rows]
        return MediaRows(chosen, self.name, self.base)


def open_table(file: Path) -> MediaRows:
    """The rows of a `.csv`, `.tsv`, `.jsonl`, `.json` or `.parquet` file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is of another kind, damaged or empty.
    """
    if not file.is_file():
        raise FileNotFoundError(f"there is no file {file}: check data.source and data.validation")
    ending = file.suffix.lower()
    if ending not in TABLE_ENDINGS:
        raise ValueError(f"a table must end in {', '.join(TABLE_ENDINGS)}, not {ending or 'nothing'!r} ({file})")
    if ending == ".parquet":
        import datasets

        try:
            rows: Any = undecoded(datasets.Dataset.from_parquet(str(file)))
        except (datasets.exceptions.DatasetGenerationError, ValueError, OSError) as error:
            raise ValueError(f"{file} is no Parquet file that can be read: write it again") from error
        return MediaRows(rows, file.name, file.parent)
    if ending == ".tsv":
        rows = list(csv.DictReader(io.StringIO(read_text(file), newline=""), delimiter="\t"))
    else:
        rows = list(READERS[ending](file, ()))
    _check_rows(rows, file)
    return MediaRows(rows, file.name, file.parent)


def _check_rows(rows: list[Any], file: Path) -> None:
    """Refuse rows that are no mappings, or have other columns than the first."""
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping) or row.keys() != rows[0].keys() or None in row:
            raise ValueError(
                f"every row of {file} must have the same named columns, but row {number} does not: mend it"
            )


def open_rows(source: str, split: str, subset: str | None) -> MediaRows:
    """The rows of one split that `datasets` saved to disk or that the Hub has.

    Args:
        source: A folder, or `name` or `owner/name` on the Hub.
        split: Which split.
        subset: A Hub data set's configuration.

    Raises:
        FileNotFoundError: There is no such data set, or the Hub cannot be reached.
        ValueError: There is no such split or configuration.
    """
    import datasets

    path = Path(source).expanduser()
    if is_saved_dataset(path):
        rows = datasets.load_from_disk(path)
        if isinstance(rows, datasets.DatasetDict):
            if split not in rows:
                raise ValueError(f"{path} has no split {split!r}, only {', '.join(rows)}: choose one of them")
            rows = rows[split]
        elif split != "train":
            raise ValueError(f"{path} holds a single unnamed split, so there is no {split!r}: drop the name")
        return MediaRows(undecoded(rows), f"{path.name}/{split}")
    try:
        rows = datasets.load_dataset(source, subset, split=split)
    except (ConnectionError, FileNotFoundError) as error:
        raise FileNotFoundError(
            f"data.source must be a file, a folder or a data set on the Hugging Face Hub, and {source!r} could not be "
            "found as any of them: check the name and the network"
        ) from error
    except ValueError as error:
        said = (str(error).strip().splitlines() or ["no reason given"])[0].rstrip(".")
        raise ValueError(
            f"the Hub data set {source!r} could not be loaded ({said}): check data.split and data.subset"
        ) from error
    return MediaRows(undecoded(rows), f"{source}/{split}")


def undecoded(rows: Any) -> Any:
    """A `datasets.Dataset` whose images and sounds come as file names and contents, so that a bad one ends nothing."""
    import datasets

    for column, feature in (rows.features or {}).items():
        if isinstance(feature, datasets.Image | datasets.Audio):
            rows = rows.cast_column(column, type(feature)(decode=False))
    return rows


def looks_like_a_path(source: str) -> bool:
    """Whether a source that does not exist was meant as a path; a Hub name is `name` or `owner/name`."""
    return source.startswith((".", "/", "~")) or source.count("/") > 1 or Path(source).suffix.lower() in TABLE_ENDINGS


def side_folders(folder: Path) -> tuple[Path, Path] | None:
    """The folders `train` and `validation` (or `test`, ...) of a folder that has both; None if it has not."""
    found = []
    for names in SIDES.values():
        places = [folder / name for name in names if (folder / name).is_dir()]
        if not places:
            return None
        found.append(places[0])
    return found[0], found[1]


def find_table(folder: Path, usual: Sequence[str]) -> Path | None:
    """The table in a folder that says what its files are: one of the usual names, or the only one there is.

    Beside class folders only the usual names count, so that a stray list among them does no harm.

    Raises:
        ValueError: There are several, none with a usual name.
    """
    tables = sorted(file for file in folder.iterdir() if file.suffix.lower() in TABLE_ENDINGS)
    named = [file for file in tables if file.stem in usual]
    has_folders = any(place.is_dir() and not place.name.startswith(".") for place in folder.iterdir())
    found = named if named or has_folders else tables
    if len(found) > 1:
        raise ValueError(
            f"{folder} holds {len(found)} tables ({', '.join(file.name for file in found[:3])}): name one of them as "
            "data.source"
        )
    return found[0] if found else None


def take_contents(value: Any, where: str, base: Path | None) -> tuple[Path | bytes, str]:
    """A file that a table's row has, as a path or as its contents, and what to call it in messages.

    Args:
        value: A file's name, its contents, or both as `datasets` gives them undecoded.
        where: The table and the row.
        base: Where relative file names start.

    Raises:
        ValueError: It is none of these.
    """
    if isinstance(value, Mapping) and value.get("bytes"):
        return value["bytes"], value.get("path") or where
    if isinstance(value, Mapping):
        value = value.get("path")
    if isinstance(value, bytes):
        return value, where
    if isinstance(value, str) and value:
        return (base or Path()) / value, value
    given = "nothing" if value is None or value == "" else type(value).__name__
    raise ValueError(f"{where} must hold a file's name or its contents, not {given}")
