"""What commands print: tables, JSON, sizes; and the refusal to write over anything."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def refuse_existing(output: Path) -> None:
    """Refuse an output that exists, before any work is done.

    Raises:
        FileExistsError: There is a file or a folder of this name.
    """
    if os.path.lexists(output):
        raise FileExistsError(f"the output {output} exists: remove it, or name another output.")


def print_json(payload: Mapping[str, Any] | list[Any]) -> None:
    """Print one JSON document on stdout."""
    print(json.dumps(payload, indent=2, ensure_ascii=False))


def print_table(title: str, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Print a table; columns of numbers are aligned to the right, and the first column is never broken."""
    from rich.console import Console
    from rich.table import Table

    body = [list(row) for row in rows]
    columns = list(columns)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=any(columns))
    for index, column in enumerate(columns):
        is_number = bool(body) and all(isinstance(row[index], int | float) for row in body)
        table.add_column(column, justify="right" if is_number else "left", no_wrap=index == 0, overflow="fold")
    for row in body:
        table.add_row(*(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row))
    console = Console(highlight=False)
    console.print(title, markup=False, soft_wrap=True)
    console.print(table)


def print_cells(title: str, headings: list[str], cells: list[list[str]]) -> None:
    """Print a ledger, whose cells the report has formatted.

    Where a terminal is too narrow for a few rows, they are printed as columns; a file is as wide as it has to be.
    """
    from rich.console import Console

    from gnomon.report.tables import to_rich

    console = Console(highlight=False)
    width = sum(max(map(len, column)) + 2 for column in zip(headings, *cells, strict=True))
    if not console.is_terminal:
        console.width = max(console.width, width)
    if width > console.width and len(cells) <= 3:
        print_table(title, ["", *[""] * len(cells)], zip(headings, *cells, strict=True))
    else:
        console.print(to_rich(title, headings, cells))


def readable_bytes(number: int) -> str:
    """A size in decimal units.

    >>> readable_bytes(607524864)
    '607.5 MB'
    """
    size = float(number)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            break
        size /= 1000
    return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
