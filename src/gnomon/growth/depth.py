"""New layers that change nothing: blocks whose two sublayers put out zero, inserted anywhere in the stack.

    h_{l+1} = h_l + f(h_l),   f = 0 because its last weights (linear) or value tokens (Pattention) are zero

Zeroed OUTPUTS leave the gradients of these outputs alive, so the block learns from the first step on; zeroed norm
gains would not (they are zero together with everything behind them).
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from transformers import PreTrainedModel

from gnomon.growth.report import GrowthReport, measured
from gnomon.growth.sites import describe
from gnomon.models.backbone import GnomonBlock, build_block
from gnomon.models.sizes import TOKEN_FIELDS
from gnomon.nn.projections import Pattention


def insert_layers(
    model: PreTrainedModel,
    num_hidden_layers: int,
    *,
    positions: Sequence[int] | None = None,
    optimizer: Optimizer | None = None,
    seed: int | None = None,
    probe: Any = None,
) -> GrowthReport:
    """Insert blocks that compute the identity, in place.

    Args:
        model: a pre-norm gnomon model.
        num_hidden_layers: how many it is to have.
        positions: for each new block, the index in the OLD stack of the layer that it comes before (the old depth:
            on top); spread evenly if None.
        optimizer: the model's; the new blocks join its groups, with no state of their own.
        seed: of the new blocks' other weights; torch's global generator if None.
        probe: keyword arguments of a forward pass to measure on; random ids if None.

    Returns:
        The report.

    Raises:
        ValueError: for a depth that is not larger, or positions that do not exist.
    """
    stack = model.base_model.layers
    depth, added = len(stack), num_hidden_layers - len(stack)
    if added < 1:
        raise ValueError(f"the model has {depth} layers and cannot grow to {num_hidden_layers}; ask for more")
    places = sorted(positions) if positions is not None else [round((k + 1) * depth / added) for k in range(added)]
    if len(places) != added or not all(0 <= place <= depth for place in places):
        raise ValueError(f"positions need {added} indices from 0 to {depth}, one for each new layer; got {places}")
    devices = [] if model.device.type == "cpu" else [model.device]
    with torch.random.fork_rng(devices, enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        blocks = [identity_block(model, min(place, depth - 1)) for place in places]

    def change() -> list[dict[str, Any]]:
        layers, copied = list(stack), list(range(depth))
        for block, place in reversed(list(zip(blocks, places, strict=True))):
            layers.insert(place, block)
            copied.insert(place, min(place, depth - 1))
        config = model.config
        for field in TOKEN_FIELDS:
            counts = getattr(config, field)
            if isinstance(counts, list):
                setattr(config, field, [deepcopy(counts[layer]) for layer in copied])
        config.num_hidden_layers = num_hidden_layers
        for index, layer in enumerate(layers):
            layer.attention.layer_index = index
        model.base_model.layers = nn.ModuleList(layers)
        describe(model)
        if optimizer is not None:
            join(optimizer, stack[0], blocks)
        return [{"name": f"layer before {place}", "exact": True, "dead": 0} for place in places]

    return measured(model, change, init="identity", probe=probe)


def identity_block(model: PreTrainedModel, like: int) -> GnomonBlock:
    """A fresh block of a layer's sizes whose sublayers put out zero.

    Args:
        model: gives config, dtype and device.
        like: index of the layer whose sizes it takes.

    Returns:
        The block.
    """
    block = build_block(model.config, like)
    for last in (block.attention.output, getattr(block.feed_forward, "down", block.feed_forward)):
        nn.init.zeros_(last.value_tokens if isinstance(last, Pattention) else last.weight)
        if getattr(last, "bias", None) is not None:
            nn.init.zeros_(last.bias)
    return block.to(device=model.device, dtype=model.dtype).train(model.training)


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
