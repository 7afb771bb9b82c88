"""Each benchmark at tiny size: it checks before it times, says what it did, and refuses when the check fails."""

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml

from tiny_runs import tiny_recipe, write_page

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
TINY = {"width": 80, "layers": 1, "heads": 2, "batch": 2, "length": 7, "vocabulary": 11}


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a benchmark as the module that its script is."""

    def import_module(name: str) -> ModuleType:
        monkeypatch.syspath_prepend(BENCHMARKS)
        return importlib.import_module(name)

    return import_module


@pytest.fixture
def training_step(load: Any) -> ModuleType:
    return load("training_step")


@pytest.fixture
def trainer_overhead(load: Any) -> ModuleType:
    return load("trainer_overhead")


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """Two rounds on one thread into a new folder."""
    return ["--rounds", "2", "--threads", "1", "--output", str(tmp_path / "benchmarks")]


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    """A tiny recipe's file."""
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny_recipe(write_page(tmp_path), log_every=2)), encoding="utf-8")
    return str(path)


def written(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "benchmarks").glob("*"))


def test_training_step_writes_ratios_and_how_to_get_them(
    training_step: ModuleType, arguments: list[str], tmp_path: Path
) -> None:
    """A finished run leaves a table and every round's seconds, with command, versions and processor beside them."""
    training_step.main(arguments, [training_step.Case(**TINY)])
    assert written(tmp_path) == ["training_step.json", "training_step.md"]
    document = json.loads((tmp_path / "benchmarks" / "training_step.json").read_text(encoding="utf-8"))
    (case,) = document["cases"]
    assert {name: len(found) for name, found in case["seconds"].items()} == {
        training_step.OURS: 2,
        training_step.REFERENCE: 2,
        training_step.NEOX: 2,
    }
    assert set(case["ratios"]) == {training_step.REFERENCE, training_step.NEOX}
    assert document["command"].startswith("python benchmarks/training_step.py")
    assert document["torch"] == torch.__version__
    assert document["threads"] == 1
    assert document["processor"]


def test_gpt_neox_has_blocks_of_equal_size_in_every_case(training_step: ModuleType) -> None:
    """The peer that is timed has as many parameters outside the embeddings as gnomon's model, within 1%."""
    for case in training_step.CASES:
        with torch.device("meta"):
            models = training_step.build_tokenformer(case), training_step.build_neox(case)
        assert training_step.check_sizes(*models) == pytest.approx(1.0, abs=0.01)
        assert models[0].config.rotary_size == models[1].gpt_neox.layers[0].attention.rotary_ndims


def test_a_peer_of_another_size_is_not_timed(training_step: ModuleType) -> None:
    """Blocks with a tenth more parameters end the benchmark before it times anything."""
    case = training_step.Case(**TINY)
    other = training_step.build_neox(training_step.Case(**{**TINY, "width": 84, "heads": 3}))
    with pytest.raises(SystemExit, match="no times: the blocks of both models"):
        training_step.check_sizes(training_step.build_tokenformer(case), other)


