"""Figures: the numbers they are given, the same bytes every time, and words on every axis."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from gnomon.report.figures import draw_loss_curve, draw_sweep, save_figure
from gnomon.report.run import draw_run
from gnomon.training.records import append_row

METRICS: list[dict[str, Any]] = [
    {"stage": stage, "step": step, "total_step": 30 * stage + step, "tokens": 1000 * (30 * stage + step), **values}
    for stage, step, values in (
        (0, 10, {"loss": 4.0}), (0, 20, {"loss": 3.0}), (0, 20, {"validation_loss": 3.2}), (0, 30, {"loss": 2.5}),
        (0, 30, {"validation_loss": 2.6}), (1, 10, {"loss": 2.4}), (1, 10, {"validation_loss": 2.45}),
    )
]  # fmt: skip


def swept(settings: dict[str, Any], seed: int, loss: float | None) -> dict[str, Any]:
    """A row of a sweep's ledger."""
    row = {"run": f"{settings},{seed}", "settings": settings, "seed": seed}
    if loss is None:
        return row | {"status": "diverged", "stage": 0, "steps": 7, "reason": "the loss is nan"}
    measures = dict.fromkeys(("perplexity", "bits_per_byte", "seconds"), 1.0)
    return row | {"status": "finished", "validation_loss": loss, "parameters": 5, "tokens": 6, "flops": 7, **measures}


LEDGER = [
    swept({"a.learning_rate": rate, "model.preset": preset}, seed, None if rate == 1.0 else rate + 0.1 * seed + shift)
    for preset, shift in (("tokens", 0.0), ("linear", 0.5))
    for rate in (0.01, 0.1, 1.0)
    for seed in (0, 1)
]


def texts(figure: Any) -> list[str]:
    """Every word that a figure shows."""
    return [text.get_text() for text in figure.axes[0].texts]


def test_the_curve_shows_the_rows_and_names_its_lines() -> None:
    """Both losses are drawn over the whole run's steps, with units, names at the ends, stages and floors marked."""
    figure = draw_loss_curve(METRICS, floors={"3-gram": 2.0}, title="Loss")
    axes = figure.axes[0]
    train, held_out = axes.lines[:2]
    assert list(zip(*train.get_data(), strict=True)) == [(10, 4.0), (20, 3.0), (30, 2.5), (40, 2.4)]
    assert list(zip(*held_out.get_data(), strict=True)) == [(20, 3.2), (30, 2.6), (40, 2.45)]
    assert axes.get_ylabel() == "loss (nats per target)"
    assert axes.get_xlabel() == "training steps"
    assert {"training", "validation", "stage 1", "3-gram"} <= set(texts(figure))
    by_tokens = draw_loss_curve(METRICS, "tokens").axes[0]
    assert by_tokens.get_xlabel() == "training tokens"
    assert max(by_tokens.lines[0].get_xdata()) == 40_000


def test_names_at_the_ends_never_touch() -> None:
    """Lines that end at the same loss have their names written one above the other."""
    rows = [{**row, **{key: 2.0 for key in row if key.endswith("loss")}} for row in METRICS]
    figure = draw_loss_curve([*rows, METRICS[0]], floors={"bigram": 2.0, "3-gram": 2.0})
    low, high = figure.axes[0].get_ylim()
    heights = sorted(text.xy[1] for text in figure.axes[0].texts if not text.get_text().startswith("stage"))
    gaps = [later - earlier for earlier, later in itertools.pairwise(heights)]
    assert min(gaps) > 0.05 * (high - low)


def test_a_sweep_is_drawn_as_means_with_the_whole_spread() -> None:
    """A line a preset over the rates that finished; its points are means, its bars reach from lowest to highest."""
    figure = draw_sweep(LEDGER)
    axes = figure.axes[0]
    assert axes.get_xlabel() == "learning rate"
    assert axes.get_xscale() == "log"
    assert len(axes.containers) == 2
    means = axes.containers[0].lines[0]
    assert list(means.get_xdata()) == [0.01, 0.1]
    assert list(means.get_ydata()) == pytest.approx([0.06, 0.15])
    bars = axes.containers[0].lines[2][0].get_segments()
    assert [segment[:, 1].tolist() for segment in bars] == [pytest.approx([0.01, 0.11]), pytest.approx([0.1, 0.2])]
    assert {"preset tokens", "preset linear"} <= set(texts(figure))
    assert any("2 seeds" in text for text in texts(figure))


def test_lines_are_named_by_what_differs_and_the_fewest_seeds_are_told() -> None:
    """A key that all runs share is in no name, and means of one to two seeds say so."""
    rows = [
        swept({"training.learning_rate": rate, "model.preset": name, "model.num_hidden_layers": 48}, seed, 1.0 + rate)
        for name in ("tokens", "linear")
        for rate, seed in ((0.1, 0), (0.1, 1), (0.2, 0))
    ]
    words = texts(draw_sweep(rows))
    assert {"preset tokens", "preset linear"} <= set(words)
    assert not any("48" in text for text in words)
    assert any("1 to 2 seeds" in text for text in words)


def test_settings_that_are_words_stand_side_by_side() -> None:
    """A grid over names has a tick a name and no line between them."""
    rows = [swept({"model.preset": name}, 0, loss) for name, loss in (("tokens", 2.0), ("linear", 1.9))]
    axes = draw_sweep(rows).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["tokens", "linear"]


def test_the_same_numbers_give_the_same_bytes(tmp_path: Path) -> None:
    """An SVG changes only when its numbers do, so that a repository can hold it; a PNG is there beside it."""
    for name, draw in (("curve", lambda: draw_loss_curve(METRICS)), ("sweep", lambda: draw_sweep(LEDGER))):
        first, _ = save_figure(draw(), tmp_path / "a" / name)
        second, picture = save_figure(draw(), tmp_path / "b" / name)
        assert first.read_bytes() == second.read_bytes()
        assert picture.read_bytes().startswith(b"\x89PNG")
    changed, _ = save_figure(draw_loss_curve(METRICS[:-1]), tmp_path / "c" / "curve")
    assert changed.read_bytes() != (tmp_path / "a" / "curve.svg").read_bytes()


def test_nothing_to_draw_is_told_and_a_run_without_rows_has_no_figures(tmp_path: Path) -> None:
    """Empty metrics and a sweep that only diverged are refused in a sentence; an empty folder stays empty."""
    with pytest.raises(ValueError, match="no losses to draw"):
        draw_loss_curve([])
    with pytest.raises(ValueError, match="no run of the sweep has finished"):
        draw_sweep([swept({"seed": 1}, 1, None)])
    assert draw_run(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
    append_row(tmp_path / "metrics.jsonl", METRICS[0])
    assert {path.suffix for path in draw_run(tmp_path)} == {".svg", ".png"}
