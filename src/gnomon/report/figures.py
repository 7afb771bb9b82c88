"""Figures as SVG and PNG; the same numbers give the same SVG, byte by byte."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from gnomon.report.tables import Rows, short_keys, summarize

STYLE: dict[str, Any] = {
    "svg.hashsalt": "gnomon",
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e3e3e3",
    "axes.axisbelow": True,
    "axes.edgecolor": "#666666",
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "axes.titlepad": 12,
}
INK, TRAIN, VALIDATION, FLOOR = "#222222", "#9db8d2", "#c2410c", "#777777"
COLORS = ("#1f5fa8", "#c2410c", "#2b8a3e", "#7b3fa0", "#a07800", "#5a5a5a")
MARKERS = ("o", "s", "^", "D", "v", "P")
X_AXES = {"total_step": "training steps", "tokens": "training tokens"}


def draw_loss_curve(
    metrics: Rows, x: str = "total_step", *, floors: Mapping[str, float] | None = None, title: str = "Loss"
) -> Figure:
    """Training and validation loss over steps or tokens, with a line where a stage begins.

    Args:
        metrics: The rows of a run's metrics.jsonl.
        x: `total_step` or `tokens`.
        floors: Name -> loss to compare with, drawn as dotted lines.
        title: What the figure shows.

    Raises:
        ValueError: There are no losses to draw.
    """
    train = [(row[x], row["loss"]) for row in metrics if "loss" in row]
    held_out = [(row[x], row["validation_loss"]) for row in metrics if "validation_loss" in row]
    if not train and not held_out:
        raise ValueError("the metrics hold no losses to draw; train for at least one step.")
    with rc_context(STYLE):
        figure, axes = new_figure(title, X_AXES[x], "loss (nats per target)")
        if train:
            axes.plot(*zip(*train, strict=True), color=TRAIN, linewidth=1.5, clip_on=False)
        if held_out:
            axes.plot(
                *zip(*held_out, strict=True),
                color=VALIDATION,
                marker="o",
                markersize=4,
                linewidth=1.8,
                clip_on=False,
                zorder=3,
            )
        _mark_stages(axes, metrics, x)
        labels = [("training", *train[-1], "#5b86b0")] if train else []
        labels += [("validation", *held_out[-1], VALIDATION)] if held_out else []
        end = max(point[0] for point in train + held_out)
        for name, loss in (floors or {}).items():
            axes.axhline(loss, color=FLOOR, linestyle=":", linewidth=1.2)
            labels.append((name, end, loss, FLOOR))
        losses = [loss for _, loss in train + held_out] + [*(floors or {}).values()]
        _limit(axes, end, losses)
        label_ends(axes, labels)
        return figure


def draw_sweep(ledger: Rows, *, title: str = "Validation loss of every setting") -> Figure:
    """Validation loss over the first key of the grid, a line for every other setting, a bar from lowest to highest.

    Args:
        ledger: A sweep's rows.
        title: What the figure shows.

    Raises:
        ValueError: No run has finished.
    """
    summaries = [summary for summary in summarize(ledger) if summary["losses"]]
    if not summaries:
        raise ValueError("no run of the sweep has finished, so there is nothing to draw; see its ledger.jsonl.")
    keys = list(dict.fromkeys(key for summary in summaries for key in summary["settings"]))
    # A named variant is a line of its own; the first other key is the axis.
    axis = next((key for key in keys if key != "variant"), keys[0] if keys else "")
    values = list(dict.fromkeys(summary["settings"].get(axis) for summary in summaries))
    numeric = len(values) > 1 and all(_is_number(value) for value in values)
    short = short_keys(keys)
    lines: dict[str, list[Any]] = {}
    told = [key for key in keys if key != axis and len({str(each["settings"].get(key)) for each in summaries}) > 1]
    for summary in summaries:
        others = ", ".join(f"{short[key]} {summary['settings'].get(key)}" for key in told)
        lines.setdefault(others, []).append(summary)
    with rc_context(STYLE):
        figure, axes = new_figure(
            title, short.get(axis, "the recipe").replace("_", " "), "validation loss (nats per target)"
        )
        labels = []
        for number, (name, points) in enumerate(lines.items()):
            color, marker = COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)]
            xs = [
                point["settings"].get(axis) if numeric else values.index(point["settings"].get(axis))
                for point in points
            ]
            means = [point["validation_loss"] for point in points]
            spans = [
                [mean - min(point["losses"]) for mean, point in zip(means, points, strict=True)],
                [max(point["losses"]) - mean for mean, point in zip(means, points, strict=True)],
            ]
            order = sorted(range(len(xs)), key=xs.__getitem__)
            axes.errorbar(
                [xs[i] for i in order],
                [means[i] for i in order],
                [[side[i] for i in order] for side in spans],
                color=color,
                marker=marker,
                markersize=5,
                linewidth=1.8 if numeric else 0,
                elinewidth=1.2,
                capsize=3,
            )
            labels.append((name, xs[order[-1]], means[order[-1]], color))
        if numeric and min(values) > 0 and max(values) / min(values) >= 4:
            axes.set_xscale("log")
            axes.minorticks_off()
        if not numeric:
            axes.margins(x=0.15)
        axes.set_xticks(values if numeric else range(len(values)), [_tick(value) for value in values])
        counts = [len(summary["losses"]) for summary in summaries]
        seeds = " to ".join(str(count) for count in sorted({min(counts), max(counts)}))
        if seeds != "1":
            axes.set_title(title, color=INK, pad=26)
            axes.annotate(
                f"mean of {seeds} seeds, bars from the lowest to the highest",
                (0, 1),
                xycoords="axes fraction",
                xytext=(0, 10),
                textcoords="offset points",
                fontsize=9,
                color="#555555",
            )
        label_ends(axes, [label for label in labels if label[0]])
        return figure


def save_figure(figure: Figure, path: Path) -> list[Path]:
    """Write a figure beside `path` as .svg and .png.

    Args:
        figure: What to write.
        path: Folder and name, without an ending.

    Returns:
        The two files.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    written = [path.with_name(f"{path.name}.svg"), path.with_name(f"{path.name}.png")]
    with rc_context(STYLE):
        figure.savefig(written[0], metadata={"Date": None, "Creator": None}, bbox_inches="tight")
        figure.savefig(written[1], dpi=160, metadata={"Software": None}, bbox_inches="tight")
    return written


