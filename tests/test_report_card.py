"""The model card in a run's model folder: its numbers are the ledger's, and the hub's own reader takes it."""

import shutil
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from gnomon.report.card import write_card
from gnomon.report.run import train
from gnomon.report.tables import format_cell
from gnomon.training.recipe import load_recipe
from gnomon.training.text import dump_yaml, parse_yaml
from tiny_runs import tiny_recipe, write_page


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two stages with a growth between them, on a page of a file, and its card."""
    folder = tmp_path_factory.mktemp("card")
    recipe = tiny_recipe(write_page(folder), max_steps=3)
    second = {
        "growth": {"num_feed_forward_tokens": 32},
        "training": {"max_steps": 3, "warmup_steps": 1},
    }
    result = train({**recipe, "stages": [*recipe["stages"], second]}, folder / "plays", progress=False)
    return result, ModelCard.load(result.output / "model" / "README.md")


def test_the_card_holds_the_ledgers_numbers(run) -> None:
    """Every stage's counts, losses and measures stand in the text, the last one's in the metadata to the last digit."""
    result, card = run
    for row in result.ledger:
        for key in ("steps", "tokens", "flops", "train_loss", "validation_loss", "perplexity", "bits_per_byte"):
            assert f"| {format_cell(key, row[key])} |" in card.text, key
    assert f"It has {result.ledger[-1]['parameters']:,} parameters" in card.text
    measures = {found.metric_type: found.metric_value for found in card.data.eval_results}
    last = result.ledger[-1]
    names = {"loss": "validation_loss", "perplexity": "perplexity", "bits_per_byte": "bits_per_byte"}
    assert measures == {name: pytest.approx(last[key], rel=1e-9) for name, key in names.items()}


def test_the_hubs_reader_finds_task_library_and_measures(run) -> None:
    """The metadata is read back without the network, as the hub reads it, and says how to load the model."""
    result, card = run
    assert card.data.library_name == "transformers"
    assert card.data.pipeline_tag == "text-generation"
    assert card.data.model_name == result.output.name == "plays"
    assert {found.task_type for found in card.data.eval_results} == {"text-generation"}
    assert card.data.to_dict()["model-index"][0]["results"][0]["dataset"]["type"] == "page.txt"
    assert "from gnomon import GnomonForCausalLM" in card.text


def test_the_recipe_in_the_card_repeats_the_run(run) -> None:
    """The YAML between the fences is the run's own recipe, checked and complete."""
    result, card = run
    text = card.text.split("```yaml\n")[1].split("```")[0]
    assert load_recipe(parse_yaml(text, "the card")) == load_recipe(result.output / "recipe.yaml")
    assert "before stage 1 (num_feed_forward_tokens: 32)" in card.text


def test_the_card_says_under_which_license_the_data_are(run, tmp_path: Path) -> None:
    """Of a file gnomon knows nothing and says so; of a set of the catalog the card has the catalog's words."""
    result, card = run
    assert "| page.txt | not known to gnomon; ask the data's owner |" in card.text
    named = tmp_path / "named"
    shutil.copytree(result.output, named)
    recipe = load_recipe(named / "recipe.yaml").to_dict()
    for part in (recipe, *recipe["stages"]):
        if part.get("data"):
            part["data"] = {"name": "shakespeare", "sequence_length": 16}
    (named / "recipe.yaml").write_text(dump_yaml(recipe))
    assert "| shakespeare | public domain |" in write_card(named).read_text()


def test_the_folder_is_ready_for_the_hub(run) -> None:
    """Weights, configuration, tokenizer and card lie in one folder, and nothing else that a push would publish."""
    result, _ = run
    assert {path.name for path in (result.output / "model").iterdir()} == {
        "README.md", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    }  # fmt: skip


def test_a_run_without_a_finished_stage_has_no_card(run, tmp_path: Path) -> None:
    """There is no model to describe yet."""
    (tmp_path / "ledger.jsonl").write_text("")
    assert write_card(tmp_path) is None
