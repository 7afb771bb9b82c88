"""New parameter tokens for one Pattention: what they start as, and what becomes of the score scale tau.

Whether a growth is exact follows from the score function, the new tokens and tau together:

| init | new keys | new values | tau | exact for |
|---|---|---|---|---|
| `exact` | 0 | random | held | both L2 scores, gelu |
| `replicate` | every key k times | V / k + offsets that sum to zero | times sqrt(k), softmax times k | every score |
| `random` | random | random | sqrt(new n) | none |
| `reference` | as `random`, the optimizer's state dropped | | | none |

Source: TF eq. 11-12 and 26-31 (zero keys); replication is a whole-factor Net2Net split of each token, for which the
norm of a score row grows by exactly sqrt(k).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gnomon.nn.functional import default_score_scale
from gnomon.nn.projections import Pattention

INITS = ("exact", "replicate", "random", "reference")
SCORE_SCALES = ("hold", "count")
OWN_SCORE_SCALE = {"exact": "hold", "random": "count", "reference": "count"}
"""What becomes of tau where the caller does not say."""


@dataclass(frozen=True)
class NewTokens:
    """What a growth does to one Pattention.

    Args:
        keys: all key tokens after growth.
        values: all value tokens after growth.
        score_scale: tau after growth; None for the score `gelu`.
        is_exact: whether the function is unchanged by construction.
        source: for each row after growth, the row it was copied from, -1 where it is new.
        key_moment: factor on the optimizer's first moment of copied keys.
    """

    keys: Tensor
    values: Tensor
    score_scale: float | None
    is_exact: bool
    source: Tensor
    key_moment: float = 1.0


def check_growth(init: str, score_scale: str | None, score: str, before: int, after: int, name: str) -> None:
    """Refuse a growth that cannot be done as it is asked for.

    Args:
        init: one of `INITS`.
        score_scale: one of `SCORE_SCALES`, or None for the init's own rule.
        score: of the Pattention.
        before: its token count.
        after: the count asked for.
        name: of the Pattention, for the message.

    Raises:
        ValueError: with the rule, the values and the remedy.
    """
    if init not in INITS:
        raise ValueError(f"init must be one of {', '.join(INITS)}; got {init!r}")
    if score_scale is not None and score_scale not in SCORE_SCALES:
        raise ValueError(f"score_scale must be one of {', '.join(SCORE_SCALES)}; got {score_scale!r}")
    if after < before:
        raise ValueError(f"{name} has {before} tokens and cannot grow to {after}; use shrink to drop tokens")
    if init == "exact" and score == "softmax":
        raise ValueError(
            f"{name} has the score softmax, where a zero key still takes its share of every row, so init exact cannot "
            "leave the function as it is; use init replicate"
        )
    if init == "replicate":
        if after % before:
            raise ValueError(
                f"init replicate copies every token equally often, so {name} can grow from {before} to "
                f"{before * max(2, round(after / before))} or another multiple; got {after}"
            )
        if score_scale is not None:
            raise ValueError(
                f"init replicate fixes the score scale by itself; leave score_scale unset, got {score_scale!r}"
            )


def new_tokens(
    module: Pattention,
    num_tokens: int,
    *,
    init: str,
    score_scale: str | None = None,
    offset_std: float = 1.0,
    generator: torch.Generator | None = None,
) -> NewTokens:
    """Work out a Pattention's tokens after growth, without touching it.

    Args:
        module: the layer.
        num_tokens: its new count (checked by `check_growth`).
        init: one of `INITS`.
        score_scale: `hold` keeps tau, `count` sets it to what follows from the new count; None is the init's own.
        offset_std: size of replication's offsets as a multiple of the values' own standard deviation.
        generator: of the random numbers.

    Returns:
        The new tokens.

    Raises:
        ValueError: when every new token would have a zero key and a zero value, which nothing can ever move.
    """
    before = module.num_tokens
    if init == "replicate":
        return _replicate(module, num_tokens // before, offset_std, generator)
    keys, values = module.key_tokens.detach(), module.value_tokens.detach()
    key_std = 0.0 if init == "exact" else module.key_std
    if key_std == 0.0 and module.value_std == 0.0:
        raise ValueError(
            "new tokens with zero keys and zero values get no gradient, ever; give the values a standard deviation"
        )
    added = num_tokens - before
    new_keys = _normal((added, keys.shape[1]), key_std, keys, generator)
    new_values = _normal((added, values.shape[1]), module.value_std, values, generator)
    rule = score_scale or OWN_SCORE_SCALE[init]
    tau = None if module.score_scale is None else float(module.score_scale)
    if rule == "count":
        tau = default_score_scale(module.score, num_tokens)
    source = torch.cat((torch.arange(before), torch.full((added,), -1)))
    is_exact = added == 0 or (init == "exact" and (rule == "hold" or tau is None))
    return NewTokens(torch.cat((keys, new_keys)), torch.cat((values, new_values)), tau, is_exact, source)


def _replicate(module: Pattention, factor: int, offset_std: float, generator: torch.Generator | None) -> NewTokens:
    """Every key `factor` times, its value divided among the copies with offsets that sum to zero."""
    keys, values = module.key_tokens.detach(), module.value_tokens.detach()
    spread = offset_std * float(values.std(correction=0)) if factor > 1 else 0.0
    offsets = _normal((factor, *values.shape), spread, values, generator)
    offsets = offsets - offsets.mean(dim=0, keepdim=True)
    copies = (values / factor + offsets).flatten(0, 1)
    copies[-values.shape[0] :] += values - copies.unflatten(0, (factor, -1)).sum(dim=0)  # what rounding has lost
    tau = None
    if module.score_scale is not None:
        tau = float(module.score_scale) * (factor if module.score == "softmax" else factor**0.5)
    source = torch.arange(values.shape[0]).repeat(factor)
    return NewTokens(keys.repeat(factor, 1), copies, tau, True, source, key_moment=1.0 / factor)


def _normal(shape: tuple[int, ...], std: float, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw on the CPU in float32, so that a seed means the same numbers on every device and in every dtype."""
    drawn = torch.randn(shape, generator=generator, dtype=torch.float32) if std else torch.zeros(shape)
    return (drawn * std).to(like)