def new_figure(title: str, x_label: str, y_label: str) -> tuple[Figure, Axes]:
    """An empty figure of the house's shape, without pyplot's global state."""
    figure = Figure(figsize=(7.2, 4.2))
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(title, color=INK)
    axes.set_xlabel(x_label, color=INK)
    axes.set_ylabel(y_label, color=INK)
    return figure, axes


def _mark_stages(axes: Axes, metrics: Rows, x: str) -> None:
    """A thin line where every stage but the first begins."""
    stages = list(dict.fromkeys(row["stage"] for row in metrics))
    for before, stage in itertools.pairwise(stages):
        start = max(row[x] for row in metrics if row["stage"] == before)
        axes.axvline(start, color="#bbbbbb", linewidth=1)
        axes.annotate(
            f"stage {stage}",
            (start, 1),
            xycoords=("data", "axes fraction"),
            xytext=(4, -2),
            textcoords="offset points",
            va="top",
            fontsize=8,
            color="#777777",
        )


def _limit(axes: Axes, end: float, losses: Sequence[float]) -> None:
    """Begin at zero steps, leave room for the labels, and write large counts shortly."""
    axes.set_xlim(0, end)
    low, high = min(losses), max(losses)
    room = 0.06 * (high - low) or 0.1
    axes.set_ylim(low - room, high + room)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short_count(value)))


def label_ends(axes: Axes, labels: Iterable[tuple[str, float, float, str]]) -> None:
    """Write each line's name right of its end, pushed apart where names would touch."""
    low, high = axes.get_ylim()
    start, end = axes.get_xlim()
    least, near = (high - low) * 0.055, (end - start) * 0.2
    placed: list[tuple[float, float]] = []
    for name, x, y, color in sorted(labels, key=lambda label: label[2]):
        height = max([y, *(below + least for other, below in placed if abs(other - x) < near)])
        placed.append((x, height))
        axes.annotate(
            name,
            (x, height),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            color=color,
            fontsize=9,
            annotation_clip=False,
            # where another line passes below; a stroke of the letters would turn an SVG's words into outlines
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5},
        )


def short_count(value: float) -> str:
    """A count with its unit.

    >>> short_count(1500), short_count(4_096_000), short_count(20)
    ('1.5k', '4.1M', '20')
    """
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}" if value % size == 0 else f"{value / size:.1f}{unit}"
    return f"{value:g}"


def _tick(value: Any) -> str:
    """A setting's value under the axis."""
    return f"{value:g}" if _is_number(value) else str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
