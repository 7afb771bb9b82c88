"""Sweeps: every setting once, divergence recorded, and an interrupted sweep continued without a row twice."""

import csv
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gnomon.report.run import sweep
from gnomon.training import callbacks
from gnomon.training.recipe import load_recipe
from gnomon.training.sweep import plan, run_name
from tiny_runs import read_lines, tiny_recipe, tree, without_times, write_page

RATE = "stages.0.training.learning_rate"
GRID = {RATE: [0.003, 0.01], "model.num_feed_forward_tokens": [8, 24]}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of text."""
    return write_page(tmp_path_factory.mktemp("text"))


def test_a_sweep_trains_every_setting_and_seed_once(page: Path, tmp_path: Path) -> None:
    """Eight runs, eight rows, eight folders; a row a setting in the table and a row a run in the CSV."""
    result = sweep(tiny_recipe(page, max_steps=3), GRID, 2, tmp_path / "sweep", progress=False)
    assert result.interrupted is None
    rows = read_lines(tmp_path / "sweep" / "ledger.jsonl")
    assert rows == result.ledger
    assert {(row["settings"][RATE], row["settings"]["model.num_feed_forward_tokens"], row["seed"]) for row in rows} == {
        (rate, tokens, seed) for rate in (0.003, 0.01) for tokens in (8, 24) for seed in (0, 1)
    }
    assert len(rows) == len({row["validation_loss"] for row in rows}) == 8
    for row in rows:
        recipe = load_recipe(tmp_path / "sweep" / row["run"] / "recipe.yaml")
        assert recipe.seed == row["seed"]
        assert recipe.stages[0].training.learning_rate == row["settings"][RATE]
    table = (tmp_path / "sweep" / "table.md").read_text().splitlines()
    assert table[0].startswith("| learning_rate | num_feed_forward_tokens | seeds | diverged | validation loss")
    assert len(table) == 2 + 4
    with (tmp_path / "sweep" / "table.csv").open(newline="") as file:
        written = list(csv.DictReader(file))
    assert [float(row["validation_loss"]) for row in written] == [row["validation_loss"] for row in rows]
    assert (tmp_path / "sweep" / "figure.svg").stat().st_size > 0
    assert (tmp_path / "sweep" / "figure.png").stat().st_size > 0


def test_a_finished_sweep_trains_nothing_again_and_grows_by_new_values(page: Path, tmp_path: Path) -> None:
    """Resuming leaves every run as it is; a new value or seed adds its runs alone, and the rows stay in grid order."""
    recipe = tiny_recipe(page, max_steps=3)
    sweep(recipe, {RATE: [0.01]}, 1, tmp_path / "sweep", progress=False)
    (name,) = (row["run"] for row in read_lines(tmp_path / "sweep" / "ledger.jsonl"))
    before = tree(tmp_path / "sweep" / name)
    result = sweep(recipe, {RATE: [0.003, 0.01]}, 2, tmp_path / "sweep", resume=True, progress=False)
    assert tree(tmp_path / "sweep" / name) == before
    assert [(row["settings"][RATE], row["seed"]) for row in result.ledger] == [
        (0.003, 0), (0.003, 1), (0.01, 0), (0.01, 1),
    ]  # fmt: skip


def test_the_order_of_the_keys_does_not_matter_to_what_has_run(page: Path, tmp_path: Path) -> None:
    """Resumed with its keys the other way round, a finished sweep has nothing to do and keeps one row a run."""
    recipe = tiny_recipe(page, max_steps=3)
    grid = {RATE: [0.01, 0.003], "stages.0.training.beta2": [0.9]}
    sweep(recipe, grid, 1, tmp_path / "sweep", progress=False)
    before = tree(tmp_path / "sweep")
    result = sweep(recipe, dict(reversed(grid.items())), 1, tmp_path / "sweep", resume=True, progress=False)
    assert len(result.ledger) == 2
    assert tree(tmp_path / "sweep") == before


def test_a_diverged_run_is_recorded_with_its_step_and_skipped(page: Path, tmp_path: Path) -> None:
    """The others go on, the row says when and why, the table counts it, and resuming does not try it again."""
    recipe = tiny_recipe(page, max_steps=12, warmup_steps=0, schedule="constant", divergence_steps=4)
    result = sweep(recipe, {RATE: [5.0, 0.01]}, 1, tmp_path / "sweep", progress=False)
    wild, tame = result.ledger
    assert (wild["status"], tame["status"]) == ("diverged", "finished")
    assert 1 <= wild["steps"] < 12
    assert wild["reason"]
    assert "validation_loss" not in wild
    assert "| 5.0 | 0 | 1 | - |" in (tmp_path / "sweep" / "table.md").read_text()
    before = tree(tmp_path / "sweep")
    sweep(recipe, {RATE: [5.0, 0.01]}, 1, tmp_path / "sweep", resume=True, progress=False)
    assert tree(tmp_path / "sweep") == before


def test_variants_are_changes_that_belong_together(page: Path, tmp_path: Path) -> None:
    """A named variant sets several keys at once and is one axis of the grid."""
    variants = {"slow": [f"{RATE}=0.001"], "linear": ["model.projection=linear", f"{RATE}=0.01"]}
    recipe = tiny_recipe(page, max_steps=2, warmup_steps=0)
    recipe["model"] = {key: recipe["model"][key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
    result = sweep(recipe, {}, 1, tmp_path / "sweep", variants=variants, progress=False)
    assert [row["run"] for row in result.ledger] == ["variant=slow,seed=0", "variant=linear,seed=0"]
    trained = [load_recipe(tmp_path / "sweep" / row["run"] / "recipe.yaml") for row in result.ledger]
    assert [each.stages[0].training.learning_rate for each in trained] == [0.001, 0.01]
    assert trained[1].model["projection"] == "linear"


def test_an_interrupted_sweep_goes_on_to_the_same_ledger(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal in the second run stops the sweep after the step; resuming ends as if it had not come."""
    recipe = tiny_recipe(page, max_steps=6)
    grid = {RATE: [0.003, 0.01, 0.03]}
    whole = sweep(recipe, grid, 1, tmp_path / "whole", progress=False)
    write = callbacks.MetricsWriter.on_log
    steps = iter(range(1, 100))

    def on_log(self: callbacks.MetricsWriter, *args: object, **kwargs: object) -> None:
        write(self, *args, **kwargs)  # type: ignore[arg-type]
        if next(steps) == 10:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(callbacks.MetricsWriter, "on_log", on_log)
    broken = sweep(recipe, grid, 1, tmp_path / "broken", progress=False)
    assert broken.interrupted == signal.SIGTERM
    assert len(broken.ledger) == 1
    assert f"--grid {RATE}=0.003,0.01,0.03 --output {tmp_path / 'broken'} --resume" in broken.resume_command
    again = sweep(recipe, grid, 1, tmp_path / "broken", resume=True, progress=False)
    assert without_times(again.ledger) == without_times(whole.ledger)


