"""Tables and figures of analyses: model updates over depth, signals over layers, and a sweep as a heat map."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, NullLocator

from gnomon.report.figures import COLORS, INK, MARKERS, STYLE, new_figure
from gnomon.report.tables import Rows, short_keys, summarize

UPDATE_HEADINGS = [
    "placement",
    "layers",
    "update / rate",
    "lowest to highest",
    "over the shallowest",
    "bound / rate",
    "bound over the shallowest",
    "loss",
]


def update_cells(rows: Rows) -> tuple[list[str], list[list[str]]]:
    """Headings and cells of a study of updates, each also over that of the placement's shallowest model.

    Args:
        rows: of `gnomon.analysis.updates.measure_depths`.

    Returns:
        The headings, and a line for each placement and depth.
    """
    cells = []
    for row in rows:
        first = _shallowest(rows, row["placement"])
        bound = row["bound"]
        cells.append(
            [
                row["placement"],
                f"{row['depth']}",
                f"{row['update']:.4g}",
                f"{row['lowest']:.4g} to {row['highest']:.4g}",
                f"{row['update'] / first['update']:.2f}",
                "-" if bound is None else f"{bound:.4g}",
                "-" if bound is None else f"{bound / first['bound']:.2f}",
                f"{row['loss']:.3f}",
            ]
        )
    return list(UPDATE_HEADINGS), cells


def draw_updates(rows: Rows, *, title: str = "Model update of one SGD step") -> Figure:
    """The update over depth as a multiple of the shallowest model's, with the published bounds dotted.

    Args:
        rows: of `gnomon.analysis.updates.measure_depths`.
        title: What the figure shows.

    Returns:
        The figure, both axes logarithmic.

    Raises:
        ValueError: There are no rows.
    """
    if not rows:
        raise ValueError("there are no updates to draw; measure at least one placement at one depth.")
    placements = list(dict.fromkeys(row["placement"] for row in rows))
    with rc_context(STYLE):
        figure, axes = new_figure(title, "layers", "update, over that of the shallowest")
        for number, placement in enumerate(placements):
            color, marker = COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)]
            line = [row for row in rows if row["placement"] == placement]
            first = _shallowest(rows, placement)
            depths = [row["depth"] for row in line]
            relative = [row["update"] / first["update"] for row in line]
            below = [(row["update"] - row["lowest"]) / first["update"] for row in line]
            above = [(row["highest"] - row["update"]) / first["update"] for row in line]
            axes.errorbar(
                depths,
                relative,
                [below, above],
                color=color,
                marker=marker,
                markersize=5,
                linewidth=1.8,
                elinewidth=0.9,
                capsize=2,
                label=placement,
            )
            if first["bound"] is not None:
                bounds = [row["bound"] / first["bound"] for row in line]
                axes.plot(depths, bounds, color=color, linestyle=":", linewidth=1.6, label=f"{placement}, bound")
        axes.set_xscale("log")
        axes.set_yscale("log")
        _plain_ticks(axes, sorted({row["depth"] for row in rows}))
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=9)
        return figure


def draw_signals(rows: Rows, *, title: str = "Signals by layer") -> Figure:
    """Activation size and gradient norm of every layer, of each placement's deepest model.

    Args:
        rows: of `gnomon.analysis.updates.measure_depths`.
        title: What the figure shows.

    Returns:
        The figure, with two panels.

    Raises:
        ValueError: There are no rows.
    """
    if not rows:
        raise ValueError("there are no signals to draw; measure at least one model.")
    deepest = {row["placement"]: row for row in sorted(rows, key=lambda row: row["depth"])}
    panels = {"activations": "activation RMS behind the layer", "gradients": "norm of the layer's gradient"}
    with rc_context(STYLE):
        figure = _panels(title, len(panels))
        for axes, (key, label) in zip(figure.axes, panels.items(), strict=True):
            for number, (placement, row) in enumerate(deepest.items()):
                layers = range(1, len(row[key]) + 1)
                axes.plot(layers, row[key], color=COLORS[number % len(COLORS)], linewidth=1.8, label=placement)
            axes.set_yscale("log")
            axes.set_xlabel("layer", color=INK)
            axes.set_title(label, color=INK, fontsize=10)
        figure.axes[-1].legend(frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=9)
        return figure


WIDEST_HEAT_MAP = 13.0
"""Inches; more panels than fit stand below one another."""


def draw_heat_map(ledger: Rows, *, x: str, y: str, panel: str, title: str = "Validation loss") -> Figure:
    """A sweep as a heat map for each value of one key: final loss by two others, and what diverged.

    Args:
        ledger: A sweep's rows.
        x: Dotted key of the columns.
        y: Dotted key of the rows.
        panel: Dotted key of the panels.
        title: What the figure shows.

    Returns:
        The figure; a setting where some seed diverged is marked with how many did, one not run is empty.

    Raises:
        ValueError: A key is none of the sweep's, or no run has finished.
    """
    summaries = summarize(ledger)
    keys = list(dict.fromkeys(key for summary in summaries for key in summary["settings"]))
    for key in (x, y, panel):
        if key not in keys:
            raise ValueError(f"a heat map needs keys of the sweep, which are {', '.join(keys) or 'none'}; got {key!r}.")
    losses = [summary["validation_loss"] for summary in summaries if summary["losses"]]
    if not losses:
        raise ValueError("no run of the sweep has finished, so there is nothing to draw; see its ledger.jsonl.")
    columns, lines = (sorted(_values(summaries, key), key=_sort_key) for key in (x, y))
    panels = _values(summaries, panel)
    short = short_keys(keys)
    colors = colormaps["viridis_r"]
    low, high = min(losses), max(losses)
    with rc_context({**STYLE, "axes.grid": False}):
        size = {"width": 0.5 + 0.62 * len(columns), "height": 1.6 + 0.42 * len(lines)}
        figure = _panels(title, len(panels), **size, widest=WIDEST_HEAT_MAP)
        for axes, value in zip(figure.axes, panels, strict=True):
            for summary in summaries:
                settings = summary["settings"]
                if settings[panel] == value:
                    place = columns.index(settings[x]), lines.index(settings[y])
                    _draw_cell(axes, place, summary, colors, low, high)
            axes.set_xlim(-0.5, len(columns) - 0.5)
            axes.set_ylim(-0.5, len(lines) - 0.5)
            axes.set_xticks(
                range(len(columns)),
                [f"{column:g}" if _is_number(column) else str(column) for column in columns],
                rotation=45,
            )
            axes.set_yticks(range(len(lines)), [str(line) for line in lines])
            axes.tick_params(length=0)
            axes.set_title(str(value), color=INK, fontsize=10)
            axes.set_xlabel(short[x].replace("_", " "), color=INK)
        for axes in figure.axes:
            if axes.get_subplotspec().is_first_col():
                axes.set_ylabel(short[y].replace("_", " "), color=INK)
        return figure


def heat_map_keys(ledger: Rows) -> dict[str, str] | None:
    """The keys of a sweep that make a heat map: a learning rate, a depth, and one more that names the panels.

    Args:
        ledger: A sweep's rows.

    Returns:
        The arguments `x`, `y` and `panel` of `draw_heat_map`, or None where the grid is another.
    """
    keys = list(dict.fromkeys(key for row in ledger for key in row["settings"]))
    rates = [key for key in keys if key.endswith(".learning_rate")]
    depths = [key for key in keys if key.endswith("num_hidden_layers")]
    others = [key for key in keys if key not in (*rates, *depths)]
    if len(rates) == len(depths) == len(others) == 1:
        return {"x": rates[0], "y": depths[0], "panel": others[0]}
    return None


def largest_rates(ledger: Rows, *, rate: str, panel: str, floor: float) -> list[dict[str, Any]]:
    """For each value of a key, the largest rate at which every seed trains, and the final loss at the best rate.

    A run trains when it finished with a validation loss below `floor`.

    Args:
        ledger: A sweep's rows, all of one depth.
        rate: Dotted key of the learning rate.
        panel: Dotted key of the values to compare.
        floor: A loss that a model reaches which has learned next to nothing, such as the unigram's.

    Returns:
        A row for each value: `largest` (None where no rate trains), `best`, `loss`, `seeds`, `lowest`, `highest`.
    """
    results = []
    summaries = summarize(ledger)
    for value in _values(summaries, panel):
        mine = [summary for summary in summaries if summary["settings"][panel] == value]
        trained = [each for each in mine if not each["diverged"] and each["losses"] and max(each["losses"]) < floor]
        best = min(trained, key=lambda each: each["validation_loss"], default=None)
        results.append(
            {
                panel: value,
                "largest": max((each["settings"][rate] for each in trained), default=None),
                "best": best and best["settings"][rate],
                "loss": best and best["validation_loss"],
                "seeds": best and best["seeds"],
                "lowest": best and min(best["losses"]),
                "highest": best and max(best["losses"]),
            }
        )
    return results


def _draw_cell(
    axes: Axes, place: tuple[int, int], summary: Mapping[str, Any], colors: Any, low: float, high: float
) -> None:
    """One setting: its color and its loss, or that it diverged."""
    from matplotlib.patches import Rectangle

    x, y = place
    diverged, loss = summary["diverged"], summary["validation_loss"]
    share = 0.0 if loss is None or high == low else (loss - low) / (high - low)
    face = "#dddddd" if loss is None else colors(share)
    axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=face, edgecolor="white"))
    text = "div." if loss is None else f"{loss:.2f}" + (f"\n{diverged} div." if diverged else "")
    axes.text(x, y, text, ha="center", va="center", fontsize=7, color="white" if share > 0.55 else INK)


def _panels(title: str, count: int, *, width: float = 4.2, height: float = 3.4, widest: float | None = None) -> Figure:
    """An empty figure with panels side by side under one title, in rows of at most `widest` inches."""
    columns = count if widest is None else min(count, max(1, int(widest // width)))
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    figure.subplots(rows, columns, sharey=False)
    for spare in figure.axes[count:]:
        spare.remove()
    figure.suptitle(title, x=0.01, ha="left", color=INK, fontsize=12)
    return figure


def _plain_ticks(axes: Axes, depths: Sequence[int]) -> None:
    """Write the depths themselves under a logarithmic axis, and plain multiples beside the other."""
    axes.xaxis.set_major_locator(FixedLocator(depths))
    axes.xaxis.set_major_formatter(FixedFormatter([str(depth) for depth in depths]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _shallowest(rows: Rows, placement: str) -> Mapping[str, Any]:
    return min((row for row in rows if row["placement"] == placement), key=lambda row: row["depth"])


def _values(summaries: Rows, key: str) -> list[Any]:
    return list(dict.fromkeys(summary["settings"].get(key) for summary in summaries))


def _sort_key(value: Any) -> tuple[bool, float, str]:
    return (False, float(value), "") if _is_number(value) else (True, math.inf, str(value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
