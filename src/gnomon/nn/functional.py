"""Pattention and its score functions, written as the equations.

Every function here is differentiable to any order and is the reference that `gnomon.nn.kernels` has to equal.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

EPSILON = 1e-9
"""Times tau^2, added to the sum of squares of a score row, so that an all-zero row stays finite."""


def l2_norm_gelu(
    scores: Float[Tensor, "*batch tokens"], score_scale: float | Tensor, eps: float = EPSILON
) -> Float[Tensor, "*batch tokens"]:
    """L2-normalize the scores over the token axis, multiply by tau, then apply the exact GELU.

        S_ij = GELU( A_ij * tau / sqrt(sum_k A_ik^2 + eps tau^2) )

    Source: TF eq. 5 and 16; tau = sqrt(n).
    Differs: the reference has no epsilon, so an all-zero row gives NaN there. Here it joins the sum in units of tau^2,
    never of the token count, so that neither new tokens at a held tau nor copies of all tokens change what it does.

    Args:
        scores: A = X K^T, one row a position.
        score_scale: tau.
        eps: times tau^2, added to the sum of squares.

    Returns:
        The weights S, in the dtype of `scores`.
    """
    return F.gelu(_l2_normalize(scores, score_scale, eps))


def gelu_l2_norm(
    scores: Float[Tensor, "*batch tokens"], score_scale: float | Tensor, eps: float = EPSILON
) -> Float[Tensor, "*batch tokens"]:
    """Apply the exact GELU, then L2-normalize over the token axis and multiply by tau.

        S_ij = tau * GELU(A_ij) / sqrt(sum_k GELU(A_ik)^2 + eps tau^2)

    Source: the score `gelu_l2_norm` of the TokenFormer reference code; tau = sqrt(n).

    Args:
        scores: A = X K^T, one row a position.
        score_scale: tau.
        eps: times tau^2, added to the sum of squares.

    Returns:
        The weights S, in the dtype of `scores`.
    """
    return _l2_normalize(F.gelu(scores), score_scale, eps)


def softmax(
    scores: Float[Tensor, "*batch tokens"], score_scale: float | Tensor, eps: float = EPSILON
) -> Float[Tensor, "*batch tokens"]:
    """Softmax over the token axis, multiplied by tau.

        S_ij = tau * exp(A_ij) / sum_k exp(A_ik)

    Source: the score `softmax` of the TokenFormer reference code; tau = n.
    Differs: the reference exponentiates without subtracting the maximum and overflows at scores of about 90.

    Args:
        scores: A = X K^T, one row a position.
        score_scale: tau.
        eps: unused, for one signature of all scores (a softmax never divides by zero).

    Returns:
        The weights S, which sum to tau in each row.
    """
    return (torch.softmax(scores, dim=-1) * score_scale).to(scores.dtype)


def gelu(
    scores: Float[Tensor, "*batch tokens"], score_scale: float | Tensor | None = None, eps: float = EPSILON
) -> Float[Tensor, "*batch tokens"]:
    """The exact GELU with no normalization: Pattention is then a bias-free two-layer perceptron.

        S_ij = GELU(A_ij),  W_1 = K_P,  W_2 = V_P^T

    Source: TF section 3.2, the relation to a feed-forward network.

    Args:
        scores: A = X K^T, one row a position.
        score_scale: must be None, since nothing is normalized.
        eps: unused, for one signature of all scores.

    Returns:
        The weights S.
    """
    return F.gelu(scores)


SCORES: dict[str, Callable[..., Tensor]] = {
    "l2_norm_gelu": l2_norm_gelu,
    "gelu_l2_norm": gelu_l2_norm,
    "softmax": softmax,
    "gelu": gelu,
}
"""The score functions Theta by name."""


def default_score_scale(score: str, num_tokens: int) -> float | None:
    """The score scale tau that keeps the variance of a fresh layer: sqrt(n), for softmax n, for `gelu` none.

    Source: TF eq. 5 (tau = sqrt(n)) and the reference code (softmax times n).

    Args:
        score: a name of `SCORES`.
        num_tokens: n, the number of parameter tokens.

    Returns:
        tau, or None where the score has none.

    Raises:
        ValueError: for an unknown score.
    """
    check_score(score)
    return {"softmax": float(num_tokens), "gelu": None}.get(score, math.sqrt(num_tokens))


def check_score(score: str) -> None:
    """Refuse a score function that does not exist.

    Args:
        score: the name to check.

    Raises:
        ValueError: naming the scores that exist.
    """
    if score not in SCORES:
        raise ValueError(f"score must be one of {', '.join(SCORES)}; got {score!r}")


def pattention(
    x: Float[Tensor, "*batch in_features"],
    key_tokens: Float[Tensor, "tokens in_features"],
    value_tokens: Float[Tensor, "tokens out_features"],
    *,
    score: str = "l2_norm_gelu",
    score_scale: float | Tensor | None = None,
    eps: float = EPSILON,
) -> Float[Tensor, "*batch out_features"]:
    """Attention between inputs and learnable parameter tokens.

        Pattention(X, K_P, V_P) = Theta(X K_P^T) V_P

    Source: TF eq. 4. The scores are not divided by sqrt(d): an L2 score is blind to their scale.

    Args:
        x: the inputs X; only the last axis is touched.
        key_tokens: K_P, one row a parameter token.
        value_tokens: V_P, one row a parameter token.
        score: the score function Theta, a name of `SCORES`.
        score_scale: tau; `default_score_scale` of the present token count when None.
        eps: times tau^2, added to the sum of squares of a score row.

    Returns:
        One output of width `out_features` for each input.

    Raises:
        ValueError: for an unknown score.

    >>> x, keys, values = torch.ones(2, 3), torch.eye(4, 3), torch.ones(4, 5)
    >>> pattention(x, keys, values, score="softmax").shape
    torch.Size([2, 5])
    """
    if score_scale is None:
        score_scale = default_score_scale(score, key_tokens.shape[0])
    check_score(score)
    weights = SCORES[score](F.linear(x, key_tokens), score_scale, eps)
    return weights @ value_tokens


def _l2_normalize(rows: Tensor, scale: float | Tensor, eps: float) -> Tensor:
    """A / sqrt(sum A^2 / tau^2 + eps), its statistics in float32 or wider."""
    wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) / scale**2 + eps)).to(rows.dtype)
