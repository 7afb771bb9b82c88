"""The commands that need a model, from training it to converting it, as a user runs them."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

GNOMON = Path(sys.executable).parent / "gnomon"
ENVIRONMENT = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}

RECIPE = {
    "model": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_attention_tokens": 16,
        "num_output_tokens": 16,
        "num_feed_forward_tokens": 48,
        "max_position_embeddings": 64,
    },
    "tokenizer": {"kind": "char"},
    "data": {"source": "text.txt", "sequence_length": 32},
    "stages": [{"training": {"max_steps": 4, "learning_rate": 3e-3, "batch_size": 4, "log_every": 2}}],
}


def gnomon(*arguments: object, cwd: Path) -> subprocess.CompletedProcess:
    """Run the installed command."""
    command = [GNOMON, *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=300)


def succeed(*arguments: object, cwd: Path) -> str:
    """Run the installed command, which must exit with 0; return its standard output."""
    result = gnomon(*arguments, cwd=cwd)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 20,000 characters of Hamlet, a recipe for a tiny model, and its finished run."""
    from gnomon.data.text import load_text

    folder = tmp_path_factory.mktemp("workplace")
    (folder / "text.txt").write_text(load_text(name="shakespeare").train["hamlet"][:20_000], encoding="utf-8")
    (folder / "tiny.yaml").write_text(yaml.safe_dump(RECIPE))
    succeed("train", "tiny.yaml", "--output", "run", "--json", cwd=folder)
    return folder


@pytest.fixture(scope="module")
def ledger(workplace: Path) -> dict:
    """The row of the run's only stage."""
    (row,) = [json.loads(line) for line in (workplace / "run" / "ledger.jsonl").read_text().splitlines()]
    return row


def test_a_run_leaves_everything_that_the_help_promises(workplace: Path, ledger: dict) -> None:
    """Recipe, environment, metrics, ledger, figures, both models and nothing half-written are in the folder."""
    run = workplace / "run"
    for name in ("recipe.yaml", "environment.json", "metrics.jsonl", "model/model.safetensors", "best/config.json"):
        assert (run / name).is_file(), name
    assert {path.suffix for path in (run / "figures").iterdir()} >= {".svg", ".png"}
    assert ledger["steps"] == 4
    assert not list(run.rglob("*.partial"))
    assert not list(run.rglob("*.bin"))


def test_evaluating_the_saved_model_gives_the_ledgers_loss(workplace: Path, ledger: dict) -> None:
    """The same held-out text, scored by another process, has the loss that training wrote down."""
    options = ("--source", "text.txt", "--sequence-length", 32, "--json")
    scored = json.loads(succeed("evaluate", "run/model", *options, cwd=workplace))
    assert scored["loss"] == pytest.approx(ledger["validation_loss"], rel=1e-6)


def test_generation_repeats_itself_by_seed_and_streams_the_same_text(workplace: Path) -> None:
    """A seed gives one text, whether it is streamed or printed as JSON, and another seed another."""
    options = ("run/model", "--prompt", "The ", "--max-new-tokens", 40)
    answer = json.loads(succeed("generate", *options, "--json", cwd=workplace))
    assert answer["text"].startswith("The ")
    assert answer["new_tokens"] <= 40
    result = gnomon("generate", *options, cwd=workplace)
    streamed = result.stdout
    assert result.stderr == ""
    assert streamed.removesuffix("\n") == answer["text"]
    other = gnomon("generate", *options[:-1], 61, "--seed", 1, "--top-k", 5, "--top-p", 0.9, cwd=workplace)
    assert other.returncode == 0
    assert other.stdout[:20] != streamed[:20]
    assert other.stderr == "note: the model is meant for up to 64 tokens, and 65 are asked for.\n"


def test_information_on_a_checkpoint_counts_what_is_stored(workplace: Path, ledger: dict) -> None:
    """The formula's total, read off config.json, is the number of stored numbers that are learned."""
    from safetensors import safe_open

    answer = json.loads(succeed("info", "run/model", "--json", cwd=workplace))
    with safe_open(workplace / "run/model/model.safetensors", "pt") as file:
        stored = sum(file.get_tensor(name).numel() for name in file.keys() if "score_scale" not in name)  # noqa: SIM118
    assert answer["parameters"]["total"] == ledger["parameters"] == stored


