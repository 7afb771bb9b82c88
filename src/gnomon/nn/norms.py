"""Normalization layers by name."""

from collections.abc import Callable

from torch import nn

NORMS: dict[str, Callable[[int, float], nn.Module]] = {
    "layer": lambda size, eps: nn.LayerNorm(size, eps=eps),
    "layer_plain": lambda size, eps: nn.LayerNorm(size, eps=eps, elementwise_affine=False),
    "rms": lambda size, eps: nn.RMSNorm(size, eps=eps),
    "none": lambda size, eps: nn.Identity(),
}
"""`layer` has weight and bias, `layer_plain` has no parameters (TokenFormer's blocks), `rms` has a weight.

`none` is the identity, for the place after a stack whose blocks end in a norm.
"""


def build_norm(kind: str, size: int, *, eps: float = 1e-5) -> nn.Module:
    """Build a normalization over the last axis.

    Args:
        kind: a name of `NORMS`.
        size: width of the last axis.
        eps: added to the variance (`rms`: to the mean square).

    Returns:
        The layer.

    Raises:
        ValueError: for an unknown kind.
    """
    if kind not in NORMS:
        raise ValueError(f"norm must be one of {', '.join(NORMS)}; got {kind!r}")
    return NORMS[kind](size, eps)
