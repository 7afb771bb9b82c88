"""`gnomon grow` and `gnomon shrink` as a user runs them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import gnomon
from gnomon.training.recipe import load_recipe
from gnomon.training.stages import run
from tiny_runs import tiny_recipe, write_page

GNOMON = Path(sys.executable).parent / "gnomon"
LARGER = ("--attention-tokens", 16, "--output-tokens", 16, "--feed-forward-tokens", 48)
SMALLER = ("--attention-tokens", 8, "--output-tokens", 8, "--feed-forward-tokens", 24)


def command(*arguments: object, cwd: Path) -> subprocess.CompletedProcess:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [GNOMON, *map(str, arguments)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a page of text and a finished run."""
    folder = tmp_path_factory.mktemp("grow")
    run(load_recipe(tiny_recipe(write_page(folder))), folder / "run", progress=False)
    return folder


@pytest.mark.parametrize("init", ["exact", "replicate"])
def test_a_grown_checkpoint_evaluates_the_same_and_carries_its_optimizer(folder: Path, init: str) -> None:
    """Both exact inits change the logits by at most 1e-12 in float64, and perplexity agrees to 5 digits."""
    source, output = "run/stage-0/checkpoint-6", f"larger-{init}"
    result = command("grow", source, output, *LARGER, "--init", init, "--json", cwd=folder)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["exact"]
    assert report["gap_relative"] <= 1e-12
    assert report["gap_relative_stored"] <= 5e-6
    assert json.loads((folder / output / "growth.json").read_text()) == report
    scores = [
        json.loads(
            command("evaluate", model, "--source", "page.txt", "--sequence-length", 16, "--json", cwd=folder).stdout
        )
        for model in (source, output)
    ]
    assert f"{scores[0]['perplexity']:.5g}" == f"{scores[1]['perplexity']:.5g}"
    state = torch.load(folder / output / "optimizer.pt", weights_only=True)["state"]
    assert {value.dtype for row in state.values() for value in row.values()} == {torch.float32}
    model = gnomon.GnomonForCausalLM.from_pretrained(folder / output)
    shapes = {tuple(parameter.shape) for parameter in model.parameters()}
    assert all(tuple(row["exp_avg"].shape) in shapes for row in state.values())


def test_a_half_precision_checkpoint_stays_one(folder: Path) -> None:
    """A bfloat16 checkpoint is written in bfloat16 again, its old tokens bit for bit and its tau in float32."""
    model = gnomon.GnomonForCausalLM.from_pretrained(folder / "run" / "model")
    model.bfloat16().save_pretrained(folder / "half")
    result = command("grow", "half", "half-larger", *LARGER, "--json", cwd=folder)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["exact"]
    assert report["stored_dtype"] == "bfloat16"
    before, after = (load_file(folder / name / "model.safetensors") for name in ("half", "half-larger"))
    name = "model.layers.0.feed_forward."
    assert torch.equal(after[name + "value_tokens"][:24], before[name + "value_tokens"])
    assert after[name + "value_tokens"].dtype == torch.bfloat16
    assert after[name + "score_scale"].dtype == torch.float32


def test_shrinking_back_gives_the_same_file(folder: Path) -> None:
    """What `grow` appended, `shrink` drops again, to the last byte of the weights."""
    assert command("grow", "run/model", "large", *LARGER, cwd=folder).returncode == 0
    assert command("shrink", "large", "small", *SMALLER, cwd=folder).returncode == 0
    names = ("run/model/model.safetensors", "small/model.safetensors")
    first, second = ((folder / name).read_bytes() for name in names)
    assert first == second


@pytest.fixture(scope="module")
def linear(folder: Path) -> Path:
    """A checkpoint without parameter tokens."""
    config = gnomon.GnomonConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, projection="linear"
    )
    gnomon.GnomonForCausalLM(config).save_pretrained(folder / "linear")
    return folder / "linear"


@pytest.fixture(scope="module")
def foreign(folder: Path) -> Path:
    """A checkpoint with the optimizer of a larger model."""
    model = gnomon.GnomonForCausalLM.from_pretrained(folder / "run" / "model")
    model.save_pretrained(folder / "foreign")
    gnomon.grow(model, num_feed_forward_tokens=48)
    groups = [[p for p in model.parameters() if (p.ndim >= 2) is decayed] for decayed in (True, False)]
    optimizer = torch.optim.AdamW([{"params": group} for group in groups])
    model(input_ids=torch.ones(1, 4).long(), labels=torch.ones(1, 4).long()).loss.backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), folder / "foreign" / "optimizer.pt")
    return folder / "foreign"


@pytest.mark.usefixtures("linear", "foreign")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("grow", "linear", "out", "--attention-tokens", 32), "no parameter tokens"),
        (("grow", "foreign", "out", "--attention-tokens", 16), "not of this model"),
        (("grow", "run/model", "out", "--attention-tokens", 4), "shrink"),
        (("grow", "run/model", "run", "--attention-tokens", 16), "exists"),
        (("grow", "run/model", "out"), "at least one"),
        (("grow", "run/model", "run/model/out", "--attention-tokens", 16), "lies inside the checkpoint"),
        (("grow", "nowhere", "out", "--attention-tokens", 16), "nowhere"),
        (("grow", "run/model", "out", "--attention-tokens", 16, "--init", "zero"), "exact, replicate"),
        (("shrink", "run/model", "out", "--attention-tokens", 16), "grow"),
    ],
)
def test_bad_input_gets_one_sentence_and_leaves_nothing(folder: Path, arguments: tuple, said: str) -> None:
    """Exit code 2, one line on stderr, no output folder."""
    result = command(*arguments, cwd=folder)
    assert result.returncode == 2
    assert said in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (folder / "out").exists()