def test_conversion_there_and_back_gives_the_same_tensors(workplace: Path, tmp_path: Path) -> None:
    """A checkpoint written in the official layout and read again is equal to the last bit, tokenizer beside it."""
    from safetensors.torch import load_file

    succeed("convert", workplace / "run/model", "official", "--to", "tokenformer", cwd=tmp_path)
    assert sorted(path.name for path in (tmp_path / "official").iterdir()) == ["config.yml", "pytorch_model.bin"]
    succeed(*("convert", "tokenformer", "official", "back", "--tokenizer", workplace / "run/model"), cwd=tmp_path)
    ours = load_file(workplace / "run/model/model.safetensors")
    back = load_file(tmp_path / "back/model.safetensors")
    assert set(ours) == set(back)
    assert all(ours[name].equal(back[name]) for name in ours)
    assert (tmp_path / "back/tokenizer.json").is_file()
    assert gnomon("convert", "tokenformer", "official", "back", cwd=tmp_path).returncode == 2


def test_a_sweep_trains_each_setting_once(workplace: Path, tmp_path: Path) -> None:
    """Two learning rates make two rows, a table and a figure; resuming adds a third and trains no other again."""
    for name in ("text.txt", "tiny.yaml"):
        shutil.copy(workplace / name, tmp_path)
    rate = "stages.0.training.learning_rate"
    command = ["sweep", "tiny.yaml", "--output", "grid", "--json"]
    first = json.loads(succeed(*command, "--grid", f"{rate}=1e-3,3e-3", cwd=tmp_path))
    assert [row["settings"][rate] for row in first["ledger"]] == [1e-3, 3e-3]
    again = json.loads(succeed(*command, "--grid", f"{rate}=1e-3,3e-3,1e-2", "--resume", cwd=tmp_path))
    assert again["ledger"][:2] == first["ledger"]
    assert again["ledger"][2]["settings"] == {rate: 1e-2}
    assert {"table.md", "table.csv", "figure.svg", "figure.png"} <= {
        path.name for path in (tmp_path / "grid").iterdir()
    }


def empty_text(folder: Path) -> list[object]:
    """Train on a file without text."""
    (folder / "text.txt").write_text("")
    return ["train", "tiny.yaml", "--output", "out"]


def short_text(folder: Path) -> list[object]:
    """Train on less than one sequence."""
    (folder / "text.txt").write_text("To be, or\nnot\n")
    return ["train", "tiny.yaml", "--output", "out"]


def existing_output(folder: Path) -> list[object]:
    """Train into a folder that is there."""
    return ["train", "tiny.yaml", "--output", "model"]


def unfit_tokenizer(folder: Path) -> list[object]:
    """Evaluate with the tokenizer of a larger vocabulary."""
    from gnomon.data.tokenizers import build_tokenizer

    build_tokenizer({"kind": "byte"}).save_pretrained(folder / "bytes")
    return ["evaluate", "model", "--source", "text.txt", "--tokenizer", "bytes"]


def unfit_tokenizer_in_training(folder: Path) -> list[object]:
    """Train a checkpoint on with another tokenizer than its own."""
    recipe = {**RECIPE, "model": {"checkpoint": "model"}, "tokenizer": {"kind": "byte"}}
    (folder / "tiny.yaml").write_text(yaml.safe_dump(recipe))
    return ["train", "tiny.yaml", "--output", "out"]


def no_tokenizer(folder: Path) -> list[object]:
    """Generate from a checkpoint that has lost its tokenizer."""
    for file in (folder / "model").glob("tokenizer*"):
        file.unlink()
    return ["generate", "model", "-p", "A"]


def unknown_characters(folder: Path) -> list[object]:
    """Continue a prompt of characters that the tokenizer never saw."""
    return ["generate", "model", "-p", "Привет"]


def no_weights(folder: Path) -> list[object]:
    """Generate from a checkpoint without weights."""
    (folder / "model" / "model.safetensors").unlink()
    return ["generate", "model", "-p", "A"]


def damaged_weights(folder: Path) -> list[object]:
    """Generate from a checkpoint whose file was cut off."""
    weights = folder / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    return ["generate", "model", "-p", "A"]


