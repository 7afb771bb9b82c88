"""Cost against loss: what a grown model took to reach another's loss, as figure, table and ratios."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from gnomon.report.figures import COLORS, MARKERS, STYLE, label_ends, new_figure, short_count
from gnomon.report.tables import STAGE_COLUMNS, format_cell
from gnomon.training.folder import RunFolder
from gnomon.training.records import read_rows

LINE_STYLES = ("-", "--", ":")

COST_COLUMNS = {
    "run": "run",
    "stage": "stage",
    "parameters": "parameters",
    "tokens": "tokens",
    "flops": "FLOPs",
    "cumulative_flops": "FLOPs in all",
    "cumulative_seconds": "seconds in all",
    "train_loss": STAGE_COLUMNS["train_loss"],
    "validation_loss": STAGE_COLUMNS["validation_loss"],
    "perplexity": "perplexity",
    "bits_per_byte": "bits per byte",
}
"""Columns of the cost table: key -> heading."""

CURVE_KEYS = ("stage", "tokens", "flops", "cumulative_tokens", "cumulative_flops", "validation_loss")
"""What a stage's row must have to be drawn."""


@dataclass(frozen=True)
class CostCurve:
    """A run's validation losses by what they had cost.

    Args:
        name: of the run.
        flops: cumulative training FLOPs of each evaluation, rising.
        losses: validation loss there.
        stage_ends: the ledger: cumulative FLOPs and loss of each stage's end.
    """

    name: str
    flops: list[float]
    losses: list[float]
    stage_ends: list[tuple[float, float]]

    @property
    def final_loss(self) -> float:
        """Validation loss at the end."""
        return self.stage_ends[-1][1]

    @property
    def total_flops(self) -> float:
        """Training FLOPs in all."""
        return self.stage_ends[-1][0]

    def flops_at(self, loss: float) -> float | None:
        """Where the run first reaches a loss, between two evaluations by a straight line.

        Args:
            loss: to reach.

        Returns:
            Cumulative training FLOPs, or None when it never does.
        """
        points = sorted({*zip(self.flops, self.losses, strict=True), *self.stage_ends})
        for (start, high), (end, low) in itertools.pairwise(points):
            if high > loss >= low:
                return start + (end - start) * (high - loss) / (high - low)
        return points[0][0] if points and points[0][1] <= loss else None


def run_names(runs: Sequence[Path | str]) -> list[str]:
    """A name for every run: the shortest ends of their paths that tell them apart.

    Args:
        runs: Their folders.

    >>> run_names(["runs/chain/seed=0", "runs/scratch/seed=0"]), run_names(["runs/grown", "runs/scratch"])
    (['chain/seed=0', 'scratch/seed=0'], ['grown', 'scratch'])
    """
    parts = [Path(run).parts for run in runs]
    longest = max(map(len, parts), default=1)
    for length in range(1, longest + 1):
        names = ["/".join(each[-length:]) for each in parts]
        if len(set(names)) == len(names):
            break
    return names if runs else []


def read_curve(run: Path | str, name: str | None = None) -> CostCurve:
    """Read a run's curve from its ledger and metrics.

    Evaluations during a stage may have read a part of the held-out text, the ledger all of it. Where both stand, at the
    stage's end, their difference is known, and the stage's evaluations are moved by it.

    Args:
        run: The run's folder.
        name: What tables and figures call it; the folder's own if None.

    Returns:
        The curve.

    Raises:
        FileNotFoundError: The folder holds no finished stage.
        ValueError: Its ledger is not a run's, but for example a sweep's.
    """
    folder = RunFolder(Path(run))
    ledger = [row for row in read_rows(folder.ledger) if row.get("status") == "finished"]
    for row in ledger:
        missing = [key for key in CURVE_KEYS if key not in row]
        if missing:
            raise ValueError(
                f"{folder.ledger} has a row without {missing[0]}, which every stage of a run has; of a sweep name the "
                f"runs' own folders, such as {folder.root / str(row.get('run', 'seed=0'))}."
            )
    if not ledger:
        raise FileNotFoundError(f"{run} holds no finished stage (ledger.jsonl); name the folder of a finished run.")
    rows = [row for row in read_rows(folder.metrics) if "validation_loss" in row and row["stage"] < len(ledger)]
    at_end = {row["stage"]: row["validation_loss"] for row in rows}
    flops, losses = [], []
    for row in rows:
        stage = ledger[row["stage"]]
        tokens = row["tokens"] - (stage["cumulative_tokens"] - stage["tokens"])
        before = stage["cumulative_flops"] - stage["flops"]
        if tokens < stage["tokens"]:  # a stage's end is the ledger's: on all held-out text, in float32
            flops.append(before + stage["flops"] * tokens / stage["tokens"])
            losses.append(row["validation_loss"] + stage["validation_loss"] - at_end[row["stage"]])
    ends = [(float(row["cumulative_flops"]), row["validation_loss"]) for row in ledger]
    return CostCurve(name or Path(run).name, flops, losses, ends)


