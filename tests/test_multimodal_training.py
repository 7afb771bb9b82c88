"""Training two towers: from a recipe to recall, to a checkpoint with its processors, and to a sheet of findings."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import gnomon
from gnomon.cli.main import app
from gnomon.training.data_options import DataOptions
from gnomon.training.recipe import load_recipe
from gnomon.training.tasks import find_task
from tiny_runs import resumed_weights

TOWER = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
MODEL = {
    "projection_dim": 12,
    "text_config": {**TOWER, "max_position_embeddings": 32, "is_decoder": False},
    "vision_config": {**TOWER, "image_size": 8, "patch_size": 4, "num_channels": 3},
}
COLORS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255), "white": (255, 255, 255), "black": (0, 0, 0)}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Plain squares with the names of their colors; each color has a light and a noisy drawing on either side."""
    root, random = tmp_path_factory.mktemp("colors"), np.random.default_rng(0)
    for side, count in (("train", 8), ("held-out", 2)):
        (root / side).mkdir()
        lines = ["file,text"]
        for name, color in COLORS.items():
            for number in range(count):
                noisy = np.array(color) + random.integers(-60, 60, (8, 8, 3))
                Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(root / side / f"{name}-{number}.png")
                lines.append(f"{name}-{number}.png,{name}")
        (root / side / "captions.csv").write_text("\n".join(lines) + "\n")
    return root


def recipe(pictures: Path, **training: Any) -> dict[str, Any]:
    stage = {"max_steps": 40, "learning_rate": 0.01, "batch_size": 20, "warmup_steps": 2, "log_every": 10}
    data = {"source": str(pictures / "train"), "validation": str(pictures / "held-out"), "image_size": 8}
    return {
        "model": MODEL,
        "tokenizer": {"kind": "char"},
        "data": {**data, "augmentation": {"flip": 0.5}},
        "stages": [{"training": {**stage, **training}}],
    }