def weights_of_another_size(folder: Path) -> list[object]:
    """Generate from a checkpoint whose config.json was changed to another width."""
    config = folder / "model" / "config.json"
    fields = json.loads(config.read_text())
    config.write_text(json.dumps({**fields, "num_feed_forward_tokens": fields["num_feed_forward_tokens"] + 1}))
    return ["generate", "model", "-p", "A"]


def misspelt_configuration(folder: Path) -> list[object]:
    """Generate from a checkpoint whose config.json has a misspelt key."""
    config = folder / "model" / "config.json"
    config.write_text(config.read_text().replace('"hidden_size"', '"hiden_size"'))
    return ["generate", "model", "-p", "A"]


def missing_config_file(folder: Path) -> list[object]:
    """Convert weights without the configuration that belongs to them."""
    return ["convert", "tokenformer", "model", "out"]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (empty_text, "text.txt"),
        (short_text, "sequence"),
        (existing_output, "model exists"),
        (unfit_tokenizer, "the tokenizer bytes has 258 ids"),
        (unfit_tokenizer_in_training, "tokenizer"),
        (no_tokenizer, "tokenizer.json"),
        (unknown_characters, "'Привет'"),
        (no_weights, "no weights"),
        (damaged_weights, "the weights of model are damaged"),
        (weights_of_another_size, "other shapes than its config.json says"),
        (misspelt_configuration, "did you mean 'hidden_size'?"),
        (missing_config_file, "--config"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_bad_input_ends_before_anything_is_written(workplace: Path, tmp_path: Path, spoil, words: str) -> None:
    """One sentence names the thing, the exit code is 2, and the folder is as it was."""
    for name in ("text.txt", "tiny.yaml"):
        shutil.copy(workplace / name, tmp_path)
    shutil.copytree(workplace / "run" / "model", tmp_path / "model")
    arguments = spoil(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    result = gnomon(*arguments, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert words in result.stderr
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_an_interrupted_run_says_how_to_go_on_and_goes_on(workplace: Path, tmp_path: Path) -> None:
    """SIGTERM ends a run with 143 and SIGINT with 130; the printed command finishes it."""
    shutil.copy(workplace / "text.txt", tmp_path)
    recipe = {**RECIPE, "stages": [{"training": {**RECIPE["stages"][0]["training"], "max_steps": 400}}]}
    (tmp_path / "long.yaml").write_text(yaml.safe_dump(recipe))
    command = ["train", "long.yaml", "--output", "run"]
    for number in (signal.SIGTERM, signal.SIGINT):
        rows = count_rows(tmp_path)
        process = subprocess.Popen(
            [GNOMON, *command], cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        deadline = time.monotonic() + 120
        while count_rows(tmp_path) < rows + 2 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(number)
        output, complaints = process.communicate(timeout=120)
        assert process.returncode == 128 + number, complaints
        command = shlex.split(output.rsplit("continue with: gnomon ", 1)[1])
    succeed(*command, cwd=tmp_path)
    (row,) = [json.loads(line) for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()]
    assert row["steps"] == 400
    steps = [json.loads(line).get("step") for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [step for step in dict.fromkeys(steps) if step] == list(range(2, 401, 2))


def count_rows(folder: Path) -> int:
    """The rows of metrics that a run has written."""
    metrics = folder / "run" / "metrics.jsonl"
    return metrics.read_text().count("\n") if metrics.exists() else 0


def test_padding_rows_of_the_table_are_never_sampled() -> None:
    """Ids past the tokenizer's last have a row in the model and no text, and do not come up in 200 hot samples."""
    import torch

    from gnomon.cli.generate import encode, sample
    from gnomon.data.tokenizers import build_tokenizer
    from gnomon.models.config import GnomonConfig
    from gnomon.models.text import GnomonForCausalLM

    tokenizer = build_tokenizer({"kind": "char"}, {"text": "the play's the thing"})
    sizes = {name: value for name, value in RECIPE["model"].items() if name != "max_position_embeddings"}
    torch.manual_seed(0)
    model = GnomonForCausalLM(GnomonConfig(**sizes, vocab_size=2 * len(tokenizer), eos_token_id=None)).eval()
    row = sample(
        model,
        tokenizer,
        encode("the", tokenizer, model),
        max_new_tokens=200,
        temperature=2.0,
        top_k=0,
        top_p=1.0,
        seed=0,
        stream=False,
    )
    assert row.shape == (1, 203)
    assert int(row.max()) < len(tokenizer)
