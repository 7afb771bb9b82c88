"""Foreign weights from files and folders: tensors are read, and nothing in a file is ever executed."""

import json
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

PICKLES = (".bin", ".pt", ".pth")
SAFETENSORS = ".safetensors"
SUFFIXES = (*PICKLES, SAFETENSORS)

INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
USUAL = ("model.safetensors", "pytorch_model.bin")
"""What a folder is searched for, in this order, after DeepSpeed's layer files."""

LAYER_FILE = re.compile(r"layer_(\d+)-model_(\d+)-model_states\.pt")
"""DeepSpeed writes a file a layer, whose names are relative to `sequential.N.`."""

WRAPPERS = ("module", "state_dict", "model")
"""Keys under which training programs put the state dict."""


def read_weights(source: Path) -> dict[str, Tensor]:
    """Read a state dict from a file, or from a folder that holds one.

    A folder may hold DeepSpeed's layer files, an index with its shards, `model.safetensors`, `pytorch_model.bin`, or a
    single file of weights under any name.

    Args:
        source: the file or the folder.

    Returns:
        Tensors by their names in the file; layer files' as `sequential.N.NAME`.

    Raises:
        FileNotFoundError: when there is no such file, or the folder holds none or several.
        ValueError: when a file is of another kind, is damaged, or holds something else than tensors.
    """
    if not source.is_dir():
        return read_file(source)
    layer_files = sorted(path for path in source.iterdir() if LAYER_FILE.fullmatch(path.name))
    if layer_files:
        return _read_layers(layer_files)
    for name in INDEXES:
        if (source / name).is_file():
            return _read_shards(source / name)
    for name in USUAL:
        if (source / name).is_file():
            return read_file(source / name)
    found = sorted(path.name for path in source.iterdir() if path.suffix in SUFFIXES and path.is_file())
    if len(found) != 1:
        what = f"several files of weights ({', '.join(found[:3])}, ...)" if found else "no file of weights"
        raise FileNotFoundError(f"the folder {source} holds {what}: name one {', '.join(SUFFIXES)} file")
    return read_file(source / found[0])


def read_file(path: Path) -> dict[str, Tensor]:
    """Read a state dict from one file.

    Args:
        path: a safetensors file, or one that torch.save wrote.

    Returns:
        Tensors by their names.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when it is of another kind, is damaged, or holds something else than tensors.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no file of weights {path}: name a {', '.join(SUFFIXES)} file")
    if path.suffix not in SUFFIXES:
        raise ValueError(f"weights are read from {', '.join(SUFFIXES)} files, not from {path.name}")
    if path.suffix == SAFETENSORS:
        try:
            return load_file(path)
        except SafetensorError as error:
            raise ValueError(f"{path} is damaged ({error}): fetch it again") from None
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{path} holds more than tensors{_reason(error)}. It is refused, and nothing in it was run; where you "
            "trust it, save its state dict as safetensors"
        ) from None
    except (RuntimeError, EOFError, LookupError, ValueError, OSError) as error:  # by where the file breaks off
        if isinstance(error, OSError) and error.filename:  # the file cannot be opened
            raise
        raise ValueError(f"{path} is damaged or no file of weights: fetch it again") from None
    return _state_dict(loaded, path)


def _state_dict(loaded: Any, path: Path) -> dict[str, Tensor]:
    """The mapping of names to tensors, out of what a training program may have wrapped around it."""
    for key in WRAPPERS:
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
    if not isinstance(loaded, Mapping) or not loaded:
        raise ValueError(f"{path} must hold a state dict, names to tensors, and holds {type(loaded).__name__}")
    for name, value in loaded.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise ValueError(
                f"{path} must hold a state dict, names to tensors, but {name!r} is a {type(value).__name__}: "
                "save the model's state dict alone"
            )
    return dict(loaded)


def _read_layers(paths: list[Path]) -> dict[str, Tensor]:
    """Put the layer files of a pipeline run together."""
    tensors: dict[str, Tensor] = {}
    for path in paths:
        match = LAYER_FILE.fullmatch(path.name)
        assert match is not None
        if int(match[2]) != 0:
            raise ValueError(
                f"{path.name} is one part of a layer that was split over several devices: merge the model-parallel "
                "parts with the tool that wrote them"
            )
        for name, tensor in read_file(path).items():
            tensors[f"sequential.{int(match[1])}.{name}"] = tensor
    return tensors


def _read_shards(index: Path) -> dict[str, Tensor]:
    """Read every file that an index names."""
    try:
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        shards = sorted(set(places.values()))
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{index} is no index of shards (a weight_map is missing): fetch it again") from None
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise ValueError(f"{index} names {shard!r}, and a shard must lie in the index's own folder: mend the index")
        tensors.update(read_file(index.with_name(shard)))
    if missing := sorted(set(places) - set(tensors)):
        raise ValueError(f"{index} promises {missing[0]}, which no shard holds: fetch the shards again")
    return tensors


def _reason(error: Exception) -> str:
    """What the file holds that is no tensor, as far as torch names it."""
    named = re.search(r"GLOBAL:? (?:GLOBAL )?([\w.]+)", str(error))
    return f": it asks for {named[1]}" if named else ""


__all__ = ["PICKLES", "SAFETENSORS", "SUFFIXES", "read_file", "read_weights"]
