"""Recipes: what they accept, what they refuse, and in which words."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnomon.training.options import TrainingOptions
from gnomon.training.recipe import json_schema, load_recipe, recipe_names, to_yaml
from gnomon.training.text import apply_overrides, dump_yaml, parse_yaml
from tiny_runs import tiny_recipe

PAGE = Path("page.txt")

# An override of a tiny recipe, and words that its refusal must contain: the key, the value, the remedy.
REFUSALS = {
    "misspelt training key": (
        "stages.0.training.learning_rat=1",
        ["learning_rat ", "1", "did you mean 'learning_rate'?"],
    ),
    "misspelt block": ("stagse=[]", ["stagse", "did you mean 'stages'?"]),
    "misspelt data key": ("data.sequence_lenght=16", ["data.sequence_lenght", "did you mean 'sequence_length'?"]),
    "misspelt tokenizer key": ("tokenizer.knid=char", ["tokenizer.knid", "did you mean 'kind'?"]),
    "misspelt model key": ("model.hiden_size=16", ["model.hiden_size", "16", "did you mean 'hidden_size'?"]),
    "misspelt preset": ("model.preset=tokenformer-tinny", ["tokenformer-tinny", "did you mean 'tokenformer-tiny'?"]),
    "key one level too high": ("stages.0.max_steps=5", ["stages.0.max_steps", "put it under 'training'"]),
    "text for a whole number": ("stages.0.training.max_steps=many", ["max_steps", "whole number", "'many'"]),
    "number in quotes": ("stages.0.training.learning_rate='3e-4'", ["learning_rate", "number", "without quotes"]),
    "fraction for a whole number": ("stages.0.training.batch_size=2.5", ["batch_size", "whole number", "2.5"]),
    "truth for a whole number": ("seed=true", ["seed", "whole number", "True"]),
    "text for a truth": ("stages.0.training.gradient_checkpointing=maybe", ["true or false", "'maybe'"]),
    "negative rate": ("stages.0.training.learning_rate=-1.0", ["learning_rate", "above 0", "-1.0"]),
    "infinite rate": ("stages.0.training.learning_rate=.inf", ["learning_rate", "finite", "inf"]),
    "no number": ("stages.0.training.weight_decay=.nan", ["weight_decay", "nan"]),
    "beta of one": ("stages.0.training.beta2=1.0", ["beta2", "below 1", "1.0"]),
    "unknown schedule": ("stages.0.training.schedule=cosin", ["schedule", "'cosine'", "'cosin'"]),
    "unknown precision": ("stages.0.training.precision=fp8", ["precision", "'bfloat16'", "'fp8'"]),
    "both lengths": ("stages.0.training.epochs=2", ["max_steps", "epochs", "exactly one"]),
    "no length": ("stages.0.training.max_steps=null", ["max_steps", "epochs", "exactly one"]),
    "warm-up without end": ("stages.0.training.warmup_steps=6", ["warmup_steps 6", "below max_steps 6"]),
    "both data": ("data.name=shakespeare", ["data", "name", "source", "exactly one"]),
    "no data": ("data.source=null", ["data", "name", "source", "exactly one"]),
    "data missing": ("data=null", ["data", "mapping"]),
    "sequence of one": ("data.sequence_length=1", ["sequence_length", "at least 2", "1"]),
    "no tokenizer": ("tokenizer=null", ["tokenizer is missing", "kind: byte"]),
    "unknown tokenizer": ("tokenizer.kind=chars", ["tokenizer.kind", "'char'", "'chars'"]),
    "vocabulary of characters": ("tokenizer.vocab_size=300", ["vocab_size 300", "kind: bpe"]),
    "no stages": ("stages=[]", ["stages", "at least one", "[]"]),
    "stage without training": ("stages=[{}]", ["stages.0.training", "missing", "max_steps"]),
    "a text for a block": ("data=words", ["data", "mapping", "'words'"]),
    "model of nothing": ("model={}", ["model", "preset"]),
    "model text for a number": ("model.hidden_size='16'", ["model", "hidden_size", "'16'"]),
    "model sizes that do not fit": ("model.hidden_size=15", ["model", "hidden_size", "15"]),
    "checkpoint beside fields": ("model.checkpoint=nowhere", ["model.checkpoint", "stand alone", "hidden_size"]),
    "list entry that is not there": ("stages.3.training.max_steps=5", ["stages", "'3'", "from 0 to 0"]),
    "path through a number": ("seed.value=5", ["seed", "0", "change seed itself"]),
    "no equals sign": ("seed", ["dotted.key=value", "'seed'"]),
    "value that is no YAML": ("seed=[1", ["value of seed", "YAML"]),
    "date of no calendar": ("seed=2026-13-45", ["value of seed", "month", "in quotes"]),
    "list for a preset": ("model.preset=[1]", ["model.preset", "[1]"]),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_is_one_sentence_with_key_value_and_remedy(name: str) -> None:
    """Whatever is wrong with a recipe is told in one line that names the key, the value and what to do."""
    override, words = REFUSALS[name]
    with pytest.raises(ValueError, match=r"\w") as caught:
        load_recipe({"seed": 0, **tiny_recipe(PAGE)}, [override])
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith((".", "?"))
    assert "pydantic" not in message
    for word in words:
        assert word in message


def test_unquoted_exponents_are_numbers() -> None:
    """`3e-4`, which YAML 1.1 reads as a text, is the number that it looks like, in files and in overrides."""
    for text in ("3e-4", "3E-4", "3.e-4", ".0003", "0.0003", "+3e-4"):
        recipe = load_recipe(tiny_recipe(PAGE), [f"stages.0.training.learning_rate={text}"])
        assert recipe.stages[0].training.learning_rate == 3e-4
    assert parse_yaml("a: 1e5\nb: e5\nc: '1e5'", "here") == {"a": 1e5, "b": "e5", "c": "1e5"}


def test_a_key_given_twice_is_refused_with_its_line() -> None:
    """YAML's silent preference for the later of two equal keys does not happen here."""
    with pytest.raises(ValueError, match=r"mine\.yaml, line 3 .*'seed' is given twice"):
        parse_yaml("seed: 1\ndata: {}\nseed: 2\n", "mine.yaml")


