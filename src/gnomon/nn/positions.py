"""Position schemes: what is computed once from explicit position ids, and how queries and keys use it."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

Rotation = tuple[Tensor, ...]
"""What queries and keys are turned with: cosines and sines, and for xPos the scales."""


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


def sinusoidal_positions(position_ids: Int[Tensor, "batch length"], width: int) -> Float[Tensor, "batch length width"]:
    """Sines and cosines that are added to embeddings.

        p_t = [ sin(t w_0), ..., sin(t w_{h-1}), cos(t w_0), ..., cos(t w_{h-1}) ]
        w_j = 10000^(-j / (h - 1)),   h = d/2

    Source: Vaswani et al. 2017, section 3.5, in the layout of its own code (tensor2tensor), which fairseq kept.

    Args:
        position_ids: t, the position of every token.
        width: d, even and at least 4.

    Returns:
        The encodings, float32.
    """
    half = width // 2
    steps = torch.arange(half, device=position_ids.device, dtype=torch.float32)
    angles = position_ids.to(torch.float32).unsqueeze(-1) * torch.exp(steps * (-math.log(10000.0) / (half - 1)))
    return torch.cat((angles.sin(), angles.cos()), dim=-1)


XPOS_SCALE_BASE = 512
"""Positions over which xPos' scale falls by one power."""


def xpos_rotation(
    position_ids: Int[Tensor, "batch length"], *, head_size: int, base: float = 10000.0
) -> tuple[Float[Tensor, "batch length head"], Float[Tensor, "batch length head"], Float[Tensor, "batch length head"]]:
    """Cosines, sines and scales of xPos, for neighboring pairs of dimensions.

        scale_ti = ( (2 i + 0.4 d_h) / (1.4 d_h) )^(t / 512),   i = 0 .. d_h/2 - 1

    Queries are multiplied by the scale and keys divided by it, so that only the distance of two tokens matters.

    Source: arXiv 2212.10554; facts of torchscale's code, whose exponent is (t - T/2) / 512.

    Differs: without the shift by half the length T, which cancels between query and key in a full pass and would
    not in cached decoding, where T grows.

    Args:
        position_ids: t, the position of every token.
        head_size: d_h, even.
        base: of the angles' geometric progression.

    Returns:
        cos, sin and scale, float32, each pair's number twice.
    """
    pairs = torch.arange(0, head_size, 2, device=position_ids.device, dtype=torch.float32)
    t = position_ids.to(torch.float32).unsqueeze(-1)
    angles = t * torch.pow(base, -pairs / head_size)
    scale = ((pairs + 0.4 * head_size) / (1.4 * head_size)) ** (t / XPOS_SCALE_BASE)
    cos, sin, scale = (part.repeat_interleave(2, dim=-1) for part in (angles.cos(), angles.sin(), scale))
    return cos, sin, scale


def rotate_pairs(
    x: Float[Tensor, "batch heads length head"],
    cos: Float[Tensor, "#batch length head"],
    sin: Float[Tensor, "#batch length head"],
) -> Float[Tensor, "batch heads length head"]:
    """Turn every pair of neighboring dimensions by its angle.

        (x_2i, x_2i+1) -> (x_2i cos - x_2i+1 sin, x_2i+1 cos + x_2i sin)

    Source: RoFormer (arXiv 2104.09864), interleaved.

    Args:
        x: queries or keys.
        cos: of each dimension.
        sin: of each dimension.

    Returns:
        The turned x, in its dtype.
    """
    turned = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    return x * cos.unsqueeze(1).to(x.dtype) + turned * sin.unsqueeze(1).to(x.dtype)


def xpos_queries_and_keys(query: Tensor, key: Tensor, positions: Rotation | None) -> tuple[Tensor, Tensor]:
    """Turn queries and keys, and scale them against each other.

    Args:
        query: (batch, heads, length, head size).
        key: (batch, key-value heads, length, head size).
        positions: cos, sin and scale of `xpos_rotation`, or None.

    Returns:
        The queries and keys.
    """
    if positions is None:
        return query, key
    cos, sin, scale = positions
    return rotate_pairs(query, cos * scale, sin * scale), rotate_pairs(key, cos / scale, sin / scale)


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


ROTATIONS: dict[str, Callable[[Tensor, Tensor, Rotation | None], tuple[Tensor, Tensor]]] = {
    "rotary": rotate_queries_and_keys,
    "xpos": xpos_queries_and_keys,
}
"""How queries and keys are turned, by position scheme."""
