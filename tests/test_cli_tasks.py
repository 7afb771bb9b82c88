"""`gnomon evaluate` and `gnomon generate` on masked models, classifiers and translations."""

import json
from pathlib import Path

import pytest
from transformers import pipeline
from typer.testing import CliRunner

import gnomon
from gnomon.cli.main import app
from gnomon.training.tasks import find_task
from tiny_tasks import task_recipe, write_rows

COLUMNS = {"translation": ["--source-column", "text", "--target-column", "de"]}
TRAINED = ("masked-language-modeling", "text-classification", "translation")


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the rows, and a run of every task."""
    folder = tmp_path_factory.mktemp("tasks")
    file = write_rows(folder)
    for task in TRAINED:
        recipe = task_recipe(task, file, max_steps=2)
        del recipe["data"]["validation_percent"]  # the command line holds out the same tenth
        gnomon.train(recipe, folder / task, progress=False)
    return folder


def invoke(*arguments: object) -> str:
    """What a command prints; it must succeed."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


@pytest.mark.parametrize("task", TRAINED)
def test_evaluating_a_checkpoint_gives_its_ledgers_numbers(task: str, workplace: Path) -> None:
    """The held-out rows, scored anew by the model's own task, have the loss and measures of the ledger."""
    options = ["--source", workplace / "rows.jsonl", "--sequence-length", 24, "--json"]
    options += [*COLUMNS.get(task, []), "--baselines"]
    scored = json.loads(invoke("evaluate", workplace / task / "model", *options))
    (ledger,) = [json.loads(line) for line in (workplace / task / "ledger.jsonl").read_text().splitlines()]
    assert scored["loss"] == pytest.approx(ledger["validation_loss"], rel=1e-5)
    for measure in find_task(task).measures:
        assert scored[measure] == pytest.approx(ledger[measure], rel=1e-5)
    (floor,) = scored["baselines"].values()
    assert set(floor) <= set(scored)


def test_the_pipeline_fills_in_a_mask(workplace: Path) -> None:
    """As transformers' users ask: the mask's name in a text, and tokens of the vocabulary with their probabilities."""
    fill = pipeline("fill-mask", model=str(workplace / "masked-language-modeling" / "model"), device="cpu")
    answers = fill(f"a big {fill.tokenizer.mask_token} ball", top_k=3)
    shares = [answer["score"] for answer in answers]
    assert shares == sorted(shares, reverse=True)
    assert 0 < sum(shares) <= 1
    model, ids = fill.model, fill.tokenizer(f"a big {fill.tokenizer.mask_token} ball", return_tensors="pt").input_ids
    place = (ids[0] == fill.tokenizer.mask_token_id).nonzero().item()
    expected = model(input_ids=ids).logits[0, place].softmax(-1).topk(3)
    assert [answer["token"] for answer in answers] == expected.indices.tolist()
    assert shares == pytest.approx(expected.values.tolist(), rel=1e-4)


def test_a_table_names_the_measures_and_the_baseline(workplace: Path) -> None:
    """Without --json the numbers stand in a table, the baseline's below."""
    options = ["--source", workplace / "rows.jsonl", "--split", "all", "--sequence-length", 24, "--baselines"]
    shown = invoke("evaluate", workplace / "text-classification" / "model", *options)
    for words in ("accuracy (share)", "F1, mean of the classes", "majority class: accuracy (share)", "rows"):
        assert words in shown


def test_an_encoder_decoder_translates(workplace: Path) -> None:
    """The same source gives the same translation, by its own beams or by others, and sampling is repeatable by seed."""
    run = workplace / "translation" / "model"
    own = json.loads(invoke("generate", run, "-p", "a big red ball", "--json"))
    assert own["new_tokens"] <= 20
    assert json.loads(invoke("generate", run, "-p", "a big red ball", "--beams", 2, "--json")) == own
    assert invoke("generate", run, "-p", "a big red ball").rstrip("\n") == own["text"].rstrip("\n")
    drawn = [
        json.loads(invoke("generate", run, "-p", "a big red ball", "--temperature", 1.5, "--seed", seed, "--json"))
        for seed in (1, 1, 2)
    ]
    assert drawn[0]["text"] == drawn[1]["text"] != drawn[2]["text"]


@pytest.mark.parametrize(
    ("task", "arguments", "message"),
    [
        ("masked-language-modeling", ["generate", "-p", "a"], "GnomonForMaskedLM, which writes no text"),
        ("text-classification", ["generate", "-p", "a"], "writes no text"),
        ("translation", ["generate", "-p", ""], "the prompt is empty"),
        ("translation", ["generate", "-p", "a", "--beams", "3", "--temperature", "1"], "choose one of them"),
        ("translation", ["evaluate", "--source", "rows.jsonl"], "data.source_column is missing"),
        ("masked-language-modeling", ["evaluate", "--source", "rows.jsonl", "--label-column", "x"], "does not read"),
    ],
)
def test_what_a_head_cannot_do_gets_one_sentence(
    task: str, arguments: list[str], message: str, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the model or the option, and what to do instead."""
    monkeypatch.chdir(workplace)
    command, *options = arguments
    result = CliRunner().invoke(app, [command, str(workplace / task / "model"), *options])
    assert result.exit_code != 0
    assert message in str(result.exception)
