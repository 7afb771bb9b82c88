"""Growth between the stages of a recipe: exactness, the schedule, the ledger, and what is refused beforehand."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import gnomon
from gnomon.training.growth import GrowthState
from gnomon.training.recipe import load_recipe
from gnomon.training.stages import run
from tiny_runs import read_lines, tiny_recipe, write_page


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of text."""
    return write_page(tmp_path_factory.mktemp("text"))


def grown_recipe(page: Path, growth: dict[str, Any], **training: Any) -> dict[str, Any]:
    """Two stages with a growth between them."""
    recipe = tiny_recipe(page, max_steps=8)
    recipe["stages"].append({"growth": growth, "training": {"max_steps": 6, **training}})
    return recipe


def learning_rates(output: Path) -> list[float]:
    """The learning rate of every step of a run."""
    return [row["learning_rate"] for row in read_lines(output / "metrics.jsonl") if "loss" in row]


def test_a_grown_stage_begins_where_the_last_one_ended(page: Path, tmp_path: Path) -> None:
    """Report, ledger and saved config say what grew, and at a tiny rate the loss does not jump."""
    growth = {"num_attention_tokens": 16, "num_feed_forward_tokens": 48}
    recipe = grown_recipe(page, growth, learning_rate=1e-9)
    result = run(load_recipe(recipe), tmp_path / "run", progress=False)
    report = json.loads((tmp_path / "run" / "growth-1.json").read_text())
    assert report["exact"]
    assert len(report["parts"]) == 8
    first, second = result.ledger
    assert second["validation_loss"] == pytest.approx(first["validation_loss"], rel=1e-5)
    assert second["parameters"] - first["parameters"] == report["parameters_after"] - report["parameters_before"]
    assert second["cumulative_flops"] == first["flops"] + second["flops"]
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert (config["num_attention_tokens"], config["num_feed_forward_tokens"]) == (16, 48)


def test_restart_warms_up_again_and_continue_leaves_the_rate_unbroken(page: Path, tmp_path: Path) -> None:
    """`restart` begins a schedule of its own; under `continue` both stages follow one cosine over all steps."""
    rates = {}
    for schedule in ("restart", "continue"):
        recipe = grown_recipe(page, {"num_feed_forward_tokens": 48}, schedule=schedule)
        run(load_recipe(recipe), tmp_path / schedule, progress=False)
        rates[schedule] = [
            row["learning_rate"] for row in read_lines(tmp_path / schedule / "metrics.jsonl") if "loss" in row
        ]
    run(load_recipe(tiny_recipe(page, max_steps=14)), tmp_path / "one", progress=False)
    unbroken = [row["learning_rate"] for row in read_lines(tmp_path / "one" / "metrics.jsonl") if "loss" in row]
    assert rates["continue"] == unbroken
    assert rates["restart"][8:10] == rates["restart"][0:2]


def test_the_optimizer_is_carried_unless_the_recipe_says_otherwise(page: Path, tmp_path: Path) -> None:
    """A carried state counts on from the stage before; a fresh one and the official growth begin at one."""
    steps = {}
    for name, more in {"carry": {}, "fresh": {"optimizer": "fresh"}, "reference": {"init": "reference"}}.items():
        recipe = grown_recipe(page, {"num_feed_forward_tokens": 48, **more})
        run(load_recipe(recipe), tmp_path / name, progress=False)
        state = torch.load(tmp_path / name / "stage-1" / "checkpoint-6" / "optimizer.pt", weights_only=True)["state"]
        steps[name] = {int(row["step"]) for row in state.values()}
    assert steps == {"carry": {14}, "fresh": {6}, "reference": {6}}


