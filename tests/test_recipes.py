"""Every packaged recipe trains, tells the truth in its header, and has its twin two fields away."""

import json
from pathlib import Path
from typing import Any

import pytest

import gnomon
from gnomon.analysis.flops import count_parameters
from gnomon.data.catalog import DATASETS, find_dataset
from gnomon.training.data_options import DataOptions
from gnomon.training.preparation import prepare
from gnomon.training.recipe import load_recipe, model_fields, recipe_names, recipe_path
from gnomon.training.tasks import find_task
from tiny_runs import read_lines, write_page
from tiny_sounds import write_classes, write_speech
from tiny_tasks import write_rows

SMALL_MODEL = ["model.hidden_size=32", "model.num_attention_heads=2"]
WIDTHS = {"hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size"}


def offline(data: DataOptions, task: str, folder: Path) -> dict[str, Any]:
    """A recipe's data where they need no fetching, else a page or a few rows with the same keys."""
    if task in ("image-classification", "masked-image-modeling"):
        return {"name": "digits", "image_size": data.image_size or 8, "num_channels": data.num_channels or 1}
    if task == "image-text-contrastive":
        return {"name": "emoji-noto", "image_size": data.image_size}
    if data.name in DATASETS and find_dataset(data.name).is_embedded:
        return {"name": data.name, "sequence_length": 64}
    if task in ("language-modeling", "masked-language-modeling"):
        return {"source": str(write_page(folder, 3000)), "sequence_length": 64}
    if task in ("speech-recognition", "speech-to-text"):
        pytest.importorskip("soundfile", reason="soundfile is not installed: pip install 'gnomon[speech]'")
        write_speech(folder / "speech")
        return {"source": str(folder / "speech"), "validation_percent": 20}
    if task == "audio-classification":
        pytest.importorskip("soundfile", reason="soundfile is not installed: pip install 'gnomon[speech]'")
        write_classes(folder / "sounds")
        return {"source": str(folder / "sounds"), "validation_percent": 20}
    columns = {"source_column": "text", "target_column": "de"} if task == "translation" else {}
    return {"source": str(write_rows(folder)), "sequence_length": 40, "validation_percent": 20, **columns}


def shortened(name: str, folder: Path) -> list[str]:
    """Overrides that make every stage of a recipe take three steps, on a tiny model and without any download."""
    recipe = load_recipe(name)
    changes = [f"data={json.dumps(offline(recipe.data, recipe.task, folder))}"]
    if recipe.tokenizer is not None and recipe.tokenizer.kind == "bpe":
        changes += ["tokenizer={kind: byte}"]
    is_pair = "vision_config" in recipe.model  # whose towers are tiny as they are
    if not is_pair and not any(stage.growth and WIDTHS & set(stage.growth.sizes()) for stage in recipe.stages):
        paired = "encoder_layers" in recipe.model
        layers = ["model.encoder_layers=1", "model.decoder_layers=1"] if paired else ["model.num_hidden_layers=1"]
        changes += [*SMALL_MODEL, *layers]
        changes += ["model.head_dim=null"] if "head_dim" in recipe.model else []
    for stage, options in enumerate(recipe.stages):
        key = f"stages.{stage}.training"
        changes += [f"{key}.max_steps=3", f"{key}.epochs=null", f"{key}.warmup_steps=1", f"{key}.batch_size=2"]
        changes += [
            f"{key}.gradient_accumulation_steps=1",
            f"{key}.evaluation_batch_size=128",
            f"{key}.evaluate_every=2",
            f"{key}.evaluation_sequences=4",
            f"{key}.save_every=2",
            f"{key}.log_every=1",
        ]
        changes += [f"stages.{stage}.data=null"] if options.data is not None else []
    return changes


@pytest.mark.parametrize("name", recipe_names())
def test_a_packaged_recipe_trains_and_writes_its_metrics(name: str, tmp_path: Path) -> None:
    """Three steps of every stage, on embedded data or a few rows, end in a ledger, a model and a figure."""
    output = tmp_path / "run"
    result = gnomon.train(name, output, overrides=shortened(name, tmp_path), progress=False)
    recipe = load_recipe(name)
    assert [row["status"] for row in result.ledger] == ["finished"] * len(recipe.stages)
    assert set(find_task(recipe.task).measures) <= set(result.ledger[-1])
    assert [row["step"] for row in read_lines(output / "metrics.jsonl") if "loss" in row][:3] == [1, 2, 3]
    assert (output / "model" / "model.safetensors").is_file()
    assert (output / "figures" / "loss.svg").is_file()


@pytest.mark.parametrize("name", recipe_names())
def test_a_header_states_command_hardware_metric_and_time(name: str) -> None:
    """The comment begins with what the recipe does, and its command names the recipe itself."""
    lines = recipe_path(name).read_text(encoding="utf-8").splitlines()
    header = "\n".join(line for line in lines if line.startswith("#"))
    about = header.split("\n#\n")[0]
    assert about.startswith("# ")
    assert about.endswith(".")
    for word in ("Command:", "Hardware:", "Expect:", "Time:"):
        assert word in header
    assert f"gnomon train {name}" in header or f"gnomon sweep {name}" in header


def test_a_size_matched_transformer_is_two_fields_away() -> None:
    """Changing the preset and the rate gives a linear model with as many parameters, within 1%, on the same text."""
    changes = ["model.preset=transformer-tiny", "stages.0.training.learning_rate=1.0e-3"]
    tokens, twin = load_recipe("shakespeare-tokenformer"), load_recipe("shakespeare-tokenformer", changes)
    assert twin.data == tokens.data
    fields = model_fields(twin.model)
    assert fields["projection"] == "linear"
    counts = [count_parameters(model_fields(recipe.model)).total for recipe in (tokens, twin)]
    assert counts[1] == pytest.approx(counts[0], rel=0.01)
    assert "-o model.preset=transformer-tiny" in recipe_path("shakespeare-tokenformer").read_text(encoding="utf-8")


def test_the_formula_counts_what_is_built() -> None:
    """The parameters that a ledger states are those of the model itself."""
    model = prepare(load_recipe("demo")).model
    assert count_parameters(model.config.to_dict()).total == model.num_parameters()