def test_a_killed_sweep_goes_on_to_the_same_ledger(page: Path, tmp_path: Path) -> None:
    """SIGKILL in the middle of a run costs nothing but time; no row is missing or there twice."""
    recipe, grid = tiny_recipe(page, max_steps=6, save_every=2), {RATE: [0.003, 0.01]}
    whole = sweep(recipe, grid, 1, tmp_path / "whole", progress=False)
    script = (
        "import os, signal\n"
        "from pathlib import Path\n"
        "from gnomon.training import callbacks, sweep\n"
        "from tiny_runs import tiny_recipe\n"
        "write, rows = callbacks.MetricsWriter.on_log, iter(range(1, 100))\n"
        "def on_log(*args, **kwargs):\n"
        "    write(*args, **kwargs)\n"
        "    if next(rows) == 11: os.kill(os.getpid(), signal.SIGKILL)\n"
        "callbacks.MetricsWriter.on_log = on_log\n"
        f"recipe = tiny_recipe(Path({str(page)!r}), max_steps=6, save_every=2)\n"
        f"sweep.sweep(recipe, {grid!r}, 1, {str(tmp_path / 'broken')!r}, progress=False)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    killed = subprocess.run([sys.executable, "-c", script], env=environment, check=False, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    assert len(read_lines(tmp_path / "broken" / "ledger.jsonl")) == 1
    again = sweep(recipe, grid, 1, tmp_path / "broken", resume=True, progress=False)
    assert without_times(again.ledger) == without_times(whole.ledger)


REFUSALS = {
    "a key that no recipe has": ({"stages.0.training.learning_rat": [1.0]}, 1, "did you mean 'learning_rate'"),
    "a value that does not check": ({RATE: [0.01, -1.0]}, 1, "above 0"),
    "no values": ({RATE: []}, 1, "has no values"),
    "a value twice": ({RATE: [0.01, 0.01]}, 1, "repeats a value"),
    "seeds twice": ({"seed": [0, 1]}, 3, "choose one of the two"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_sweep_that_cannot_run_writes_nothing(name: str, page: Path, tmp_path: Path) -> None:
    """Every recipe of the grid is checked before the first run, and before the folder appears."""
    grid, seeds, words = REFUSALS[name]
    with pytest.raises(ValueError, match=words):
        sweep(tiny_recipe(page), grid, seeds, tmp_path / "sweep", progress=False)
    assert not (tmp_path / "sweep").exists()


def test_only_its_own_recipe_and_keys_continue_a_sweep(page: Path, tmp_path: Path) -> None:
    """Another recipe, other keys, a folder without a sweep and a sweep that exists are told apart and left alone."""
    recipe = tiny_recipe(page, max_steps=2, warmup_steps=0)
    folder = tmp_path / "sweep"
    sweep(recipe, {RATE: [0.01]}, 1, folder, progress=False)
    before = tree(folder)
    with pytest.raises(FileExistsError, match="--resume"):
        sweep(recipe, {RATE: [0.01]}, 1, folder, progress=False)
    with pytest.raises(ValueError, match="another recipe"):
        sweep({**recipe, "seed": 4}, {RATE: [0.01]}, 1, folder, resume=True, progress=False)
    with pytest.raises(ValueError, match="the same keys"):
        sweep(recipe, {"stages.0.training.beta1": [0.8]}, 1, folder, resume=True, progress=False)
    with pytest.raises(FileNotFoundError, match="no sweep to resume"):
        sweep(recipe, {RATE: [0.01]}, 1, tmp_path / "nowhere", resume=True, progress=False)
    assert tree(folder) == before


def test_a_change_of_the_first_stage_reaches_the_stages_that_inherit_it(page: Path) -> None:
    """The grid changes what the author wrote, before stages inherit, as -o does."""
    recipe = tiny_recipe(page)
    recipe["stages"].append({"training": {"max_steps": 3}})
    runs = plan(recipe, {RATE: [0.5]}, 1, {})
    assert [stage.training.learning_rate for stage in runs[0].recipe.stages] == [0.5, 0.5]


def test_names_of_runs_are_file_names_and_never_collide() -> None:
    """Slashes and spaces give way, and settings that would then look alike keep apart."""
    names = [run_name({"data.source": source, "seed": 0}) for source in ("a/b", "a b", "a-b")]
    assert len(set(names)) == 3
    assert all("/" not in name and " " not in name for name in names)
    assert run_name({"a.size": 1, "b.size": [2, 3]}) == run_name({"a.size": 1, "b.size": [2, 3]})
    assert run_name({"a.size": 1, "b.size": 2}) == "a.size=1,b.size=2"