def cost_cells(runs: Sequence[Path | str]) -> tuple[list[str], list[list[str]]]:
    """Headings and cells of the cost table: a row a stage of every run.

    Args:
        runs: Folders of runs.
    """
    cells = []
    for run, name in zip(runs, run_names(runs), strict=True):
        for row in read_rows(RunFolder(Path(run)).ledger):
            named = {**row, "run": name}
            cells.append([format_cell(key.removeprefix("cumulative_"), named.get(key)) for key in COST_COLUMNS])
    return list(COST_COLUMNS.values()), cells


def compare(curves: Sequence[CostCurve], scratch: CostCurve) -> list[dict[str, Any]]:
    """What each run cost to come to a scratch run's loss, and within 1% of its perplexity, as shares of its cost.

    Args:
        curves: Runs to compare.
        scratch: The run to reach, of the largest size from the beginning.

    Returns:
        A row a run; a share is None where the loss was never reached.
    """
    targets = {"equal_loss": scratch.final_loss, "within_1_percent": scratch.final_loss + float(np.log(1.01))}
    rows = []
    for curve in curves:
        found = {name: curve.flops_at(loss) for name, loss in targets.items()}
        shares = {name: None if cost is None else cost / scratch.total_flops for name, cost in found.items()}
        rows.append({"run": curve.name, "final_loss": curve.final_loss, **shares})
    return rows


def draw_cost(curves: Sequence[CostCurve], *, floors: Mapping[str, float] | None = None) -> Figure:
    """Validation loss over cumulative training FLOPs, a line a run, a mark where a stage ends.

    Source: the form of TF figure 5, with counted FLOPs in place of hours.

    Args:
        curves: The runs.
        floors: Name -> loss to compare with, drawn as dotted lines.

    Returns:
        The figure.
    """
    with rc_context(STYLE):
        figure, axes = new_figure("Validation loss over training cost", "training FLOPs", "loss (nats per target)")
        labels = []
        for number, curve in enumerate(curves):
            color, marker = COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)]
            points = sorted({*zip(curve.flops, curve.losses, strict=True), *curve.stage_ends})
            dashes = LINE_STYLES[number // len(COLORS) % len(LINE_STYLES)]  # where the colors begin again
            axes.plot(*zip(*points, strict=True), color=color, linestyle=dashes, linewidth=1.6)
            axes.plot(
                *zip(*curve.stage_ends, strict=True),
                color=color,
                marker=marker,
                linewidth=0,
                markersize=6,
                clip_on=False,
            )
            labels.append((curve.name, *curve.stage_ends[-1], color))
        end = max(curve.total_flops for curve in curves)
        losses = [loss for curve in curves for loss in (*curve.losses, *dict(curve.stage_ends).values())]
        for name, loss in (floors or {}).items():
            axes.axhline(loss, color="#777777", linestyle=":", linewidth=1.2)
            labels.append((name, end, loss, "#777777"))
            losses.append(loss)
        room = 0.06 * (max(losses) - min(losses)) or 0.1
        axes.set_ylim(min(losses) - room, max(losses) + room)
        axes.set_xlim(0, end)
        axes.xaxis.set_major_formatter(lambda value, _: short_count(value))
        label_ends(axes, labels)
        return figure
