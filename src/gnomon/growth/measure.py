"""What each parameter token does on real inputs: the share of the scores it holds and the size of its contribution."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from gnomon.growth.sites import pattentions
from gnomon.nn.functional import SCORES
from gnomon.nn.projections import Pattention


@dataclass
class TokenStatistics:
    """Sums over the observed positions, one number a token, in float64.

    Args:
        normalized: of the part of the normalized sum of squares that a token holds (A_j^2 / ||A||^2, or its GELU's);
            it tells how the norm changes when the token goes. None for scores without an L2 norm.
        weight: of the squared weight S_j^2.
        positions: how many were observed.
    """

    normalized: Tensor | None
    weight: Tensor
    positions: int = 0


@torch.no_grad()
def observe(model: PreTrainedModel, batches: Iterable[Mapping[str, Tensor]]) -> dict[str, TokenStatistics]:
    """Run a model and collect what its tokens do.

    Args:
        model: any model of the library.
        batches: keyword arguments of forward passes.

    Returns:
        Statistics by the name of each Pattention.
    """
    found: dict[str, TokenStatistics] = {}

    def watch(name: str, module: Pattention) -> Any:
        def hook(_: Any, inputs: tuple[Tensor, ...]) -> None:
            scores = F.linear(inputs[0], module.key_tokens).flatten(0, -2).double()
            weights = SCORES[module.score](scores, module.score_scale, module.eps)
            rows = None
            if module.score in ("l2_norm_gelu", "gelu_l2_norm"):
                rows = (F.gelu(scores) if module.score == "gelu_l2_norm" else scores).square()
                rows = rows / rows.sum(-1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)
            sums = found.setdefault(
                name, TokenStatistics(None if rows is None else rows.new_zeros(rows.shape[-1]), 0.0)
            )
            if rows is not None:
                sums.normalized = sums.normalized + rows.sum(0)
            sums.weight = sums.weight + weights.square().sum(0)
            sums.positions += scores.shape[0]

        return module.register_forward_pre_hook(hook)

    hooks = [watch(name, module) for name, _, module in pattentions(model)]
    training = model.training
    model.eval()
    try:
        for batch in batches:
            model(**batch)
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return found
