"""`shrink`: the way back, dropping the parameter tokens that matter least."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from transformers import PreTrainedModel

from gnomon.growth.measure import TokenStatistics, observe
from gnomon.growth.optimizer import check_optimizer
from gnomon.growth.report import GrowthReport, measured
from gnomon.growth.sites import PARTS, Site, describe, put, sites
from gnomon.growth.tokens import NewTokens

IMPORTANCES = ("contribution", "last")


def shrink(
    model: PreTrainedModel,
    *,
    importance: str = "contribution",
    layers: Iterable[int] | None = None,
    optimizer: Optimizer | None = None,
    probe: Mapping[str, Tensor] | None = None,
    **sizes: Any,
) -> GrowthReport:
    """Drop parameter tokens, in place, and measure what that changed.

        importance_j = sqrt(E[S_j^2]) ||V_j||,     tau' = tau sqrt(E[share of the sum of squares that is kept])

    The score is the root mean square of what a token adds to the output, S_j V_j: keys alone say nothing, since an L2
    score is blind to their common scale, and values alone do not know how often their token is used. tau follows the
    kept share so that the kept tokens' normalized scores stay where they were; tokens with zero keys have no share,
    so that dropping what `init="exact"` appended gives the model back bit for bit.

    Args:
        model: a gnomon model with parameter tokens.
        importance: `contribution`, or `last` to drop the last ones.
        layers: indices of the layers to shrink; all if None.
        optimizer: the model's; its state is carried along.
        probe: keyword arguments of a forward pass to measure on; random ids if None. Give real data.
        sizes: as for `grow`: the counts after shrinking.

    Returns:
        The report; `exact` only where nothing was lost.

    Raises:
        ValueError: with the rule, the value and the remedy; the model is then unchanged.
    """
    if importance not in IMPORTANCES:
        raise ValueError(f"importance must be one of {', '.join(IMPORTANCES)}; got {importance!r}")
    named = sites(model, sizes, layers, "shrink")
    for site in named:
        if site.num_tokens > site.module.num_tokens:
            raise ValueError(
                f"{site.name} has {site.module.num_tokens} tokens and cannot shrink to {site.num_tokens}; use grow"
            )
    shrinking = [site for site in named if site.num_tokens != site.module.num_tokens]
    if not shrinking:
        raise ValueError(f"nothing shrinks: the model already has {sizes}; ask for smaller counts")
    if optimizer is not None:
        held = [(f"{site.name}.{part}", getattr(site.module, part)) for site in shrinking for part in PARTS]
        check_optimizer(optimizer, model, held)
    batch = model.random_inputs() if probe is None else probe
    statistics = observe(model, [batch])
    plans = [_plan(site, statistics[site.name], importance) for site in shrinking]

    def change() -> list[dict[str, Any]]:
        rows = [put(site, plan, optimizer) for site, plan in zip(shrinking, plans, strict=True)]
        describe(model)
        return rows

    return measured(model, change, init=f"shrink by {importance}", probe=batch)


def _plan(site: Site, statistics: TokenStatistics, importance: str) -> NewTokens:
    """Which tokens stay, in their old order, and the tau that keeps their scores where they were."""
    module, count = site.module, site.module.num_tokens
    keys, values = module.key_tokens.detach(), module.value_tokens.detach()
    if importance == "last":
        kept = torch.arange(site.num_tokens, device=keys.device)
    else:
        contribution = statistics.weight.sqrt() * values.double().norm(dim=1)
        kept = contribution.topk(site.num_tokens).indices.sort().values
    dropped = torch.ones(count, dtype=torch.bool, device=keys.device).scatter(0, kept, False)
    lost = keys[dropped].any() and values[dropped].any()
    tau = None if module.score_scale is None else float(module.score_scale)
    if tau is not None and statistics.normalized is not None:
        tau *= (1.0 - float(statistics.normalized[dropped].sum()) / statistics.positions) ** 0.5
    elif tau is not None:  # softmax: the weights of the kept tokens keep their sum's mean
        tau *= site.num_tokens / count
        lost = True
    return NewTokens(keys[kept], values[kept], tau, not bool(lost), kept.cpu())
