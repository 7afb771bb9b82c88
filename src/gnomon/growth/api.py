"""`grow`: one call that makes a model larger, in place."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from transformers import PreTrainedModel

from gnomon.growth.optimizer import check_optimizer, grow_parameter
from gnomon.growth.report import GrowthReport, measured
from gnomon.growth.sites import Site, describe, sites
from gnomon.growth.tokens import NewTokens, check_growth, new_tokens

PARTS = ("key_tokens", "value_tokens")


def grow(
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
    """Make a model larger, in place, and measure what that changed.

        K = [K_old; K_new],   V = [V_old; V_new]

    Source: TF eq. 11-12; the cases of exactness are in `gnomon.growth.tokens`. Parameters keep their identity, so
    that optimisers, schedulers and hooks stay valid; the config describes the result.

    Differs: the reference grows when it loads a checkpoint, lets tau follow the count and drops the optimiser
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


def put(site: Site, plan: NewTokens, optimizer: Optimizer | None, drop_state: bool = False) -> dict[str, Any]:
    """Put new tokens in place and say what changed.

    Args:
        site: where.
        plan: the tokens.
        optimizer: whose state follows.
        drop_state: forget the optimiser's state of these tokens.

    Returns:
        A row of the report.
    """
    module, before = site.module, site.module.num_tokens
    tau = None if module.score_scale is None else float(module.score_scale)
    for part, data, moment in zip(PARTS, (plan.keys, plan.values), (plan.key_moment, 1.0), strict=True):
        parameter = getattr(module, part)
        grow_parameter(parameter, data, plan.source, optimizer=optimizer, moment=moment, drop_state=drop_state)
    if module.score_scale is not None:
        module.score_scale.data.fill_(plan.score_scale)
    dead = ~(module.key_tokens.any(dim=1) | module.value_tokens.any(dim=1))
    return {
        "name": site.name,
        "tokens_before": before,
        "tokens_after": module.num_tokens,
        "score_scale_before": tau,
        "score_scale_after": None if module.score_scale is None else float(module.score_scale),
        "exact": plan.is_exact,
        "dead": int(dead.sum()) * (module.in_features + module.out_features),
    }
