"""A run that was killed or interrupted, and continued, ends as one that never stopped, to the last bit."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from gnomon.training.checkpoints import step_of
from gnomon.training.recipe import load_recipe
from gnomon.training.stages import run
from gnomon.training.text import dump_yaml
from resume_driver import SCENARIOS
from tiny_runs import read_lines, tiny_recipe, tree, without_times, write_page

DRIVER = Path(__file__).with_name("resume_driver.py")
PLACES = ("model", "best", "stage-0", "stage-1")


def state(folder: Path) -> dict[str, object]:
    """Every tensor below a run's folder as its bytes: weights, moments, schedules, random states."""
    return {
        f"{place}/{path.relative_to(folder / place)}": path.read_bytes()
        if path.suffix == ".safetensors"
        else bits(torch.load(path, weights_only=False))
        for place in PLACES
        for path in (folder / place).rglob("*")
        if path.suffix in (".safetensors", ".pt", ".pth")
    }


def bits(value: object) -> object:
    """A saved object without what a pickle knows of identities."""
    if isinstance(value, torch.Tensor):
        return value.numpy().tobytes()
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, dict):
        return {key: bits(item) for key, item in value.items()}
    return [bits(item) for item in value] if isinstance(value, list | tuple) else value


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_killed_run_continues_to_the_same_bits(tmp_path: Path) -> None:
    """Wherever a run dies, weights, moments, random states, metrics and ledger end as if it had not.

    With dropout, shuffling and accumulation, over two stages: before the first checkpoint, between checkpoints in
    mid-epoch, in mid-step, while a checkpoint is written, between a stage's last checkpoint and its row, by SIGINT
    and SIGTERM, and four times over. No step is missing from the metrics and none is there twice. Two worker
    processes change nothing either.
    """
    write_page(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(DRIVER.parent), "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, DRIVER, tmp_path], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    unbroken = tmp_path / "unbroken"
    wanted, rows = state(unbroken), without_times(read_lines(unbroken / "metrics.jsonl"))
    assert any(name.endswith("optimizer.pt") for name in wanted)
    steps = [row["total_step"] for row in rows if "loss" in row]
    assert steps == sorted(set(steps)) == [*range(2, 23, 2), 23, 25, 27, 29, 31]
    for name in ("with workers", *SCENARIOS):
        folder = tmp_path / name
        assert state(folder) == wanted, name
        assert without_times(read_lines(folder / "metrics.jsonl")) == rows, name
        assert without_times(read_lines(folder / "ledger.jsonl")) == without_times(
            read_lines(unbroken / "ledger.jsonl")
        ), name
        leftovers = [path for path in folder.rglob(".*") if path.name != ".lock"]
        assert leftovers == [], name
    continued = json.loads((tmp_path / "four times" / "environment.json").read_text())["continued"]
    assert len(continued) == 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_saves_says_how_to_go_on_and_exits_so(number: int, tmp_path: Path) -> None:
    """Exit code 130 or 143, never 0; the printed command ends the run, whose weights are those of an unbroken one."""
    recipe = tiny_recipe(write_page(tmp_path), model={"hidden_dropout": 0.1}, max_steps=200, save_every=50)
    (tmp_path / "mine.yaml").write_text(dump_yaml(recipe))
    source = "from gnomon.cli.main import main; main()"
    command = [sys.executable, "-c", source, "train", "mine.yaml", "--output", "run", "--json"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    metrics, patience = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 120
    while not (metrics.is_file() and metrics.read_text().count("\n") >= 5):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < patience
        time.sleep(0.02)
    process.send_signal(number)
    said = process.communicate(timeout=120)[0]
    assert process.returncode == 128 + number, said
    resume = next(line for line in said.splitlines() if "--resume" in line)
    words = shlex.split(resume[resume.index("gnomon train") :])
    (stopped,) = (tmp_path / "run" / "stage-0").glob("checkpoint-*")
    assert 5 <= step_of(stopped) < 200
    again = subprocess.run(
        [sys.executable, "-c", source, *words[1:], "--json"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["ledger"][0]["status"] == "finished"
    run(load_recipe(recipe), tmp_path / "unbroken", progress=False)
    ended = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("run", "unbroken")]
    assert ended[0] == ended[1]


def test_the_learning_rate_goes_on_where_it_stood(tmp_path: Path) -> None:
    """The first step after a continuation has the rate that the unbroken run has there."""
    page = write_page(tmp_path)
    unbroken = load_recipe(tiny_recipe(page, max_steps=12, save_every=5))
    run(unbroken, tmp_path / "unbroken", progress=False)
    run(unbroken, tmp_path / "broken", progress=False)
    (tmp_path / "broken" / "stage-0" / "checkpoint-12" / "progress.json").unlink()
    (tmp_path / "broken" / "ledger.jsonl").unlink()
    run(unbroken, tmp_path / "broken", resume=True, progress=False)
    rates = [
        [row["learning_rate"] for row in read_lines(tmp_path / name / "metrics.jsonl") if "learning_rate" in row]
        for name in ("unbroken", "broken")
    ]
    assert rates[0] == rates[1]
    assert len(set(rates[0])) > 8


def test_a_finished_run_is_left_as_it_is(tmp_path: Path) -> None:
    """Resuming what is done changes no file and returns the same ledger."""
    recipe = load_recipe(tiny_recipe(write_page(tmp_path)))
    first = run(recipe, tmp_path / "run", progress=False)
    before = tree(tmp_path / "run")
    assert run(recipe, tmp_path / "run", resume=True, progress=False) == first
    assert tree(tmp_path / "run") == before


def test_only_its_own_recipe_continues_a_run(tmp_path: Path) -> None:
    """Another value is named with what it was, a folder without a run is refused, and nothing is touched."""
    page = write_page(tmp_path)
    recipe = load_recipe(tiny_recipe(page))
    run(recipe, tmp_path / "run", progress=False)
    before = tree(tmp_path / "run")
    other = load_recipe(recipe, ["stages.0.training.learning_rate=0.5"])
    with pytest.raises(ValueError, match=r"stages\.0\.training\.learning_rate 0\.01, but is asked to go on with 0\.5"):
        run(other, tmp_path / "run", resume=True, progress=False)
    assert tree(tmp_path / "run") == before
    with pytest.raises(FileNotFoundError, match="no run to resume"):
        run(recipe, tmp_path / "nowhere", resume=True, progress=False)
    assert not (tmp_path / "nowhere").exists()


def test_a_checkpoint_that_lacks_a_tensor_is_refused(tmp_path: Path) -> None:
    """Trainer loads weights without strictness; here a missing tensor ends the continuation, by name."""
    from safetensors.torch import load_file, save_file

    recipe = load_recipe(tiny_recipe(write_page(tmp_path), max_steps=6, save_every=3, keep_checkpoints=3))
    run(recipe, tmp_path / "run", progress=False)
    (tmp_path / "run" / "ledger.jsonl").unlink()
    checkpoint = tmp_path / "run" / "stage-0" / "checkpoint-6"
    tensors = load_file(checkpoint / "model.safetensors")
    lost = next(name for name in tensors if name.endswith("value_tokens"))
    del tensors[lost]
    save_file(tensors, checkpoint / "model.safetensors", metadata={"format": "pt"})
    sealed = json.loads((checkpoint / "progress.json").read_text())
    sealed["files"]["model.safetensors"] = (checkpoint / "model.safetensors").stat().st_size
    (checkpoint / "progress.json").write_text(json.dumps(sealed))
    with pytest.raises(ValueError, match=f"lacks tensor {lost}"):
        run(recipe, tmp_path / "run", resume=True, progress=False)