@pytest.fixture(scope="module")
def trained(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run."""
    output = tmp_path_factory.mktemp("runs") / "colors"
    gnomon.train(recipe(pictures), output, progress=False)
    return output


def test_colors_are_found_by_name(trained: Path) -> None:
    """Held-out drawings find their names far more often than by chance, and the ledger says so."""
    row = json.loads((trained / "ledger.jsonl").read_text().splitlines()[-1])
    assert row["recall_at_1"] >= 0.6
    assert row["tokens"] == 40 * 20, "costs are counted by pairs"
    assert row["flops"] > 0
    model = gnomon.GnomonForImageTextContrastive.from_pretrained(trained / "model")
    assert row["parameters"] == model.num_parameters()


def test_a_checkpoint_is_scored_beside_pixels_and_shown(trained: Path, pictures: Path) -> None:
    """The command reads both processors from the folder, prints recall and the baseline, and writes the sheet."""
    sheet = trained / "sheet.png"
    source = ["--source", str(pictures / "train"), "--baselines", "--samples", str(sheet), "--json"]
    result = CliRunner().invoke(app, ["evaluate", str(trained / "model"), *source])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["images"] > 0
    assert 0.0 <= found["image_to_text_recall_at_1"] <= found["image_to_text_recall_at_5"] <= 1.0
    assert "image_to_text_recall_at_1" in found["baselines"]["nearest neighbor"]
    with Image.open(sheet) as image:
        assert image.width > 500


def test_a_trained_checkpoint_goes_on(trained: Path, pictures: Path, tmp_path: Path) -> None:
    """Its own tokenizer and configuration serve a second run, which starts where the first has ended."""
    more = {
        **recipe(pictures, max_steps=2, warmup_steps=0, learning_rate=1e-5),
        "model": {"checkpoint": str(trained / "model")},
    }
    del more["tokenizer"]
    result = gnomon.train(more, tmp_path / "more", progress=False)
    assert result.ledger[-1]["recall_at_1"] >= 0.6


def test_a_resumed_run_of_pairs_ends_as_one_that_never_stopped(pictures: Path, tmp_path: Path) -> None:
    """Changes of the images included: the same weights, bit by bit."""
    whole, resumed = resumed_weights(recipe(pictures, max_steps=8, save_every=5), tmp_path, 5)
    assert all(torch.equal(resumed[name], tensor) for name, tensor in whole.items())


def test_what_cannot_be_trained_is_refused(pictures: Path, tmp_path: Path) -> None:
    """A model without towers, images of another size, a field in the wrong place, and labels to smooth."""
    for changes, message in (
        (["model.hidden_size=16"], "model.hidden_size is no configuration field"),
        (
            ["model.vision_config.image_size=16"],
            "the model reads 3 channels of 16 x 16 pixels, and the data give 3 of 8 x 8",
        ),
        (["model.text_config.hiden_size=16"], "did you mean 'hidden_size'"),
        (["stages.0.training.batch_size=1"], "batch_size is 1, and .* compares the pairs of a batch"),
        (
            ["data.augmentation={mixup: 0.2}"],
            r"data\.augmentation\.mixup is 0\.2, and an image mixed of two has no text",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            gnomon.train(recipe(pictures), tmp_path / "no", overrides=changes, progress=False)
    plain = {**recipe(pictures), "model": TOWER, "task": "image-text-contrastive"}
    with pytest.raises(ValueError, match="needs a model of two towers"):
        gnomon.train(plain, tmp_path / "no", progress=False)
    with pytest.raises(ValueError, match="pairs have no labels"):
        find_task("image-text-contrastive").loss(None, {}, None, 0.1)
    assert not (tmp_path / "no").exists()


def test_the_artist_is_a_key_of_the_set_emoji_alone(pictures: Path) -> None:
    """It goes to the loader, which refuses it for a source; other tasks do not read it."""
    data = DataOptions(source=str(pictures / "train"), artist="noto")
    with pytest.raises(ValueError, match="has no meaning for a source"):
        find_task("image-text-contrastive").load(data)
    assert load_recipe("emoji").task == "image-text-contrastive"
    with pytest.raises(ValueError, match="artist is 'noto', which task image-classification does not read"):
        data.check_for("image-classification")


def command(*arguments: object, cwd: Path) -> subprocess.CompletedProcess:
    """`gnomon` as a user runs it."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    gnomon_command = [Path(sys.executable).parent / "gnomon", *map(str, arguments)]
    return subprocess.run(
        gnomon_command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=300
    )


def test_towers_are_counted_and_grown_from_the_command_line(trained: Path, tmp_path: Path) -> None:
    """`info` counts both; `grow` takes the tower's name, and without it says in one sentence what is missing."""
    shown = command("info", trained / "model", "--sequence-length", 16, "--json", cwd=tmp_path)
    before = json.loads(shown.stdout)["parameters"]["total"]
    refused = command("grow", trained / "model", "larger", "--layers", 2, cwd=tmp_path)
    assert refused.returncode == 2
    assert "name one at a time, tower: text or tower: vision" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
    grown = command("grow", trained / "model", "larger", "--layers", 2, "--tower", "vision", "--json", cwd=tmp_path)
    assert grown.returncode == 0, grown.stderr
    report = json.loads(grown.stdout)
    assert report["exact"]
    assert report["parameters_before"] == before
    after = command("info", "larger", "--json", cwd=tmp_path)
    assert json.loads(after.stdout)["parameters"]["total"] == report["parameters_after"] > before


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda root: None, "must hold one folder a class"),
        (lambda root: (root / "a").mkdir(), "hold no image"),
        (lambda root: (root / "labels.csv").write_text("file,label\n"), "holds no rows: give at least one"),
        (lambda root: (root / "labels.csv").write_text("file,label\ngone.png,a\n"), "gone.png (there is no such file)"),
        (lambda root: (root / "labels.csv").write_text("picture,label\na.png,a\n"), "data.image_column"),
    ],
)
def test_a_folder_that_cannot_be_trained_on_is_refused_in_one_sentence(tmp_path: Path, write, said: str) -> None:
    """On the command line, with exit code 2 and nothing written."""
    (tmp_path / "pictures").mkdir()
    write(tmp_path / "pictures")
    written = {
        "task": "image-classification",
        "model": {**TOWER, "image_size": 8, "patch_size": 4, "num_channels": 3},
        "data": {"source": "pictures", "image_size": 8},
        "stages": [{"training": {"max_steps": 2, "batch_size": 2, "learning_rate": 0.01}}],
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(written))
    result = command("train", "recipe.yaml", "--output", "run", cwd=tmp_path)
    assert result.returncode == 2
    assert said in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()
