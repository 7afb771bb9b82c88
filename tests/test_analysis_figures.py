"""Tables and figures of analyses: the numbers they are given, in the words of the study."""

from pathlib import Path
from typing import Any

import pytest

from gnomon.report.analysis import (
    draw_heat_map,
    draw_signals,
    draw_updates,
    heat_map_keys,
    largest_rates,
    update_cells,
)
from gnomon.report.figures import save_figure

RATE, DEPTH, PLACEMENT = "stages.0.training.learning_rate", "model.num_hidden_layers", "model.norm_placement"


def row(placement: str, depth: int, update: float, bound: float | None) -> dict[str, Any]:
    """A row of a study."""
    numbers = {"update": update, "lowest": update / 2, "highest": update * 2, "bound": bound, "loss": 4.0, "runs": 2}
    signals = {"activations": [1.0 + n for n in range(depth)], "gradients": [1.0 / (1 + n) for n in range(depth)]}
    return {"placement": placement, "depth": depth, **numbers, **signals}


ROWS = [row("pre", 6, 10.0, 8.0), row("pre", 12, 30.0, 10.0), row("deep", 6, 0.5, None), row("deep", 12, 0.5, None)]


def ran(placement: str, depth: int, rate: float, seed: int, loss: float | None) -> dict[str, Any]:
    """A row of a sweep's ledger."""
    settings = {RATE: rate, PLACEMENT: placement, DEPTH: depth}
    about = {"run": f"{settings},{seed}", "settings": settings, "seed": seed}
    if loss is None:
        return about | {"status": "diverged", "stage": 0, "steps": 7, "reason": "the loss is nan"}
    measures = dict.fromkeys(("perplexity", "bits_per_byte", "seconds"), 1.0)
    return about | {"status": "finished", "validation_loss": loss, "parameters": 5, "tokens": 6, "flops": 7, **measures}


LEDGER = [
    ran("pre", 12, 0.001, 0, 3.0),
    ran("pre", 12, 0.001, 1, 3.2),
    ran("pre", 12, 0.01, 0, 2.5),
    ran("pre", 12, 0.01, 1, None),
    ran("pre", 24, 0.01, 0, None),
    ran("sub", 12, 0.001, 0, 2.9),
    ran("sub", 12, 0.01, 0, 2.4),
    ran("sub", 12, 0.1, 0, 3.4),
]


def test_the_table_sets_each_update_beside_the_placements_shallowest() -> None:
    """A tripled update reads 3.00, its bound 1.25, and a placement without a bound has dashes."""
    headings, cells = update_cells(ROWS)
    lines = [dict(zip(headings, line, strict=True)) for line in cells]
    assert lines[1]["over the shallowest"] == "3.00"
    assert lines[1]["bound over the shallowest"] == "1.25"
    assert lines[1]["lowest to highest"] == "15 to 60"
    assert lines[3]["bound / rate"] == "-"


def test_the_figure_draws_updates_relative_to_the_shallowest_with_the_bound_dotted() -> None:
    """Each placement is a line from 1, its bound another, and the depths themselves stand under the axis."""
    axes = draw_updates(ROWS).axes[0]
    named = {line.get_label(): line for line in axes.lines}
    assert list(named["pre, bound"].get_ydata()) == [1.0, 1.25]
    assert named["pre, bound"].get_linestyle() == ":"
    assert "deep, bound" not in named
    assert [bar.get_label() for bar in axes.containers] == ["pre", "deep"]
    assert list(axes.containers[0].lines[0].get_ydata()) == [1.0, 3.0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["6", "12"]


def test_the_signals_are_those_of_the_deepest_model_by_layer() -> None:
    """Both panels have a line a placement, with a number for each of its 12 layers."""
    figure = draw_signals(ROWS)
    assert len(figure.axes) == 2
    for axes, key in zip(figure.axes, ("activations", "gradients"), strict=True):
        assert [list(line.get_ydata()) for line in axes.lines] == [ROWS[1][key], ROWS[3][key]]
        assert list(axes.lines[0].get_xdata()) == list(range(1, 13))


def test_the_heat_map_shows_losses_and_what_diverged() -> None:
    """A panel a placement; means over seeds, how many seeds diverged, and no cell for what was not run."""
    figure = draw_heat_map(LEDGER, x=RATE, y=DEPTH, panel=PLACEMENT)
    pre, sub = figure.axes
    assert [axes.get_title(loc="left") for axes in (pre, sub)] == ["pre", "sub"]
    assert sorted(text.get_text() for text in pre.texts) == ["2.50\n1 div.", "3.10", "div."]
    assert sorted(text.get_text() for text in sub.texts) == ["2.40", "2.90", "3.40"]
    assert [label.get_text() for label in pre.get_xticklabels()] == ["0.001", "0.01", "0.1"]
    assert pre.get_xlabel() == "learning rate"


def test_many_panels_stand_in_rows() -> None:
    """Six placements over nine rates make a figure that a page can hold, with a name at the left of every row."""
    rows = [
        {**LEDGER[0], "settings": {RATE: rate, DEPTH: 12, PLACEMENT: name}}
        for name in ("pre", "post", "deep", "sub", "peri", "normformer")
        for rate in range(1, 10)
    ]
    figure = draw_heat_map(rows, x=RATE, y=DEPTH, panel=PLACEMENT)
    assert figure.get_size_inches()[0] <= 13
    assert len(figure.axes) == 6
    assert [axes.get_ylabel() != "" for axes in figure.axes] == [True, False] * 3


def test_a_sweep_over_rate_depth_and_one_more_key_has_a_heat_map() -> None:
    """The keys are found by what they set; without a depth there is none."""
    assert heat_map_keys(LEDGER) == {"x": RATE, "y": DEPTH, "panel": PLACEMENT}
    assert heat_map_keys([{**each, "settings": {RATE: 1.0, PLACEMENT: "pre"}} for each in LEDGER]) is None


def test_the_largest_rate_is_that_at_which_every_seed_trains() -> None:
    """A rate with a diverged seed, or a loss above the floor, does not count as one that trains."""
    shallow = [each for each in LEDGER if each["settings"][DEPTH] == 12]
    pre, sub = largest_rates(shallow, rate=RATE, panel=PLACEMENT, floor=3.3)
    assert (pre["largest"], pre["best"], pre["seeds"]) == (0.001, 0.001, 2)
    assert pre["loss"] == pytest.approx(3.1)
    assert (sub["largest"], sub["best"], sub["loss"]) == (0.01, 0.01, 2.4)
    (none,) = largest_rates([ran("post", 12, 0.1, 0, None)], rate=RATE, panel=PLACEMENT, floor=3.3)
    assert none["largest"] is none["loss"] is None


@pytest.mark.parametrize("draw", [draw_updates, draw_signals])
def test_nothing_to_draw_is_refused(draw: Any) -> None:
    """A study without rows gets one sentence."""
    with pytest.raises(ValueError, match="measure at least one"):
        draw([])


def test_a_heat_map_of_a_key_that_is_not_there_is_refused() -> None:
    """The sentence names the sweep's keys and the one that came."""
    with pytest.raises(ValueError, match=r"keys of the sweep, which are .*norm_placement.*; got 'seed'"):
        draw_heat_map(LEDGER, x=RATE, y="seed", panel=PLACEMENT)


def test_the_same_numbers_give_the_same_svg(tmp_path: Path) -> None:
    """Two drawings of one study are equal byte by byte."""
    for draw in (draw_updates, draw_signals):
        first, second = (save_figure(draw(ROWS), tmp_path / name)[0].read_bytes() for name in ("a", "b"))
        assert first == second
