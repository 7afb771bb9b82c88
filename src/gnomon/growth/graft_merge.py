"""Merging: new neurons become rows and columns of a feed-forward's own weights, and the model plain again."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from gnomon.growth.graft import thaw
from gnomon.growth.graft_layers import CHILD, Part, detach, grafted_layers
from gnomon.growth.graft_targets import probe_for
from gnomon.growth.report import GrowthReport, measured

WIDTHS = (
    "intermediate_size",
    "n_inner",
    "d_ff",
    "ffn_dim",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "ffn_hidden_size",
    "ffn_hidden_dim",
    "hidden_dim",
)
"""What configurations call the width of a feed-forward. Whether it is that is then checked by building the model."""


def merge_graft(model: PreTrainedModel, *, probe: Mapping[str, Tensor] | None = None) -> GrowthReport:
    """Write a graft of neurons into the plain weights of a model, in place; its config then says how wide it is.

        W_1 <- [W_1; K],   b_1 <- [b_1; b_K],   W_2 <- [W_2, V]

    The result is a model of transformers like any other, which `save_pretrained` writes and which loads without this
    library. What trained before the graft trains again.

    Args:
        model: grafted with `num_neurons` alone, alike in all of its feed-forwards.
        probe: keyword arguments of a forward pass to measure on; random inputs if None.

    Returns:
        The report: how far the outputs moved by merging.

    Raises:
        ValueError: there is no graft, tokens stand beside linear layers, or the config has no word for the new widths;
            the model is then unchanged.
    """
    layers = dict(grafted_layers(model))
    if not layers:
        raise ValueError("the model has no graft to merge; call gnomon.graft or gnomon.load_graft first")
    for name, layer in layers.items():
        if layer.graft_part.role == "tokens":
            raise ValueError(
                f"the tokens beside {name} cannot be merged, since Pattention is no linear function of its input and "
                "no weight of the layer equals the sum; keep the graft as it is, or graft num_neurons, which merge"
            )
    changes = config_changes(model)

    def change() -> list[dict[str, Any]]:
        rows = []
        for layer in layers.values():
            part = layer.graft_part
            widen(layer, part)
            detach(layer)
            rows.append(
                {"name": part.name, "role": part.role, "tokens_after": part.num_tokens, "exact": True, "dead": 0}
            )
        thaw(model)
        for path, field, value in changes:
            setattr(_inner(model.config, path), field, value)
        return rows

    return measured(model, change, init="merged", probe=probe_for(model) if probe is None else probe)


def config_changes(model: PreTrainedModel) -> list[tuple[tuple[str, ...], str, int]]:
    """What has to change in a config, so that a model built from it has the shapes of the merged one.

    Args:
        model: grafted with neurons.

    Returns:
        For each field that changes: where its config stands, its name, its new value.

    Raises:
        ValueError: no change of `WIDTHS` gives these shapes.
    """
    config = copy.deepcopy(model.config)
    parts = [layer.graft_part for _, layer in grafted_layers(model)]
    wider = {part.in_features: part.in_features + part.num_tokens for part in parts if part.role == "read"}
    changed = []
    for path, inner in _configs(config):
        for field in WIDTHS:
            if not hasattr(inner, field):
                continue
            # GPT-2 leaves n_inner at None for 4 times the width; which model this is, the shapes below decide.
            old = getattr(inner, field)
            new = next(iter(wider.values())) if old is None else wider.get(old)
            if new is not None:
                setattr(inner, field, new)
                changed.append((path, field, new))
    wanted = _merged_shapes(model)
    with torch.device("meta"):
        built = {name: tuple(parameter.shape) for name, parameter in type(model)(config).named_parameters()}
    if built != wanted:
        said = ", ".join(f"{field} {value}" for _, field, value in changed) or "unchanged"
        wrong = next(name for name in {**wanted, **built} if built.get(name) != wanted.get(name))
        raise ValueError(
            f"the config of {type(model).__name__} cannot describe the merged model: {wrong} would have the shape "
            f"{wanted.get(wrong)}, and the config ({said}) gives {built.get(wrong)}; graft every "
            "feed-forward alike (targets='feed_forward'), or keep the graft as it is"
        )
    return changed


@torch.no_grad()
def widen(layer: nn.Module, part: Part) -> None:
    """Append a graft to its layer's own weights.

    Args:
        layer: grafted, `write` or `read`.
        part: its graft.
    """
    transposed = isinstance(layer, Conv1D)
    new = layer.graft.weight.T if transposed else layer.graft.weight
    axis = int((part.role == "write") == transposed)
    layer.weight.data = torch.cat((layer.weight, new.to(layer.weight.dtype)), dim=axis)
    layer.weight.grad = None
    if part.role == "write" and layer.bias is not None:
        layer.bias.data = torch.cat((layer.bias, layer.graft.bias.to(layer.bias.dtype)))
        layer.bias.grad = None
    sizes = {"write": ("out_features", "nf"), "read": ("in_features", "nx")}[part.role]
    size = sizes[transposed]
    setattr(layer, size, getattr(layer, size) + part.num_tokens)


def _merged_shapes(model: PreTrainedModel) -> dict[str, tuple[int, ...]]:
    """The shapes of a model's parameters as they will be after merging."""
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters() if f".{CHILD}." not in name}
    for name, layer in grafted_layers(model):
        part, weight = layer.graft_part, list(shapes[f"{name}.weight"])
        weight[int((part.role == "read") != isinstance(layer, Conv1D))] += part.num_tokens
        shapes[f"{name}.weight"] = tuple(weight)
        if part.role == "write" and layer.bias is not None:
            shapes[f"{name}.bias"] = (layer.bias.shape[0] + part.num_tokens,)
    return shapes


def _configs(config: PreTrainedConfig, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """A config and those inside it, each with its path."""
    yield path, config
    for name in config.sub_configs:
        if isinstance(inner := getattr(config, name, None), PreTrainedConfig):
            yield from _configs(inner, (*path, name))


def _inner(config: PreTrainedConfig, path: tuple[str, ...]) -> PreTrainedConfig:
    """The config that a path leads to."""
    for name in path:
        config = getattr(config, name)
    return config
