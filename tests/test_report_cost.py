"""Cost against loss: where a curve reaches a loss, shares of another's cost, and the command that prints them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gnomon.report.cost import CostCurve, compare, draw_cost, read_curve
from gnomon.report.figures import save_figure
from gnomon.training.recipe import load_recipe
from gnomon.training.stages import run
from tiny_runs import read_lines, tiny_recipe, write_page

GNOMON = Path(sys.executable).parent / "gnomon"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A grown run and a run from scratch."""
    folder = tmp_path_factory.mktemp("cost")
    page = write_page(folder)
    recipe = tiny_recipe(page, max_steps=8, evaluate_every=2)
    recipe["stages"].append({"growth": {"num_feed_forward_tokens": 48}, "training": {"max_steps": 6}})
    run(load_recipe(recipe), folder / "grown", progress=False)
    scratch = tiny_recipe(page, max_steps=10, model={"num_feed_forward_tokens": 48})
    run(load_recipe(scratch), folder / "scratch", progress=False)
    return folder


def test_a_loss_between_two_points_is_reached_on_the_line_between_them() -> None:
    """Halfway down in loss is halfway along in cost, the first crossing counts, and a loss too low is never reached."""
    curve = CostCurve("a", [10.0, 20.0, 30.0], [4.0, 2.0, 3.0], [(40.0, 1.0)])
    assert curve.flops_at(3.0) == pytest.approx(15.0)
    assert curve.flops_at(1.5) == pytest.approx(37.5)
    assert curve.flops_at(0.5) is None
    assert curve.flops_at(9.0) == 10.0


def test_shares_are_of_the_scratch_runs_whole_cost() -> None:
    """Reaching scratch's final loss at half of its FLOPs is a share of 0.5."""
    scratch = CostCurve("scratch", [50.0], [3.0], [(100.0, 2.0)])
    grown = CostCurve("grown", [], [], [(25.0, 3.0), (50.0, 2.0)])
    worse = CostCurve("worse", [], [], [(80.0, 2.5)])
    rows = compare([grown, worse], scratch)
    assert rows[0]["equal_loss"] == pytest.approx(0.5)
    assert rows[0]["within_1_percent"] < 0.5
    assert rows[1]["equal_loss"] is None


def test_a_curve_is_the_runs_own_ledger(runs: Path) -> None:
    """Stage ends are the ledger's rows, and every evaluation lies at the FLOPs of the tokens before it."""
    curve, ledger = read_curve(runs / "grown"), read_lines(runs / "grown" / "ledger.jsonl")
    assert curve.stage_ends == [(row["cumulative_flops"], row["validation_loss"]) for row in ledger]
    assert curve.flops == sorted(curve.flops)
    assert len(curve.flops) == 3 + 2
    first = read_lines(runs / "grown" / "metrics.jsonl")
    tokens = next(row["tokens"] for row in first if "validation_loss" in row)
    assert curve.flops[0] == pytest.approx(ledger[0]["flops"] * tokens / ledger[0]["tokens"])


def test_evaluations_of_a_part_are_moved_to_the_scale_of_the_whole(tmp_path: Path) -> None:
    """A stage whose last partial evaluation is 0.5 below the ledger's loss has all its evaluations raised by 0.5."""
    stage = {"stage": 0, "status": "finished", "tokens": 100, "cumulative_tokens": 100, "flops": 10.0}
    ledger = {**stage, "cumulative_flops": 10.0, "validation_loss": 2.5}
    rows = [
        {"stage": 0, "tokens": 50, "validation_loss": 3.0},
        {"stage": 0, "tokens": 50, "loss": 9.0},
        {"stage": 0, "tokens": 100, "validation_loss": 2.0},
    ]
    (tmp_path / "ledger.jsonl").write_text(json.dumps(ledger) + "\n")
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    curve = read_curve(tmp_path)
    assert (curve.flops, curve.losses, curve.stage_ends) == ([5.0], [3.5], [(10.0, 2.5)])


def test_the_figure_is_the_same_every_time(runs: Path, tmp_path: Path) -> None:
    """SVG and PNG are written, and the SVG of the same runs is the same bytes."""
    curves = [read_curve(runs / name) for name in ("grown", "scratch")]
    svg, png = save_figure(draw_cost(curves, floors={"3-gram": 3.2}), tmp_path / "one")
    again, _ = save_figure(draw_cost(curves, floors={"3-gram": 3.2}), tmp_path / "two")
    assert svg.read_bytes() == again.read_bytes()
    assert png.stat().st_size > 1000
    assert all(word in svg.read_text() for word in ("training FLOPs", "grown", "scratch"))


def test_the_command_prints_the_table_and_writes_the_figure(runs: Path) -> None:
    """`gnomon report` writes cost.md and both figures, and refuses what is no run with one sentence."""
    options = ["--scratch", "scratch", "--floor", "5-gram=3.1", "--output", "out"]
    done = subprocess.run([GNOMON, "report", "grown", "scratch", *options], cwd=runs, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (runs / "out").iterdir()} == {"cost.svg", "cost.png", "cost.md"}
    assert "within 1%" in (runs / "out" / "cost.md").read_text()
    assert "5-gram" in (runs / "out" / "cost.svg").read_text()
    asked = subprocess.run([GNOMON, "report", "grown", "--json"], cwd=runs, capture_output=True, text=True)
    assert len(json.loads(asked.stdout)["runs"]["grown"]) == 2
    bad = subprocess.run([GNOMON, "report", "nowhere"], cwd=runs, capture_output=True, text=True)
    assert bad.returncode == 2
    assert "ledger.jsonl" in bad.stderr
    (runs / "sweep").mkdir()
    (runs / "sweep" / "ledger.jsonl").write_text('{"run": "seed=0", "status": "finished", "validation_loss": 2.0}\n')
    with pytest.raises(ValueError, match=r"without stage.* of a sweep name the runs' own folders, such as .*seed=0"):
        read_curve(runs / "sweep")


@pytest.mark.parametrize("floor", ["5-gram", "5-gram=low", "=3.1"])
def test_a_floor_without_a_name_or_a_number_is_refused(runs: Path, floor: str) -> None:
    """One sentence with the form that is wanted, exit code 2, and no folder."""
    words = [GNOMON, "report", "grown", "--floor", floor, "--output", "bad"]
    bad = subprocess.run(words, cwd=runs, capture_output=True, text=True)
    assert bad.returncode == 2
    assert "NAME=LOSS" in bad.stderr
    assert not (runs / "bad").exists()
