"""`grow`: one call that makes a model larger, in place: more parameter tokens, more layers, or wider."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from transformers import PreTrainedModel

from gnomon.growth.depth import DEPTHS, insert_layers
from gnomon.growth.optimizer import check_optimizer
from gnomon.growth.report import GrowthReport, count, measured
from gnomon.growth.sites import PARTS, TOKEN_SIZES, check_single_stack, describe, put, refuse_wrapper, sites, towers
from gnomon.growth.tokens import check_growth, new_tokens
from gnomon.growth.width import grow_width
from gnomon.growth.widths import WIDTHS


def grow(
    model: PreTrainedModel,
    *,
    init: str = "exact",
    score_scale: str | None = None,
    layers: Sequence[int] | None = None,
    optimizer: Optimizer | None = None,
    seed: int | None = None,
    offset_std: float = 1.0,
    probe: Mapping[str, Tensor] | None = None,
    tower: str | None = None,
    **sizes: Any,
) -> GrowthReport:
    """Make a model larger, in place, and measure what that changed.

    Parameters keep their identity, so that optimizers, schedulers and hooks stay valid; the config describes the
    result. Tokens, layers and widths grow in calls of their own.

    Args:
        model: a gnomon model.
        init: of tokens `exact`, `replicate`, `random` or `reference` (see `grow_tokens`); of widths `exact`,
            `net2net` or `hypercloning` (see `grow_width`); of layers `exact` alone.
        score_scale: of tokens `hold` or `count`; None for the init's own rule.
        layers: of tokens, the layers that grow; of new layers, the old ones that they come before.
        optimizer: the model's; its state is carried along.
        seed: of the new parameters; torch's global generator if None.
        offset_std: size of the offsets that tell copies apart, as a multiple of the standard deviation of the values
            (`replicate`) or weights (`net2net`, `hypercloning`).
        probe: keyword arguments of a forward pass to measure on; random ids if None.
        tower: of a model of two towers, `text` or `vision`: the one that grows. Its own outputs are measured.
        sizes: config fields with their values after growth: `num_attention_tokens`, `num_output_tokens`,
            `num_feed_forward_tokens`; or `num_hidden_layers` (of a pair `encoder_layers`, `decoder_layers`); or
            `intermediate_size`, `num_attention_heads`, `num_key_value_heads`, `head_dim`, `hidden_size`.

    Returns:
        The report.

    Raises:
        ValueError: with the rule, the value and the remedy; the model is then unchanged.
    """
    refuse_wrapper(model, "grow")
    common = {"optimizer": optimizer, "seed": seed, "probe": probe}
    if tower is not None:
        options = {"init": init, "score_scale": score_scale, "layers": layers, "offset_std": offset_std}
        return _grow_tower(model, tower, **options, **common, **sizes)
    check_single_stack(model, "grow")
    kinds = {
        "tokens": set(sizes) & set(TOKEN_SIZES),
        "layers": set(sizes) & set(DEPTHS),
        "widths": set(sizes) & set(WIDTHS),
    }
    if unknown := sorted(set(sizes) - set().union(*kinds.values())):
        known = (*TOKEN_SIZES, *DEPTHS, *WIDTHS)
        raise ValueError(f"{unknown[0]} is no size that grows; there are {', '.join(known)}")
    if sum(map(bool, kinds.values())) > 1:
        raise ValueError(f"tokens, layers and widths grow in calls of their own; got {', '.join(sizes)} in one")
    if not (kinds["layers"] or kinds["widths"]):
        return grow_tokens(
            model, init=init, score_scale=score_scale, layers=layers, offset_std=offset_std, **common, **sizes
        )
    if score_scale is not None:
        raise ValueError(f"score_scale belongs to parameter tokens; leave it unset for {', '.join(sizes)}")
    if kinds["layers"]:
        if init != "exact":
            raise ValueError(f"new layers start as the identity, init exact; got {init!r}")
        return insert_layers(model, positions=layers, **common, **sizes)
    if layers is not None:
        raise ValueError(f"{', '.join(sizes)} grows in all layers alike; leave layers unset, got {list(layers)}")
    return grow_width(model, method=init, offset_std=offset_std, **common, **sizes)


def _grow_tower(model: PreTrainedModel, tower: str, *, probe: Mapping[str, Tensor] | None, **options: Any) -> Any:
    """Grow one tower of a model, by the inputs of the probe that are its own."""
    known = towers(model)
    if tower not in known:
        rule = f"tower must be {' or '.join(known)}" if known else f"a {type(model).__name__} is no model of two towers"
        raise ValueError(f"{rule}; got tower {tower!r}" + ("" if known else ": leave it unset"))
    part, before = known[tower], count(model)
    own = None if probe is None else {name: probe[name] for name in probe if name in part.random_inputs()}
    report = grow(part, probe=own, **options)
    parts = [{**row, "name": f"{tower}: {row['name']}"} for row in report.parts]
    return replace(report, parameters_before=before, parameters_after=count(model), parts=parts)


def grow_tokens(
    model: PreTrainedModel,
    *,
    init: str = "exact",
    score_scale: str | None = None,
    layers: Iterable[int] | None = None,
    optimizer: Optimizer | None = None,
    seed: int | None = None,
    offset_std: float = 1.0,
    probe: Mapping[str, Tensor] | None = None,
    **sizes: Any,
) -> GrowthReport:
    """Append parameter tokens, in place, and measure what that changed.

        K = [K_old; K_new],   V = [V_old; V_new]

    Source: TF eq. 11-12; the cases of exactness are in `gnomon.growth.tokens`.

    Differs: the reference grows when it loads a checkpoint, lets tau follow the count and drops the optimizer
    (here: `init="reference"`).

    Args:
        model: a gnomon model with parameter tokens.
        init: `exact`, `replicate`, `random` or `reference`.
        score_scale: `hold` or `count`; None for the init's own rule.
        layers: indices of the layers to grow; all if None.
        optimizer: the model's; its state is carried along (`reference` drops it).
        seed: of the new tokens; torch's global generator if None.
        offset_std: size of `replicate`'s offsets, as a multiple of the values' standard deviation.
        probe: keyword arguments of a forward pass to measure on; random ids if None.
        sizes: `num_attention_tokens` (a count or {query, key, value}), `num_output_tokens`,
            `num_feed_forward_tokens`: the counts after growth.

    Returns:
        The report.

    Raises:
        ValueError: with the rule, the value and the remedy; the model is then unchanged.
    """
    named = sites(model, sizes, layers, "grow")
    for site in named:
        check_growth(init, score_scale, site.module.score, site.module.num_tokens, site.num_tokens, site.name)
    growing = [site for site in named if site.num_tokens != site.module.num_tokens]
    if not growing:
        raise ValueError(f"nothing grows: the model already has {sizes}; ask for larger counts")
    if optimizer is not None:
        held = [(f"{site.name}.{part}", getattr(site.module, part)) for site in growing for part in PARTS]
        check_optimizer(optimizer, model, held)
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    options = {"init": init, "score_scale": score_scale, "offset_std": offset_std, "generator": generator}
    plans = [new_tokens(site.module, site.num_tokens, **options) for site in growing]

    def change() -> list[dict[str, Any]]:
        rows = [put(site, plan, optimizer, init == "reference") for site, plan in zip(growing, plans, strict=True)]
        describe(model)
        return rows

    return measured(model, change, init=init, probe=probe)