def test_a_wrong_fast_path_is_not_timed(
    training_step: ModuleType, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A score scale that is off by one in a thousand ends the benchmark with nothing written."""
    build = training_step.build_tokenformer

    def build_wrong(case: Any) -> torch.nn.Module:
        model = build(case)
        model.model.layers[0].feed_forward.score_scale.mul_(1.001)
        return model

    monkeypatch.setattr(training_step, "build_tokenformer", build_wrong)
    with pytest.raises(SystemExit, match="no times: the logits"):
        training_step.main(arguments, [training_step.Case(**TINY)])
    assert written(tmp_path) == []


def test_gradients_that_are_no_numbers_are_not_timed(training_step: ModuleType) -> None:
    """A reference formulation whose gradient is NaN in one parameter alone counts as different."""
    case = training_step.Case(**TINY)
    ids = torch.zeros(case.batch, case.length, dtype=torch.long)
    reference = training_step.build_reference(case)
    reference.model.norm.bias.register_hook(lambda gradient: gradient * float("nan"))
    with pytest.raises(SystemExit, match="no times: the gradients"):
        training_step.check_equivalence(training_step.build_tokenformer(case), reference, ids)


def test_the_fast_path_keeps_less_for_the_backward_pass(training_step: ModuleType) -> None:
    """What a step keeps is counted without the parameters, and gnomon's path keeps less than the reference's."""
    case = training_step.Case(**TINY)
    ids = torch.zeros(case.batch, case.length, dtype=torch.long)
    ours = training_step.kept_bytes(training_step.build_tokenformer(case), ids)
    assert 0 < ours < training_step.kept_bytes(training_step.build_reference(case), ids)


def test_contenders_take_turns_in_a_moving_order(load: Any) -> None:
    """No contender always follows the same one, and warm-up turns are not timed."""
    turns: list[str] = []
    seconds = load("_common").interleave(
        {name: lambda name=name: turns.append(name) for name in "abc"}, rounds=3, warmup=1
    )
    assert "".join(turns) == "abc" + "abc" + "bca" + "cab"
    assert [len(found) for found in seconds.values()] == [3, 3, 3]


def test_ratios_are_taken_within_a_round(load: Any) -> None:
    """A machine that is slow for one round slows both sides of that round's ratio, which stays what it is."""
    common = load("_common")
    seconds = {"one": [2.0, 20.0, 2.0], "other": [1.0, 10.0, 1.0]}
    assert common.ratio(seconds, "one", "other") == common.Spread(2.0, 2.0, 2.0)


def test_both_training_loops_learn_the_same(
    trainer_overhead: ModuleType, arguments: list[str], recipe: str, tmp_path: Path
) -> None:
    """Through the Trainer or by hand, the same steps give the same losses, and a finished run leaves its table."""
    report = trainer_overhead.main([*arguments, "--recipe", recipe])
    (case,) = report.cases
    assert case["largest_loss_difference"] <= trainer_overhead.LOSS_TOLERANCE
    assert [len(found) for found in case["seconds"].values()] == [2, 2]
    assert written(tmp_path) == ["trainer_overhead.json", "trainer_overhead.md"]


def test_a_loop_that_learns_otherwise_is_not_timed(
    trainer_overhead: ModuleType,
    arguments: list[str],
    recipe: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bare loop without momentum ends the benchmark with nothing written."""

    def build_other(model: torch.nn.Module, training: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=training.learning_rate)

    monkeypatch.setattr(trainer_overhead, "build_optimizer", build_other)
    with pytest.raises(SystemExit, match="no times: both loops must learn the same"):
        trainer_overhead.main([*arguments, "--recipe", recipe])
    assert written(tmp_path) == []


def test_growth_by_tokens_leaves_the_attention_alone(
    load: Any, monkeypatch: pytest.MonkeyPatch, arguments: list[str], tmp_path: Path
) -> None:
    """Counted cost stays 3.69e4 T^2 over the paper's chain, widened it reaches 13.8e4; table and figure are written."""
    growth_attention = load("growth_attention")
    monkeypatch.setattr("sys.argv", ["growth_attention.py", *arguments, "--lengths", "8", "16"])
    growth_attention.main()
    assert written(tmp_path) == ["figure.png", "figure.svg", "table.json", "table.md"]
    cases = json.loads((tmp_path / "benchmarks" / "table.json").read_text())["cases"]
    factors = {(case["kind"], case["size"]): case["flops"]["1024"] / 1024**2 for case in cases}
    assert {factors["grown", size] for size in growth_attention.SIZES} == {36864}
    assert factors["widened", "1.4b"] == pytest.approx(13.8e4, rel=0.01)
    assert all(len(rounds) == 2 for case in cases for rounds in case["seconds"].values())
