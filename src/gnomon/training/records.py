"""Small files that are whole or absent: JSON documents, and JSON lines with one row a line."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Write a file beside its place, flush it, and move it there."""
    temporary = path.with_name(f".{path.name}.partial")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON document, whole or not at all."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON document, which is an object with keys.

    Raises:
        ValueError: The file is not JSON, or holds another kind of value.
    """
    remedy = "name another folder, or remove this one and start again."
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error}); {remedy}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a JSON object, but holds a {type(value).__name__}; {remedy}")
    return value


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Add one line; a process that dies here leaves at most one unfinished line, which `read_rows` skips."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read JSON lines; a missing file has none, and an unfinished last line is no row.

    Raises:
        ValueError: Another line is not JSON, or no object.
    """
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            if number == len(lines) and not line.endswith("\n"):
                break
            raise ValueError(f"{path}, line {number}, is not JSON ({error.msg}); remove that line.") from None
        if not isinstance(row, dict):
            raise ValueError(f"{path}, line {number}, holds {row!r:.40}, which is no JSON object; remove that line.")
        rows.append(row)
    return rows


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write JSON lines, all or none of them."""
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
