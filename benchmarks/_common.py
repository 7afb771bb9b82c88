"""What the benchmarks share: turns taken in one process, ratios with their spread, and the files they write."""

import argparse
import json
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent

Seconds = dict[str, list[float]]
"""Seconds by contender, one entry a round."""


@dataclass(frozen=True)
class Spread:
    """A median and the quartiles around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Summarise at least two values."""
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


@dataclass
class Report:
    """One table with what it takes to read it, for the screen, as Markdown and as JSON."""

    title: str
    about: list[str]
    columns: list[str]
    rows: list[list[str]] = field(default_factory=list)
    cases: list[dict[str, Any]] = field(default_factory=list)
    """What the rows were made from, every round's seconds included."""

    def add(self, row: Sequence[object], **case: Any) -> None:
        """Append one row and the numbers behind it."""
        self.rows.append([str(cell) for cell in row])
        self.cases.append(case)

    def show(self) -> None:
        """Print the table."""
        table = Table(title=self.title)
        for number, column in enumerate(self.columns):
            table.add_column(column, justify="left" if number == 0 else "right")
        for row in self.rows:
            table.add_row(*row)
        console = Console(width=max(110, Console().width))  # narrower, it would cut numbers off
        console.print(table)
        for line in self.about:
            console.print(line, highlight=False, markup=False)

    def write(self, folder: Path, name: str, conditions: Mapping[str, Any]) -> list[Path]:
        """Write NAME.md and NAME.json, whole or not at all; return their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        document = {"title": self.title, "about": self.about, **conditions, "cases": self.cases}
        paths = [folder / f"{name}.md", folder / f"{name}.json"]
        for path, text in zip(paths, (self._markdown(conditions), json.dumps(document, indent=1) + "\n"), strict=True):
            temporary = path.with_name(f".{path.name}.partial")
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(path)
        return paths

    def _markdown(self, conditions: Mapping[str, Any]) -> str:
        lines = [f"# {self.title}", "", "    " + str(conditions["command"]), ""]
        lines += ["| " + " | ".join(row) + " |" for row in [self.columns, ["---"] * len(self.columns), *self.rows]]
        lines += ["", *(f"{line}\n" for line in self.about)]
        lines += [f"- {key.replace('_', ' ')}: {value}" for key, value in conditions.items() if key != "command"]
        return "\n".join(lines) + "\n"


def options(description: str, *, rounds: int) -> argparse.ArgumentParser:
    """The command line that all benchmarks share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=_rounds, default=rounds, help="timed turns of each contender (at least 2)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of torch; default: all cores")
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "benchmarks", help="folder of the two files")
    return parser


def conditions(script: str) -> dict[str, Any]:
    """What a reader needs to run the benchmark again and to judge its numbers; no name of the machine."""
    versions = {name: version(name) for name in ("gnomon", "torch", "transformers", "accelerate")}
    return {
        "command": shlex.join(["python", f"benchmarks/{Path(script).name}", *sys.argv[1:]]),
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        **versions,
    }


def interleave(
    contenders: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    warmup: int = 2,
    after_round: Callable[[], object] = lambda: None,
) -> Seconds:
    """Time the contenders in turn, so that what slows the machine for a while slows them all.

    The order moves by one each round, so that no contender always follows the same one.

    Args:
        contenders: name -> one turn of it.
        rounds: how often each has its turn.
        warmup: turns of each that are not timed.
        after_round: called after each round, outside of what is timed.

    Returns:
        The seconds of every timed turn.
    """
    names = list(contenders)
    for _ in range(warmup):
        for name in names:
            contenders[name]()
    seconds: Seconds = {name: [] for name in names}
    for number in range(rounds):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            began = time.perf_counter()
            contenders[name]()
            seconds[name].append(time.perf_counter() - began)
        after_round()
    return seconds


def ratio(seconds: Seconds, name: str, base: str) -> Spread:
    """Time of one contender over another's in the same round, over all rounds."""
    return Spread.of([above / below for above, below in zip(seconds[name], seconds[base], strict=True)])


def _rounds(text: str) -> int:
    """A number of rounds; one alone has no spread."""
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"needs a whole number of at least 2; got {text!r}")
    return int(text)


def _processor() -> str:
    """The processor's model, as Linux or else as Python names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
