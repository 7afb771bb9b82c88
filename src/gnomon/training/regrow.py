"""Growing and shrinking checkpoints on disk: weights, config, tokenizer and optimizer state together."""

import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from gnomon.growth.report import GrowthReport, gap, probe_outputs, tolerance
from gnomon.training.checkpoints import publish
from gnomon.training.growth import OPTIMIZER_FILE, load_optimizer
from gnomon.training.preparation import load_checkpoint
from gnomon.training.records import read_json, write_json

REPORT_FILE = "growth.json"
COPIED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "preprocessor_config.json",
)

Change = Callable[[PreTrainedModel, torch.optim.Optimizer | None], GrowthReport]


def change_checkpoint(source: Path, output: Path, change: Change) -> tuple[GrowthReport, dict[str, Any]]:
    """Change a checkpoint's model and write the result whole, or nothing.

    The change is made and measured in float64, where rounding cannot hide anything, and measured once more in the
    dtype of the source, which is the one that is written.

    Args:
        source: a checkpoint's folder; if it holds an optimizer's state, that goes along.
        output: the new folder.
        change: grows or shrinks a model with its optimizer.

    Returns:
        The float64 report, and the same with what was measured in the stored dtype; `exact` needs both.

    Raises:
        FileNotFoundError: The source is no checkpoint.
        ValueError: The output lies in the source, the change is refused, or the weights or the optimizer do not fit.
    """
    if source.resolve() in output.resolve().parents:
        raise ValueError(f"the output {output} lies inside the checkpoint {source}: name a folder beside it")
    model = load_checkpoint(source)
    named = str(read_json(source / "config.json").get("dtype") or "float32")
    stored = getattr(torch, named)
    optimizer = load_optimizer(source, model.double())
    batch = model.random_inputs()
    before = probe_outputs(deepcopy(model).to(stored), batch)
    report = change(model, optimizer)
    model.to(stored)
    relative, largest = gap(before, probe_outputs(model, batch))
    summary = {
        **report.to_dict(),
        "exact": report.exact and relative <= tolerance(stored),
        "stored_dtype": named,
        "gap_relative_stored": relative,
        "gap_max_stored": largest,
    }
    with publish(output) as folder:
        model.save_pretrained(folder)
        for name in COPIED:
            if (source / name).is_file():
                shutil.copy(source / name, folder)
        if optimizer is not None:
            torch.save(narrowed(optimizer.state_dict()), folder / OPTIMIZER_FILE)
        write_json(folder / REPORT_FILE, summary)
    return report, summary


def narrowed(state: dict[str, Any]) -> dict[str, Any]:
    """An optimizer's state dict with its moments in float32.

    Args:
        state: from `optimizer.state_dict()`.

    Returns:
        The same, float64 tensors narrowed.
    """

    def narrow(value: Any) -> Any:
        return value.float() if isinstance(value, torch.Tensor) and value.dtype == torch.float64 else value

    moments = {index: {key: narrow(value) for key, value in row.items()} for index, row in state["state"].items()}
    return {**state, "state": moments}
