"""Read documents from local files: plain text, JSON, JSON lines, CSV and Parquet, or a folder of them.

Text is taken exactly as it stands (line ends, leading spaces, everything); only a byte order mark is left out.
"""

import csv
import io
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Document(NamedTuple):
    """A document and what decides, hashed, on which side of a split it stands.

    A file is split by its name, so that mending a comma does not move it. A row of a table is split by its text,
    so that a repeated row never stands on both sides. `others` are the values of the other columns asked for.
    """

    name: str
    text: str
    split_key: str
    others: tuple[str, ...] = ()


def read_documents(path: Path, column: str, others: Sequence[str] = ()) -> list[Document]:
    """The documents of a file or of a folder, in the order of their names.

    A `.txt` file is one document; a row of any other file is one. In a folder, files of other kinds and hidden
    files are passed over. Empty documents are left out, since there is nothing in them to learn or to score; but
    where other columns are asked for every row is kept, so that whoever asked can count them.

    Args:
        path: A file, or a folder that is searched with its subfolders.
        column: The field of JSON, CSV and Parquet rows that holds the text.
        others: Further fields; a `.txt` file has none.

    Raises:
        FileNotFoundError: There is no such file or folder.
        ValueError: The kind of file is unknown, the column is missing or holds something else than text, the
            file is damaged, is not UTF-8, or there is no text in it.
    """
    if path.is_dir():
        files = sorted(
            file
            for file in path.rglob("*")
            if file.suffix.lower() in READERS and not any(part.startswith(".") for part in file.relative_to(path).parts)
        )
        if not files:
            raise ValueError(
                f"a data folder must hold {', '.join(READERS)} files, but {path} holds none: "
                "name the folder that the files are in"
            )
        documents = [
            document
            for file in files
            for document in _read_file(file, file.relative_to(path).as_posix(), column, others)
        ]
    elif path.is_file():
        documents = list(_read_file(path, path.name, column, others))
    else:
        raise FileNotFoundError(
            f"there is no file or folder {path}: check data.source and data.validation (relative paths start at "
            f"{Path.cwd()})"
        )
    documents = [document for document in documents if document.text or others]
    if not documents:
        raise ValueError(f"{path} holds no text at all: give at least one document that is not empty")
    return documents


def _read_file(file: Path, name: str, column: str, others: Sequence[str]) -> Iterable[Document]:
    reader = READERS.get(file.suffix.lower())
    if reader is None:
        raise ValueError(
            f"a data file must end in {', '.join(READERS)}, not {file.suffix or 'nothing'!r} ({file}): "
            "convert it to one of these"
        )
    if reader is read_text:
        if others:
            raise ValueError(
                f"a text file has no columns, and {column}, {', '.join(others)} are asked of {file}: give .jsonl, "
                ".json, .csv or .parquet files"
            )
        yield Document(name, read_text(file), name)
        return
    for number, row in enumerate(reader(file, (column, *others)), start=1):
        yield take_document(row, column, others, f"row {number} of {file}", f"{name}:{number}")


def take_document(row: Mapping[str, Any], column: str, others: Sequence[str], where: str, name: str) -> Document:
    """A row of a table as a document; whole numbers in the other columns, such as labels, become text."""
    text = take_text(row, column, where)
    plain = {key: str(row[key]) if isinstance(row.get(key), int) else row[key] for key in others if key in row}
    return Document(name, text, text, tuple(take_text({**row, **plain}, key, where) for key in others))


def take_text(row: Mapping[str, Any], column: str, where: str) -> str:
    """The text of a row; a missing value (null) is an empty text.

    Raises:
        ValueError: The row has no such column, or something else than text in it.
    """
    if not isinstance(row, Mapping):
        raise ValueError(f"{where} must be an object with fields, not {type(row).__name__}: see data.column")
    if column not in row:
        raise ValueError(
            f"{where} has no column {column!r}, only {', '.join(map(str, row)) or 'none at all'}: "
            "name the column that holds the text as data.column"
        )
    text = row[column]
    if text is not None and not isinstance(text, str):
        raise ValueError(
            f"the column {column!r} must hold text, but {where} holds {type(text).__name__}: "
            "name the column that holds the text as data.column"
        )
    try:
        (text or "").encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"text must be Unicode characters, but {where} has half a surrogate pair at character {error.start} of "
            f"{column!r}: mend how the file was written"
        ) from error
    return text or ""


def read_text(file: Path) -> str:
    """A whole file as text.

    Raises:
        ValueError: It is not UTF-8.
    """
    try:
        return file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"text must be UTF-8, but byte {error.start} of {file} is not: convert the file, for example with iconv"
        ) from error


def _read_json_lines(file: Path, columns: Sequence[str]) -> Iterable[Mapping[str, Any]]:
    # Not splitlines(): a JSON string may hold other line separators, such as U+2028, as they are.
    for number, line in enumerate(read_text(file).split("\n"), start=1):
        if line.strip():
            yield _parse_json(line, f"line {number} of {file}")


def _read_json(file: Path, columns: Sequence[str]) -> Iterable[Mapping[str, Any]]:
    rows = _parse_json(read_text(file), str(file))
    if not isinstance(rows, list):
        raise ValueError(f"{file} must hold a list of objects, not {type(rows).__name__}: use .jsonl for lines")
    return rows


def _parse_json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is not valid JSON ({error}): mend it, or name it .txt if it is text") from error


def _read_csv(file: Path, columns: Sequence[str]) -> Iterable[Mapping[str, Any]]:
    # A document may be longer than the 131,072 characters that the csv module takes for a field by default.
    limit = csv.field_size_limit(sys.maxsize)
    try:
        return list(csv.DictReader(io.StringIO(read_text(file), newline=""), strict=True))
    except csv.Error as error:
        raise ValueError(f"{file} is not valid CSV ({error}): check its quotes") from error
    finally:
        csv.field_size_limit(limit)


def _read_parquet(file: Path, columns: Sequence[str]) -> Iterable[Mapping[str, Any]]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(file) as table:
            if set(columns) - set(table.schema_arrow.names):
                return [dict.fromkeys(table.schema_arrow.names)] if table.metadata.num_rows else []
            return table.read(columns=list(columns)).to_pylist()
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{file} is not a Parquet file ({error}): check how it was written") from error


READERS: dict[str, Callable[..., Any]] = {
    ".txt": read_text,
    ".jsonl": _read_json_lines,
    ".json": _read_json,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}
"""How a file is read, by the ending of its name."""
