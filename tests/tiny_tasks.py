"""Recipes of every task of text that train in a second, on a few rows written to a file."""

import json
from pathlib import Path
from typing import Any

ENCODER = {
    "is_decoder": False,
    "projection": "linear",
    "norm_placement": "sub",
    "initialization": "magneto",
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
PAIR = {name: value for name, value in ENCODER.items() if name not in ("is_decoder", "num_hidden_layers")} | {
    "encoder_layers": 1,
    "decoder_layers": 1,
}
COLORS, SHAPES = ("red", "green", "blue", "white"), ("ball", "box", "ring", "star")
GERMAN = {"red": "rot", "green": "gruen", "blue": "blau", "white": "weiss", "a": "ein"}
GERMAN |= {"ball": "Ball", "box": "Kasten", "ring": "Ring", "star": "Stern", "big": "gross", "small": "klein"}


def rows() -> list[dict[str, str]]:
    """Thirty-two sentences, their translation word by word, and one of two labels."""
    written = []
    for size in ("big", "small"):
        for color in COLORS:
            for shape in SHAPES:
                words = ["a", size, color, shape]
                translated = " ".join(GERMAN[word] for word in words)
                written.append({"text": " ".join(words), "de": translated, "label": size})
    return written


def write_rows(folder: Path, more: list[dict[str, Any]] | None = None) -> Path:
    """The rows, and any others, as JSON lines."""
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in [*rows(), *(more or [])]), encoding="utf-8")
    return file


def task_recipe(task: str, file: Path, **training: Any) -> dict[str, Any]:
    """A recipe of a task over that file; `training` changes its only stage."""
    data: dict[str, Any] = {"source": str(file), "sequence_length": 24, "validation_percent": 20}
    if task == "translation":
        data |= {"source_column": "text", "target_column": "de"}
    stage = {"max_steps": 4, "learning_rate": 0.01, "batch_size": 4, "warmup_steps": 1, "log_every": 1}
    return {
        "task": task,
        "model": PAIR
        if task == "translation"
        else ENCODER
        if task != "language-modeling"
        else {**ENCODER, "is_decoder": True},
        "tokenizer": {"kind": "byte"},
        "data": data,
        **({"generation": {"num_beams": 2, "max_new_tokens": 20}} if task == "translation" else {}),
        "stages": [{"training": {**stage, **training}}],
    }