def test_a_resolved_recipe_reads_back_equal() -> None:
    """Writing every default out and reading the YAML again gives the same recipe, stages and their data included."""
    written = tiny_recipe(PAGE, max_grad_norm=None, epsilon=1e-12)
    written["stages"].append({"training": {"epochs": 2}, "data": {"name": "shakespeare", "sequence_length": 8}})
    recipe = load_recipe(written)
    again = load_recipe(parse_yaml(to_yaml(recipe), "resolved"))
    assert again == recipe
    assert to_yaml(again) == to_yaml(recipe)


def test_a_stage_inherits_what_it_does_not_set() -> None:
    """The second stage has the first one's batch size, its own rate, and epochs in place of the first one's steps."""
    written = tiny_recipe(PAGE, batch_size=7, max_steps=50)
    written["stages"].append({"training": {"epochs": 2, "learning_rate": 0.5}})
    first, second = (stage.training for stage in load_recipe(written).stages)
    assert (first.max_steps, first.epochs) == (50, None)
    assert (second.max_steps, second.epochs) == (None, 2)
    assert (second.batch_size, second.learning_rate, second.warmup_steps) == (7, 0.5, 2)


def test_a_stages_data_complete_the_recipes() -> None:
    """A stage that names other text keeps the sequence length, and a name takes the place of a source."""
    written = tiny_recipe(PAGE)
    written["stages"].append({"training": {}, "data": {"name": "shakespeare"}})
    recipe = load_recipe(written)
    assert recipe.stage_data(0).source == str(PAGE)
    assert (recipe.stage_data(1).name, recipe.stage_data(1).source) == ("shakespeare", None)
    assert recipe.stage_data(1).sequence_length == 16


def test_overrides_leave_the_original_alone() -> None:
    """Overriding builds a new mapping, makes the blocks on the way, and the last of two overrides wins."""
    original = {"stages": [{"training": {"max_steps": 1}}]}
    changed = apply_overrides(original, ["stages.0.training.max_steps=2", "a.b=[1, 2]", "a.b.1=x", "a.b.1=y"])
    assert original == {"stages": [{"training": {"max_steps": 1}}]}
    assert changed == {"stages": [{"training": {"max_steps": 2}}], "a": {"b": [1, "y"]}}


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text("xyz", min_size=1), values, max_size=4))
def test_yaml_gives_back_what_was_written(mapping: dict[str, object]) -> None:
    """Any mapping of plain values survives the way through YAML, numbers that look like texts among them."""
    assert parse_yaml(dump_yaml(mapping), "here") == mapping


def test_a_recipe_is_found_by_file_and_by_name(tmp_path: Path) -> None:
    """A path is read, a packaged name is found, and a name near one is told so."""
    file = tmp_path / "mine.yaml"
    file.write_text(dump_yaml(tiny_recipe(PAGE)))
    assert load_recipe(file) == load_recipe(str(file)) == load_recipe(tiny_recipe(PAGE))
    assert load_recipe("demo").model["preset"] == "tokenformer-tiny"
    with pytest.raises(FileNotFoundError, match=r"'dem0'; did you mean 'demo'\?$"):
        load_recipe("dem0")
    with pytest.raises(FileNotFoundError, match=r"packaged ones are .*\bdemo\b"):
        load_recipe(tmp_path / "nothing-like-it.yaml")
    file.write_text("- 1\n- 2\n")
    with pytest.raises(ValueError, match=r"must be a mapping with the keys model, .*holds \[1, 2\]"):
        load_recipe(file)
    file.write_text("model: {preset: \n  a: [\n")
    with pytest.raises(ValueError, match=r"mine\.yaml, line \d+ is not valid YAML"):
        load_recipe(file)
    for text in ("a: &a [*a]", "[" * 3000):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"mine\.yaml holds itself, or too many"):
            load_recipe(file)
    file.write_bytes(b"a: \xff")
    with pytest.raises(ValueError, match=r"mine\.yaml must be UTF-8, but its byte 3"):
        load_recipe(file)


def test_the_schema_knows_every_key() -> None:
    """The JSON schema names each training key with its meaning, each configuration field, and forbids others."""
    schema = json.loads(json.dumps(json_schema()))
    training = schema["$defs"]["TrainingOptions"]
    assert set(training["properties"]) == set(TrainingOptions.model_fields)
    assert all("description" in entry for entry in training["properties"].values())
    assert training["additionalProperties"] is False
    assert {"preset", "checkpoint", "hidden_size", "score"} <= set(schema["properties"]["model"]["properties"])
    assert schema["properties"]["model"]["additionalProperties"] is False


def test_every_packaged_name_loads() -> None:
    """The list of packaged recipes holds no file that does not check."""
    assert {"demo", "shakespeare-tokenformer"} <= set(recipe_names())
    for name in recipe_names():
        assert load_recipe(name).stages
