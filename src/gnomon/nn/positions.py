"""Position schemes: what is computed once from explicit position ids, and how queries and keys use it."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

Rotation = tuple[Tensor, Tensor]


def rotary_angles(
    position_ids: Int[Tensor, "batch length"], *, rotary_size: int, base: float = 10000.0
) -> tuple[Float[Tensor, "batch length rotary"], Float[Tensor, "batch length rotary"]]:
    """Cosines and sines of the rotary angles.

        theta_tj = t * base^(-2 j / r),  j = 0 .. r/2 - 1, repeated for the second half

    Source: RoFormer (arXiv 2104.09864), in the half-split layout of GPT-NeoX that TokenFormer uses.

    Args:
        position_ids: t, the position of every token.
        rotary_size: r, how many of a head's dimensions turn (even).
        base: of the geometric progression.

    Returns:
        cos and sin, float32 (float64 angles would not fit the kernels), shape (batch, length, r).
    """
    exponent = torch.arange(0, rotary_size, 2, device=position_ids.device, dtype=torch.float32) / rotary_size
    angles = position_ids.to(torch.float32).unsqueeze(-1) * torch.pow(base, -exponent)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(
    x: Float[Tensor, "batch heads length head"],
    cos: Float[Tensor, "#batch length rotary"],
    sin: Float[Tensor, "#batch length rotary"],
) -> Float[Tensor, "batch heads length head"]:
    """Turn the first r dimensions of each head by their angles and leave the others.

        (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin),  x1 and x2 the two halves of the r dimensions

    Source: RoFormer (arXiv 2104.09864), half-split.

    Args:
        x: queries or keys.
        cos: from `rotary_angles`.
        sin: from `rotary_angles`.

    Returns:
        The turned x, in its dtype.
    """
    size = cos.shape[-1]
    cos, sin = cos.unsqueeze(1).to(x.dtype), sin.unsqueeze(1).to(x.dtype)
    turning, rest = x[..., :size], x[..., size:]
    first, second = turning.chunk(2, dim=-1)
    turned = turning * cos + torch.cat((-second, first), dim=-1) * sin
    return torch.cat((turned, rest), dim=-1) if rest.shape[-1] else turned


def rotate_queries_and_keys(query: Tensor, key: Tensor, positions: Rotation | None) -> tuple[Tensor, Tensor]:
    """Turn queries and keys alike; with no positions given, return them as they are.

    Args:
        query: (batch, heads, length, head size).
        key: (batch, key-value heads, length, head size).
        positions: cos and sin of `rotary_angles`, or None.

    Returns:
        The turned queries and keys.
    """
    return (query, key) if positions is None else (rotate(query, *positions), rotate(key, *positions))
