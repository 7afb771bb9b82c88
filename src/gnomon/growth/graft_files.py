"""A graft on disk: a small folder beside the base model's, of safetensors and JSON, and nothing that is executed."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from gnomon.growth.graft import check_model, check_trainable, freeze
from gnomon.growth.graft_layers import CHILD, LAYERS, Part, attach, grafted_layers, widths

WEIGHTS_FILE = "graft.safetensors"
CONFIG_FILE = "graft.json"
FORMAT = "gnomon-graft-1"


@dataclass(frozen=True)
class GraftLoading:
    """What became of the tensors of a graft.

    Args:
        matched: loaded.
        missing: asked for by the graft's description, with a place in the model, and not in the file.
        unexpected: in the file, and without a place of their shape in the model.
    """

    matched: list[str]
    missing: list[str]
    unexpected: list[str]

    def __str__(self) -> str:
        """The counts."""
        return f"matched {len(self.matched)}, missing {len(self.missing)}, unexpected {len(self.unexpected)}"


def save_graft(model: PreTrainedModel, folder: str | os.PathLike[str]) -> Path:
    """Write a model's graft, and nothing of its base, into a new folder: whole, or not at all.

    Args:
        model: grafted.
        folder: where to; it must not exist.

    Returns:
        The folder.

    Raises:
        FileExistsError: there is something of that name.
        ValueError: the model has no graft.
    """
    target = Path(folder)
    if os.path.lexists(target):
        raise FileExistsError(f"the output {target} exists: remove it, or name another folder")
    with _staged(target) as partial:
        write_graft(model, partial)
    return target


def write_graft(model: PreTrainedModel, folder: Path) -> None:
    """Write a graft's two files into a folder that is there.

    Args:
        model: grafted.
        folder: that gets the files.

    Raises:
        ValueError: the model has no graft.
    """
    layers = list(grafted_layers(model))
    if not layers:
        raise ValueError("the model has no graft to save; call gnomon.graft first")
    parts = [layer.graft_part for _, layer in layers]
    state = {
        f"{part.name}.{CHILD}.{name}": tensor.detach().cpu().contiguous()
        for part, (_, layer) in zip(parts, layers, strict=True)
        for name, tensor in layer.graft.state_dict().items()
    }
    description = {
        "format": FORMAT,
        "base": {
            "architecture": type(model).__name__,
            "model_type": model.config.model_type,
            "name_or_path": model.config.name_or_path,
        },
        "parts": [part.to_dict() for part in parts],
    }
    save_file(state, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    (folder / CONFIG_FILE).write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")


def load_graft(
    model: PreTrainedModel, folder: str | os.PathLike[str], *, strict: bool = True, trainable: str = "tokens"
) -> GraftLoading:
    """Put a saved graft onto its base model, in place.

    Args:
        model: the base, or another model with layers of the same names and widths.
        folder: that `save_graft` wrote.
        strict: refuse a graft of which not every tensor has its place. Otherwise what fits is loaded, the layers of
            one feed-forward together or not at all, and the rest is reported.
        trainable: `tokens` freezes everything else, `all` nothing.

    Returns:
        The names that matched, that were missing, and that were unexpected.

    Raises:
        FileNotFoundError: the folder holds no graft.
        TypeError: this is no model of transformers.
        ValueError: with the counts, if the graft is of another model; or if the files are damaged. The model is then
            unchanged.
    """
    check_model(model)
    check_trainable(trainable)
    base, parts, state = read_graft(Path(folder))
    layers = dict(model.named_modules())
    whole, loading = _compare(parts, layers, state)
    if not loading.matched or (strict and (loading.missing or loading.unexpected)):
        wrong = next(iter((*loading.unexpected, *loading.missing)), None)
        raise ValueError(
            f"the graft {folder} was made for {base['architecture']} ({base['name_or_path']}) and does "
            f"not fit this {type(model).__name__}: {loading}{f', such as {wrong}' if wrong else ''}; "
            "load it onto its own base"
        )
    for part in whole:
        graft = part.build().to(layers[part.name].weight.dtype)
        graft.load_state_dict({name: state[f"{part.name}.{CHILD}.{name}"] for name in graft.state_dict()})
        attach(layers[part.name], part, graft)
    freeze(model, trainable)
    return loading


def read_graft(folder: Path) -> tuple[dict[str, Any], list[Part], dict[str, Tensor]]:
    """Read a graft's two files.

    Args:
        folder: that `save_graft` wrote.

    Returns:
        What is known of the base, the parts, and the tensors by name.

    Raises:
        FileNotFoundError: one of the files is missing.
        ValueError: one of them is damaged, or of another format.
    """
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder} holds no {name}: name a folder that gnomon graft or save_graft wrote")
    try:
        description = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        state = load_file(folder / WEIGHTS_FILE)
    except (json.JSONDecodeError, UnicodeDecodeError, SafetensorError) as error:
        raise ValueError(f"the graft {folder} is damaged ({error}): take another copy") from error
    found = description.get("format") if isinstance(description, dict) else None
    if found != FORMAT:
        raise ValueError(f"{folder / CONFIG_FILE} must have the format {FORMAT!r}; got {found!r}")
    try:
        base = {key: str(description["base"][key] or "unnamed") for key in ("architecture", "name_or_path")}
        return base, [Part(**entry) for entry in description["parts"]], state
    except (KeyError, TypeError) as error:
        raise ValueError(f"{folder / CONFIG_FILE} is damaged ({error}): take another copy") from error


def _compare(parts: list[Part], layers: dict[str, Any], state: dict[str, Tensor]) -> tuple[list[Part], GraftLoading]:
    """The parts that can be attached whole, and the names of all tensors by what becomes of them."""
    missing: list[str] = []
    broken: set[str] = set()
    for part in parts:
        layer = layers.get(part.name)
        if not isinstance(layer, LAYERS) or widths(layer) != (part.in_features, part.out_features):
            broken.add(part.group or part.name)
            continue
        absent = [name for name in part.tensors() if name not in state]
        missing += absent
        if absent or any(tuple(state[name].shape) != shape for name, shape in part.tensors().items()):
            broken.add(part.group or part.name)
    whole = [part for part in parts if (part.group or part.name) not in broken]
    matched = [name for part in whole for name in part.tensors()]
    return whole, GraftLoading(matched, sorted(missing), sorted(set(state) - set(matched)))


@contextmanager
def _staged(target: Path) -> Iterator[Path]:
    """A folder to write into, which takes its place when the block ends well."""
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