def test_frozen_old_rows_end_as_they_began(page: Path, tmp_path: Path) -> None:
    """With old_rate 0 the old feed-forward tokens are bitwise those of the stage before, and the new ones moved."""
    recipe = grown_recipe(page, {"num_feed_forward_tokens": 48, "old_rate": 0.0})
    run(load_recipe(recipe), tmp_path / "run", progress=False)
    before = load_file(tmp_path / "run" / "stage-0" / "checkpoint-8" / "model.safetensors")
    after = load_file(tmp_path / "run" / "model" / "model.safetensors")
    name = "model.layers.0.feed_forward.key_tokens"
    assert torch.equal(after[name][:24], before[name])
    assert after[name][24:].any(dim=1).all()


def test_an_annealed_tau_goes_from_the_old_to_the_new_value() -> None:
    """tau is led linearly, the first step at the old value, and stays at the new one."""
    state = GrowthState(anneal_steps=4, score_scales={"a": [2.0, 4.0]})
    assert [state.score_scale_at("a", step) for step in (0, 1, 4, 9)] == [2.0, 2.5, 4.0, 4.0]


def test_an_annealed_run_ends_at_the_new_tau(page: Path, tmp_path: Path) -> None:
    """After anneal_steps the saved tau is the square root of the new count."""
    growth = {"num_feed_forward_tokens": 48, "score_scale": "anneal", "anneal_steps": 3}
    run(load_recipe(grown_recipe(page, growth)), tmp_path / "run", progress=False)
    saved = load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert float(saved["model.layers.0.feed_forward.score_scale"]) == pytest.approx(48**0.5)


def test_noise_moves_the_old_tokens_alone_by_its_size(page: Path, tmp_path: Path) -> None:
    """noise 0.05 shows as a standard deviation of 0.05 on the old rows, at a rate that moves nothing else."""
    recipe = grown_recipe(page, {"num_feed_forward_tokens": 48, "noise": 0.05}, learning_rate=1e-9)
    run(load_recipe(recipe), tmp_path / "run", progress=False)
    before = load_file(tmp_path / "run" / "stage-0" / "checkpoint-8" / "model.safetensors")
    after = load_file(tmp_path / "run" / "model" / "model.safetensors")
    name = "model.layers.0.feed_forward.key_tokens"
    assert float((after[name][:24] - before[name]).std()) == pytest.approx(0.05, rel=0.1)
    assert float(after[name][24:].abs().max()) < 1e-6


@pytest.mark.parametrize(
    ("growth", "said"),
    [
        ({"num_feed_forward_tokens": 8}, r"stages\.1\.growth.*shrink"),
        ({"num_feed_forward_tokens": 40, "init": "replicate"}, r"stages\.1\.growth.*multiple"),
        ({"intermediate_size": 99}, r"stages\.1\.growth.*num_feed_forward_tokens"),
    ],
)
def test_an_impossible_growth_is_refused_before_anything_is_written(
    page: Path, tmp_path: Path, growth: dict[str, Any], said: str
) -> None:
    """The growth of a later stage is rehearsed on a copy, so that no training is lost to it."""
    with pytest.raises(ValueError, match=said):
        gnomon.train(grown_recipe(page, growth), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("growth", "said"),
    [
        ({}, "names no size"),
        ({"num_feed_forward_token": 48}, "num_feed_forward_tokens"),
        ({"num_feed_forward_tokens": 48, "score_scale": "anneal"}, "anneal_steps"),
        ({"num_feed_forward_tokens": 48, "score_scale": "anneal", "anneal_steps": 7}, "beyond training.max_steps 6"),
        ({"num_feed_forward_tokens": 48, "old_rate": -1.0}, "old_rate"),
    ],
)
def test_a_wrong_growth_key_is_named(page: Path, growth: dict[str, Any], said: str) -> None:
    """A misspelt key, a missing partner and a negative rate are each refused with the key's name."""
    with pytest.raises(ValueError, match=said):
        load_recipe(grown_recipe(page, growth))


def test_the_first_stage_has_nothing_to_continue(page: Path) -> None:
    """A schedule that would go on from nowhere is refused."""
    recipe = tiny_recipe(page, continue_schedule=True)
    with pytest.raises(ValueError, match="no stage before it"):
        load_recipe(recipe)
