"""Recipes that train in a second: a tiny TokenFormer on a page of Shakespeare."""

import json
import shutil
from pathlib import Path
from typing import Any

from gnomon.data.text import load_text

MODEL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_attention_tokens": 8,
    "num_output_tokens": 8,
    "num_feed_forward_tokens": 24,
}


def write_page(folder: Path, characters: int = 900) -> Path:
    """A page of the embedded plays as a file."""
    page = folder / "page.txt"
    text = next(iter(load_text(name="shakespeare").train.values()))
    page.write_text(text[4000 : 4000 + characters], encoding="utf-8")
    return page


def tiny_recipe(page: Path, *, model: dict[str, Any] | None = None, **training: Any) -> dict[str, Any]:
    """A recipe as a mapping; `training` changes its only stage."""
    stage = {"max_steps": 6, "learning_rate": 0.01, "batch_size": 4, "warmup_steps": 2, "log_every": 1}
    return {
        "model": {**MODEL, **(model or {})},
        "tokenizer": {"kind": "char"},
        "data": {"source": str(page), "sequence_length": 16},
        "stages": [{"training": {**stage, **training}}],
    }


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def without_times(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without what a clock has measured."""
    clocks = {"seconds", "cumulative_seconds", "tokens_per_second"}
    return [{key: value for key, value in row.items() if key not in clocks} for row in rows]


def tree(folder: Path) -> dict[str, bytes]:
    """Every file of a folder with its contents, hidden ones and empty folders' absence included."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def resumed_weights(recipe: dict[str, Any], folder: Path, step: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The weights of a run of one stage, and of the same run that had ended after a step and then gone on."""
    from safetensors.torch import load_file

    from gnomon.training.recipe import load_recipe
    from gnomon.training.stages import run

    for name in ("whole", "again"):
        run(load_recipe(recipe), folder / name, progress=False)
    again = folder / "again"
    shutil.rmtree(again / "model")
    (again / "ledger.jsonl").unlink()
    for checkpoint in (again / "stage-0").glob("checkpoint-*"):
        if int(checkpoint.name.split("-")[1]) > step:
            shutil.rmtree(checkpoint)
    assert (again / "stage-0" / f"checkpoint-{step}").is_dir()
    run(load_recipe(recipe), again, resume=True, progress=False)
    whole, resumed = (load_file(folder / name / "model/model.safetensors") for name in ("whole", "again"))
    return whole, resumed
