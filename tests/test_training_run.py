"""A run's folder: what lies in it, what its numbers mean, and that nothing half-written is ever left."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import gnomon
from gnomon.analysis.flops import count_parameters, training_flops
from gnomon.data.packing import pack
from gnomon.data.text import load_text
from gnomon.evaluation.language_model import evaluate_language_model
from gnomon.training import trainer as trainers
from gnomon.training.preparation import prepare
from gnomon.training.progress import DivergenceError
from gnomon.training.recipe import load_recipe
from gnomon.training.stages import run
from tiny_runs import MODEL, read_lines, tiny_recipe, tree, without_times, write_page


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of text."""
    return write_page(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def finished(page: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two stages, the second of three passes over other sequences of the same text."""
    recipe = tiny_recipe(page, max_steps=12, evaluate_every=3, save_every=5, log_every=5)
    recipe["stages"].append({"training": {"epochs": 3, "batch_size": 5}, "data": {"sequence_length": 24}})
    output = tmp_path_factory.mktemp("runs") / "finished"
    gnomon.train(recipe, output, progress=False)
    return output


def test_a_run_leaves_what_the_design_names(finished: Path) -> None:
    """Recipe, environment, metrics, ledger, TensorBoard, figures, checkpoints, best and last model; nothing pickled."""
    names = {path.name for path in finished.iterdir() if not path.name.startswith(".")}
    assert names == {
        "recipe.yaml", "environment.json", "metrics.jsonl", "ledger.jsonl", "tensorboard", "figures",
        "stage-0", "stage-1", "model", "best",
    }  # fmt: skip
    assert {path.name for path in (finished / "figures").iterdir()} == {
        "loss.svg", "loss.png", "loss_by_tokens.svg", "loss_by_tokens.png",
    }  # fmt: skip
    assert sorted(path.name for path in (finished / "stage-0").iterdir()) == ["checkpoint-10", "checkpoint-12"]
    assert not list(finished.rglob("training_args.bin"))
    environment = json.loads((finished / "environment.json").read_text())
    assert environment["versions"]["torch"] == torch.__version__
    assert environment["seed"] == 0
    assert {"command", "platform", "threads", "device"} <= set(environment)


def test_both_models_are_ordinary_folders(finished: Path) -> None:
    """Best and last load with the Auto classes, tokenizer and generation settings included, and generate."""
    for name in ("model", "best"):
        model = AutoModelForCausalLM.from_pretrained(finished / name)
        tokenizer = AutoTokenizer.from_pretrained(finished / name)
        assert len(tokenizer) == model.config.vocab_size
        assert model.config.use_cache, "training switches the cache off; the saved model must not keep that"
        assert model.generation_config.eos_token_id == tokenizer.eos_token_id
        ids = torch.tensor([[tokenizer.bos_token_id]])
        assert model.generate(ids, max_new_tokens=5, do_sample=False, pad_token_id=0).shape[1] > 1


def test_the_ledger_counts_every_token_and_adds_stages_up(finished: Path, page: Path) -> None:
    """Tokens are the ids read, three whole passes in stage 1; FLOPs follow the formula; cumulated values are sums."""
    first, second = read_lines(finished / "ledger.jsonl")
    tokenizer = AutoTokenizer.from_pretrained(finished / "model")
    config = json.loads((finished / "model" / "config.json").read_text())
    packed = pack(load_text(source=page).train, tokenizer, 24)
    assert second["steps"] == 3 * math.ceil(len(packed) / 5)
    assert second["tokens"] == 3 * sum(len(packed[index]["input_ids"]) for index in range(len(packed)))
    assert second["flops"] == training_flops(config, second["tokens"], 24)
    assert first["flops"] == training_flops(config, first["tokens"], 16)
    for name in ("steps", "tokens", "flops"):
        assert first[f"cumulative_{name}"] == first[name]
        assert second[f"cumulative_{name}"] == first[name] + second[name]
    assert second["cumulative_seconds"] == pytest.approx(first["seconds"] + second["seconds"])
    assert second["parameters"] == count_parameters(config).total
    assert second["non_embedding_parameters"] == count_parameters(config).non_embedding


def test_the_ledgers_loss_is_what_evaluation_says_of_the_saved_model(finished: Path, page: Path) -> None:
    """Loading model/ and scoring all the held-out text gives the row's loss, perplexity and bits per byte."""
    row = read_lines(finished / "ledger.jsonl")[-1]
    model = AutoModelForCausalLM.from_pretrained(finished / "model")
    tokenizer = AutoTokenizer.from_pretrained(finished / "model")
    held_out = pack(load_text(source=page).validation, tokenizer, 24, allow_short=True)
    score = evaluate_language_model(model, held_out)
    assert row["validation_loss"] == pytest.approx(score.loss, abs=1e-6)
    assert row["perplexity"] == pytest.approx(math.exp(row["validation_loss"]))
    assert row["bits_per_byte"] == pytest.approx(score.bits_per_byte, abs=1e-6)


def test_the_best_model_has_the_lowest_validation_loss_seen(finished: Path, page: Path) -> None:
    """best/ scores what the ledger says, and no evaluation of its stage was lower."""
    row = read_lines(finished / "ledger.jsonl")[-1]
    losses = [
        line["validation_loss"]
        for line in read_lines(finished / "metrics.jsonl")
        if line["stage"] == 1 and "validation_loss" in line
    ]
    assert row["best_validation_loss"] == min(losses)
    tokenizer = AutoTokenizer.from_pretrained(finished / "best")
    held_out = pack(load_text(source=page).validation, tokenizer, 24, allow_short=True)
    model = AutoModelForCausalLM.from_pretrained(finished / "best")
    assert evaluate_language_model(model, held_out).loss == pytest.approx(min(losses), abs=1e-6)


def test_rows_of_metrics_stand_on_one_axis(finished: Path) -> None:
    """Steps and tokens of the whole run never fall, each stage's steps restart, and the last step is always logged."""
    rows = read_lines(finished / "metrics.jsonl")
    assert [row["step"] for row in rows if row["stage"] == 0 and "loss" in row] == [5, 10, 12]
    assert [row["step"] for row in rows if row["stage"] == 0 and "perplexity" in row] == [3, 6, 9, 12]
    for name in ("total_step", "tokens", "seconds"):
        values = [row[name] for row in rows]
        assert values == sorted(values)
    last = read_lines(finished / "ledger.jsonl")[-1]
    assert (rows[-1]["total_step"], rows[-1]["tokens"]) == (last["cumulative_steps"], last["cumulative_tokens"])


def test_tensorboard_holds_the_rows(finished: Path) -> None:
    """What metrics.jsonl says of the loss is what TensorBoard reads, over the steps of the whole run."""
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    reader = accumulators.EventAccumulator(str(finished / "tensorboard"))
    reader.Reload()
    wanted = {row["total_step"]: row["loss"] for row in read_lines(finished / "metrics.jsonl") if "loss" in row}
    assert {event.step: event.value for event in reader.Scalars("loss")} == pytest.approx(wanted)


def test_the_resolved_recipe_trains_the_same_run_again(finished: Path, tmp_path: Path) -> None:
    """recipe.yaml alone is enough for the same bits."""
    run(load_recipe(finished / "recipe.yaml"), tmp_path / "again", progress=False)
    name = "model/model.safetensors"
    assert (tmp_path / "again" / name).read_bytes() == (finished / name).read_bytes()
    assert without_times(read_lines(tmp_path / "again" / "metrics.jsonl")) == without_times(
        read_lines(finished / "metrics.jsonl")
    )


def test_seeds_decide_weights_and_order_and_a_twin_sees_the_same_order(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another seed gives other weights and another order; a Transformer reads the batches that its twin reads."""
    seen: dict[str, list[Any]] = {}
    step = trainers.StageTrainer.training_step

    def noting(self: Any, model: Any, inputs: Any, *args: Any) -> Any:
        seen.setdefault(self.plan.folder.parent.name, []).append(inputs["input_ids"].tolist())
        return step(self, model, inputs, *args)

    monkeypatch.setattr(trainers.StageTrainer, "training_step", noting)
    twin = {name: MODEL[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
    recipes = {
        "tokens": tiny_recipe(page),
        "again": tiny_recipe(page),
        "other": {**tiny_recipe(page), "seed": 1},
        "twin": {**tiny_recipe(page), "model": {**twin, "projection": "linear"}},
    }
    first = {name: prepare(load_recipe(recipe)).model.state_dict() for name, recipe in recipes.items()}
    weights = [first[name]["model.embed_tokens.weight"] for name in ("tokens", "again", "other")]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    for name, recipe in recipes.items():
        run(load_recipe(recipe), tmp_path / name, progress=False)
    assert seen["tokens"] == seen["again"] == seen["twin"]
    assert seen["tokens"] != seen["other"]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_weights_and_moments_stay_in_float32(precision: str, page: Path, tmp_path: Path) -> None:
    """Either precision trains, one after the other in one process, and stores weights and moments in float32."""
    recipe = load_recipe(tiny_recipe(page, precision=precision, max_steps=20))
    result = run(recipe, tmp_path / "run", progress=False)
    rows = [row["loss"] for row in read_lines(tmp_path / "run" / "metrics.jsonl") if "loss" in row]
    assert rows[-1] < rows[0] - 0.3
    checkpoint = tmp_path / "run" / "stage-0" / "checkpoint-20"
    moments = torch.load(checkpoint / "optimizer.pt", weights_only=True)["state"]
    assert {moment["exp_avg"].dtype for moment in moments.values()} == {torch.float32}
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert result.ledger[0]["validation_loss"] < rows[0]


def test_a_checkpoint_is_trained_on_with_its_own_tokenizer(finished: Path, page: Path, tmp_path: Path) -> None:
    """A recipe that names a checkpoint starts from its loss, and refuses a tokenizer with other ids."""
    recipe = {
        **tiny_recipe(page, learning_rate=1e-9, max_steps=1, warmup_steps=0),
        "model": {"checkpoint": str(finished / "model")},
    }
    del recipe["tokenizer"]
    recipe["data"]["sequence_length"] = 24
    result = run(load_recipe(recipe), tmp_path / "on", progress=False)
    before = read_lines(finished / "ledger.jsonl")[-1]["validation_loss"]
    assert result.ledger[0]["validation_loss"] == pytest.approx(before, abs=1e-4)
    with pytest.raises(ValueError, match="other ids"):
        run(load_recipe({**recipe, "tokenizer": {"kind": "byte"}}), tmp_path / "no", progress=False)
    assert not (tmp_path / "no").exists()


def test_a_loss_that_is_no_number_stops_the_run_before_the_weights(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step is named, the ledger says diverged, no such loss is averaged away, and no weight has become NaN."""
    step = trainers.Trainer.training_step

    def poisoned(self: Any, *args: Any, **kwargs: Any) -> Any:
        loss = step(self, *args, **kwargs)
        return loss * math.nan if self.state.global_step == 3 else loss

    monkeypatch.setattr(trainers.Trainer, "training_step", poisoned)
    recipe = load_recipe(tiny_recipe(page, save_every=1))
    with pytest.raises(DivergenceError, match=r"stage 0 at step 4: the loss is nan; lower learning_rate"):
        run(recipe, tmp_path / "run", progress=False)
    (row,) = read_lines(tmp_path / "run" / "ledger.jsonl")
    assert (row["status"], row["steps"], row["reason"]) == ("diverged", 4, "the loss is nan")
    assert [line["step"] for line in read_lines(tmp_path / "run" / "metrics.jsonl") if "loss" in line] == [1, 2, 3]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "stage-0" / "checkpoint-3")
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


def test_a_loss_that_stays_above_its_start_stops_the_run(page: Path, tmp_path: Path) -> None:
    """Far too high a rate is noticed after the recipe's number of steps, and not at all when that is switched off."""
    wild = {"learning_rate": 1.0, "warmup_steps": 0, "schedule": "constant", "max_steps": 30}
    with pytest.raises(DivergenceError, match=r"stayed above [\d.]+ for 10 steps"):
        run(load_recipe(tiny_recipe(page, divergence_steps=10, **wild)), tmp_path / "watched", progress=False)
    result = run(load_recipe(tiny_recipe(page, divergence_steps=0, **wild)), tmp_path / "unwatched", progress=False)
    assert result.ledger[0]["validation_loss"] > 4


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "empty text": ({"data": {"source": "EMPTY", "sequence_length": 16}}, ValueError, "no text|empty"),
    "text shorter than a sequence": ({"data": {"source": "PAGE", "sequence_length": 2000}}, ValueError, "sequence"),
    "text that is not there": ({"data": {"source": "./gone.txt", "sequence_length": 16}}, FileNotFoundError, "gone"),
    "a tokenizer that is not there": ({"tokenizer": {"folder": "./gone"}}, FileNotFoundError, "gone"),
    "a vocabulary too small": ({"model": {**MODEL, "vocab_size": 5}}, ValueError, "vocabulary has 5"),
    "sequences longer than the model": ({"model": {**MODEL, "max_position_embeddings": 8}}, ValueError, "exceed"),
    "a later stage's bad data": (
        {"stages": [{"training": {"max_steps": 2}}, {"training": {}, "data": {"source": "EMPTY"}}]},
        ValueError,
        "no text|empty",
    ),
    "float16 without a GPU": ({"stages": [{"training": {"max_steps": 2, "precision": "float16"}}]}, ValueError, "CUDA"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_before_anything_is_written(name: str, page: Path, tmp_path: Path) -> None:
    """One sentence that names the thing, and neither the folder nor anything beside it appears."""
    if "GPU" in name and torch.cuda.is_available():
        pytest.skip("this machine has one")
    (tmp_path / "empty.txt").write_text("")
    changes, kind, words = BAD[name]
    text = json.dumps({**tiny_recipe(page), **changes})
    recipe = json.loads(text.replace("EMPTY", str(tmp_path / "empty.txt")).replace("PAGE", str(page)))
    before = tree(tmp_path)
    with pytest.raises(kind, match=words) as caught:
        run(load_recipe(recipe), tmp_path / "run", progress=False)
    assert "\n" not in str(caught.value)
    assert tree(tmp_path) == before
    assert not (tmp_path / "run").exists()


def test_a_damaged_or_missing_checkpoint_is_refused(finished: Path, page: Path, tmp_path: Path) -> None:
    """No folder, no weights, a foreign configuration: each is told by name before anything is written."""
    recipe = tiny_recipe(page)
    del recipe["tokenizer"]
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_recipe({**recipe, "model": {"checkpoint": "nowhere"}})
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (bare / name).write_bytes((finished / "model" / name).read_bytes())
    with pytest.raises(FileNotFoundError, match="has no weights"):
        run(load_recipe({**recipe, "model": {"checkpoint": str(bare)}}), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_an_output_that_exists_is_refused_untouched(finished: Path, page: Path, tmp_path: Path) -> None:
    """A file, a folder, another run: all stay as they are, and the sentence offers --resume."""
    recipe = load_recipe(tiny_recipe(page))
    before = tree(finished)
    with pytest.raises(FileExistsError, match="--resume"):
        gnomon.train(recipe, finished, progress=False)
    assert tree(finished) == before
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    for name in ("file", "folder"):
        with pytest.raises(FileExistsError, match=name):
            run(recipe, tmp_path / name, progress=False)
    assert (tmp_path / "file").read_text() == "mine"


def test_several_processes_are_refused(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under torchrun every process would train for itself into one folder; that is told, not done."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="one process"):
        run(load_recipe(tiny_recipe(page)), tmp_path / "run", progress=False)


def test_progress_without_a_terminal_is_plain_lines_on_standard_error(
    page: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Loss, validation loss, speed and time left are shown line by line, and standard output stays free."""
    run(load_recipe(tiny_recipe(page, evaluate_every=3)), tmp_path / "run", title="mine")
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "mine stage 0  3/6  loss " in shown.err
    assert "validation " in shown.err
    assert "tokens/s" in shown.err
    assert "left" in shown.err
    assert "\x1b" not in shown.err
