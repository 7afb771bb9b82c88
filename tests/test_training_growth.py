"""Growth between the stages of a recipe: exactness, the schedule, the ledger, and what is refused beforehand."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import gnomon
from gnomon.training.growth_state import GrowthState, shared
from gnomon.training.recipe import load_recipe
from gnomon.training.stages import run
from tiny_runs import MODEL, read_lines, tiny_recipe, write_page


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


def test_a_checkpoint_brings_its_optimizer_into_a_growth_of_the_first_stage(page: Path, tmp_path: Path) -> None:
    """Two runs, the second from the first one's checkpoint, count on as one run of two stages would."""
    recipe = grown_recipe(page, {"num_feed_forward_tokens": 48})
    run(load_recipe(recipe), tmp_path / "one", progress=False)
    last = tmp_path / "one" / "stage-0" / "checkpoint-8"
    second = {**recipe, "model": {"checkpoint": str(last)}, "stages": recipe["stages"][1:]}
    del second["tokenizer"]
    steps = {}
    for optimizer in ("carry", "fresh"):
        second["stages"][0]["growth"]["optimizer"] = optimizer
        run(load_recipe(second), tmp_path / optimizer, progress=False)
        saved = torch.load(tmp_path / optimizer / "stage-0" / "checkpoint-6" / "optimizer.pt", weights_only=True)
        steps[optimizer] = {int(row["step"]) for row in saved["state"].values()}
    assert steps == {"carry": {14}, "fresh": {6}}
    assert (tmp_path / "carry" / "growth-0.json").is_file()


def test_another_models_optimizer_is_refused_before_anything_is_written(page: Path, tmp_path: Path) -> None:
    """An optimizer.pt whose moments have other shapes than the checkpoint's tensors is named, with the remedy."""
    larger = tiny_recipe(page, model={"num_feed_forward_tokens": 32}, max_steps=3)
    for name, recipe in {"small": tiny_recipe(page, max_steps=3), "large": larger}.items():
        run(load_recipe(recipe), tmp_path / name, progress=False)
    checkpoint = tmp_path / "small" / "stage-0" / "checkpoint-3"
    shutil.copy(tmp_path / "large" / "stage-0" / "checkpoint-3" / "optimizer.pt", checkpoint)
    recipe = grown_recipe(page, {"num_feed_forward_tokens": 48})
    recipe = {**recipe, "model": {"checkpoint": str(checkpoint)}, "stages": recipe["stages"][1:]}
    del recipe["tokenizer"]
    with pytest.raises(ValueError, match=r"optimizer\.pt is not of this model.*remove it"):
        gnomon.train(recipe, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_progress_tells_what_grew(page: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Before the grown stage's first step one line names sizes, init and the measured change."""
    run(load_recipe(grown_recipe(page, {"num_feed_forward_tokens": 48})), tmp_path / "run")
    said = capfd.readouterr().err
    report = json.loads((tmp_path / "run" / "growth-1.json").read_text())
    assert f"grown from {report['parameters_before']:,} to {report['parameters_after']:,} parameters" in said
    assert f"changed by {report['gap_relative']:.2g} (exact)" in said


def test_frozen_old_rows_end_as_they_began(page: Path, tmp_path: Path) -> None:
    """With old_rate 0 the old feed-forward tokens are bitwise those of the stage before, and the new ones moved."""
    recipe = grown_recipe(page, {"num_feed_forward_tokens": 48, "old_rate": 0.0})
    run(load_recipe(recipe), tmp_path / "run", progress=False)
    before = load_file(tmp_path / "run" / "stage-0" / "checkpoint-8" / "model.safetensors")
    after = load_file(tmp_path / "run" / "model" / "model.safetensors")
    name = "model.layers.0.feed_forward.key_tokens"
    assert torch.equal(after[name][:24], before[name])
    assert after[name][24:].any(dim=1).all()


def test_tau_follows_the_share_of_the_norm_that_new_tokens_hold() -> None:
    """The old tokens' mean squared normalized score is kept: tau^2 times their share of ||A||^2 is the old tau^2."""
    torch.manual_seed(0)
    model = gnomon.GnomonForCausalLM(gnomon.GnomonConfig(vocab_size=32, **MODEL))
    gnomon.grow(model, init="random", score_scale="hold", num_attention_tokens=12, seed=1)
    projection, seen = model.model.layers[0].attention.query, []
    projection.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].detach().double()))
    tau, batch = float(projection.score_scale), {"input_ids": torch.randint(32, (2, 9))}
    state = GrowthState(share_every=5, shares={"model.layers.0.attention.query": [tau, 8]})
    state.follow(model, 4, [batch])
    assert not seen
    state.follow(model, 5, [batch])
    scores = (seen[0] @ projection.key_tokens.detach().double().T).square()
    kept = float((scores[..., :8].sum(-1) / scores.sum(-1)).mean())
    assert float(projection.score_scale) == pytest.approx(tau / kept**0.5, rel=1e-5)
    assert float(projection.score_scale) > 1.05 * tau


def test_a_followed_tau_is_saved_and_moves_with_the_new_keys(page: Path, tmp_path: Path) -> None:
    """After exact growth tau stays while the new keys are zero, and has risen once they have learned."""
    taus = {}
    for rate in (1e-9, 1e-2):
        growth = {"num_feed_forward_tokens": 48, "score_scale": "share", "share_every": 2}
        output = tmp_path / str(rate)
        run(load_recipe(grown_recipe(page, growth, learning_rate=rate)), output, progress=False)
        saved = load_file(output / "model" / "model.safetensors")
        taus[rate] = float(saved["model.layers.0.feed_forward.score_scale"])
    assert taus[1e-9] == pytest.approx(24**0.5, rel=1e-5)
    assert taus[1e-2] > 1.001 * 24**0.5
    assert shared(24**0.5, 0.5) == pytest.approx(48**0.5)


def test_scores_without_a_norm_have_no_share_to_follow(page: Path) -> None:
    """softmax is refused for score_scale: share before anything is trained."""
    growth = {"num_feed_forward_tokens": 48, "init": "random", "score_scale": "share", "share_every": 2}
    recipe = grown_recipe(page, growth)
    recipe["model"]["score"] = "softmax"
    with pytest.raises(ValueError, match=r"stages\.1\.growth.*only the L2 scores.*softmax"):
        gnomon.train(recipe, "unused", progress=False)
    assert not Path("unused").exists()


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
        ({"num_feed_forward_tokens": 48, "score_scale": "share"}, "share_every"),
        ({"num_feed_forward_tokens": 48, "share_every": 5}, "share_every"),
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
