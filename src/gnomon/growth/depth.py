"""New layers that change nothing: blocks whose sublayers put out zero, inserted anywhere in a stack.

    h_{l+1} = h_l + f(h_l),   f = 0 because its last weights (linear) or value tokens (Pattention) are zero

Zeroed OUTPUTS leave the gradients of these outputs alive, so the block learns from the first step on; zeroed norm
gains before a sublayer would not (they are zero together with everything behind them). Where a norm with a gain stands
after the sublayer, that gain is zeroed instead: it is then the output, and what it norms keeps its scale.

After a post-norm placement a block that adds nothing still norms its input once more, so there the growth is not exact,
and the report says so. DeepNorm's alpha is held at its old value, as tau is.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from transformers import PreTrainedModel

from gnomon.growth.report import GrowthReport, measured
from gnomon.growth.sites import describe, stacks
from gnomon.models.backbone import GnomonBlock, GnomonModel
from gnomon.models.blocks import build_block, residual_scale
from gnomon.models.sizes import TOKEN_FIELDS, side_layers
from gnomon.nn.blocks import Residual
from gnomon.nn.multiway import MultiwayPattention, copies
from gnomon.nn.placements import PLACEMENTS
from gnomon.nn.projections import Pattention

DEPTHS = ("num_hidden_layers", "encoder_layers", "decoder_layers")
"""Config fields that count layers: the first of a single stack, the others of an encoder-decoder."""


def insert_layers(
    model: PreTrainedModel,
    *,
    positions: Sequence[int] | None = None,
    optimizer: Optimizer | None = None,
    seed: int | None = None,
    probe: Any = None,
    **depths: int,
) -> GrowthReport:
    """Insert blocks that compute the identity, in place.

    Args:
        model: a gnomon model.
        positions: for each new block, the index in the OLD stack of the layer that it comes before (the old depth:
            on top); spread evenly if None. For one stack at a time.
        optimizer: the model's; the new blocks join its groups, with no state of their own.
        seed: of the new blocks' other weights; torch's global generator if None.
        probe: keyword arguments of a forward pass to measure on; random ids if None.
        depths: `num_hidden_layers`, or `encoder_layers` and `decoder_layers`: how many there are to be.

    Returns:
        The report; under a post-norm placement it is not exact.

    Raises:
        ValueError: for a depth that is not larger, a field of another topology, or positions that do not exist.
    """
    config, grown = model.config, _stacks_by_depth(model, depths)
    if positions is not None and len(grown) > 1:
        raise ValueError(f"layers name places in one stack; got {', '.join(depths)}: grow them in calls of their own")
    places = {name: _places(len(stack.layers), depths[name], positions) for name, stack in grown.items()}
    devices = [] if model.device.type == "cpu" else [model.device]
    with torch.random.fork_rng(devices, enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        blocks = {
            name: [identity_block(model, stack, min(place, len(stack.layers) - 1)) for place in places[name]]
            for name, stack in grown.items()
        }

    def change() -> list[dict[str, Any]]:
        if PLACEMENTS[config.norm_placement].scales_residual:
            sides = [residual_scale(config, is_decoder) for is_decoder in (False, True)]
            config.residual_scale = sides if config.is_encoder_decoder else sides[stacks(model)[0].is_causal]
        copied, first = [], 0
        for stack in stacks(model):
            name = next((name for name, other in grown.items() if other is stack), None)
            old = len(stack.layers)
            copied += [first + layer for layer in _insert(stack, places.get(name, []), blocks.get(name, []), optimizer)]
            first += old
        _write_depths(model, depths, copied)
        is_exact = not PLACEMENTS[config.norm_placement].outer
        return [
            {
                "name": f"layer before {place}" + ("" if name == DEPTHS[0] else f" ({name})"),
                "exact": is_exact,
                "dead": 0,
            }
            for name in grown
            for place in places[name]
        ]

    return measured(model, change, init="identity", probe=probe)


def _stacks_by_depth(model: PreTrainedModel, depths: dict[str, int]) -> dict[str, GnomonModel]:
    """The stack that each field counts the layers of."""
    found = stacks(model)
    names = DEPTHS[1:] if len(found) > 1 else DEPTHS[:1]
    for name, depth in depths.items():
        if name not in names:
            raise ValueError(f"{name} is no depth of this model; it has {' and '.join(names)}")
        present = len(found[names.index(name)].layers)
        if depth <= present:
            raise ValueError(f"the model has {present} layers and cannot grow to {depth}; ask for more")
    return {name: found[names.index(name)] for name in names if name in depths}


def _places(depth: int, wanted: int, positions: Sequence[int] | None) -> list[int]:
    """Which old layer each new one comes before."""
    added = wanted - depth
    places = sorted(positions) if positions is not None else [round((k + 1) * depth / added) for k in range(added)]
    if len(places) != added or not all(0 <= place <= depth for place in places):
        raise ValueError(f"positions need {added} indices from 0 to {depth}, one for each new layer; got {places}")
    return places


def _insert(
    stack: GnomonModel, places: Sequence[int], blocks: Sequence[GnomonBlock], optimizer: Optimizer | None
) -> list[int]:
    """Put blocks into a stack; for each layer after that, the old one that it is or takes its sizes from."""
    layers, depth = list(stack.layers), len(stack.layers)
    first, copied = layers[0], list(range(depth))
    for block, place in reversed(list(zip(blocks, places, strict=True))):
        layers.insert(place, block)
        copied.insert(place, min(place, depth - 1))
    for index, layer in enumerate(layers):
        layer.attention.layer_index = index
        if layer.cross_attention is not None:
            layer.cross_attention.layer_index = index
    stack.layers = nn.ModuleList(layers)
    if optimizer is not None and blocks:
        join(optimizer, first, blocks)
    return copied


def _write_depths(model: PreTrainedModel, depths: dict[str, int], copied: Sequence[int]) -> None:
    """Let the config describe the model after growth."""
    config = model.config
    for field in TOKEN_FIELDS:
        counts = getattr(config, field)
        if isinstance(counts, list):
            setattr(config, field, [deepcopy(counts[layer]) for layer in copied])
    for name, depth in depths.items():
        setattr(config, name, depth)
    if config.is_encoder_decoder:
        config.num_hidden_layers = config.encoder_layers + config.decoder_layers
    describe(model)


def identity_block(model: PreTrainedModel, stack: GnomonModel, like: int) -> GnomonBlock:
    """A fresh block of a layer's sizes whose sublayers put out zero.

    Args:
        model: gives config, dtype and device.
        stack: where it is to stand.
        like: index in the stack of the layer whose sizes it takes.

    Returns:
        The block.
    """
    encoder_layers, _ = side_layers(model.config.to_dict())
    block = build_block(model.config, like + encoder_layers if stack.is_causal else like)
    silence(block.attention_residual, block.attention.output)
    for feed_forward in copies(block.feed_forward):
        silence(block.feed_forward_residual, getattr(feed_forward, "down", feed_forward))
    if block.cross_attention is not None and block.cross_attention_residual is not None:
        silence(block.cross_attention_residual, block.cross_attention.output)
    return block.to(device=model.device, dtype=model.dtype).train(model.training)


def silence(residual: Residual, last: nn.Module) -> None:
    """Let a sublayer put out zero, by the norm after it where that has a gain, else by its last weights.

    Args:
        residual: how it joins the stream.
        last: its last layer; of several modalities every copy, or shared and own tokens.
    """
    norms = [norm for norm in copies(residual.after) if getattr(norm, "weight", None) is not None]
    for layer in norms or copies(last):
        if isinstance(layer, MultiwayPattention):
            nn.init.zeros_(layer.value_tokens)
            layer = layer.shared
        nn.init.zeros_(layer.value_tokens if isinstance(layer, Pattention) else layer.weight)
        if getattr(layer, "bias", None) is not None:
            nn.init.zeros_(layer.bias)


def join(optimizer: Optimizer, like: nn.Module, blocks: Sequence[nn.Module]) -> None:
    """Put new blocks' parameters into the groups that hold the same parameters of an old block.

    Args:
        optimizer: of the model.
        like: an old block.
        blocks: the new ones.
    """
    place = {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}
    groups = {name: place.get(id(parameter)) for name, parameter in like.named_parameters()}
    for block in blocks:
        for name, parameter in block.named_parameters():
            if groups.get(name) is not None:
                groups[name]["params"].append(parameter)
