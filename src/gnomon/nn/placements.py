"""Norm placements as data: for each of a block's sublayers, which of its slots hold a norm.

| placement | norms | source |
|---|---|---|
| `pre` | before each sublayer | Xiong et al. 2020 (arXiv 2002.04745) |
| `post` | after each sum | Vaswani et al. 2017 |
| `deep` | after each sum, whose residual is scaled by alpha | DN section 3 (DeepNorm) |
| `sub` | before each sublayer and inside it; cross-attention before alone | MG section 2 (Sub-LN) |
| `peri` | before and after each sublayer | arXiv 2502.02732 (Peri-LN) |
| `normformer` | before; after the self-attention; inside the feed-forward layer; a scale a head | arXiv 2110.09456 |
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

SUBLAYERS = ("attention", "cross_attention", "feed_forward")


@dataclass(frozen=True)
class Placement:
    """Where the norms of a block stand; each field but the last three names the sublayers that have one there.

    Args:
        before: of the sublayer's input.
        after: of the sublayer's output.
        outer: of the sum with the residual stream.
        inner: inside: of the joined heads, or of the feed-forward layer's hidden units.
        scales_residual: whether the residual stream is multiplied by DeepNorm's alpha.
        scales_heads: whether each head's output has a learned factor.
        has_final_norm: whether a norm follows the last block.
    """

    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    outer: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    scales_residual: bool = False
    scales_heads: bool = False
    has_final_norm: bool = True


PLACEMENTS: dict[str, Placement] = {
    "pre": Placement(before=SUBLAYERS),
    "post": Placement(outer=SUBLAYERS, has_final_norm=False),
    "deep": Placement(outer=SUBLAYERS, scales_residual=True, has_final_norm=False),
    "sub": Placement(before=SUBLAYERS, inner=("attention", "feed_forward")),
    "peri": Placement(before=SUBLAYERS, after=SUBLAYERS),
    "normformer": Placement(before=SUBLAYERS, after=("attention",), inner=("feed_forward",), scales_heads=True),
}
"""The placements by name."""

NORMALIZING_SCORES = ("l2_norm_gelu", "gelu_l2_norm")
"""Scores whose own normalization stands where an inner norm of a Pattention feed-forward layer would."""


def has_inner_norm(placement: str, feed_forward: str, score: str) -> bool:
    """Whether the feed-forward layer gets an inner norm.

    An L2 score normalizes over the hidden axis (the tokens) itself; a LayerNorm there would make exact growth
    impossible, since new tokens would move its mean.

    Args:
        placement: a name of `PLACEMENTS`.
        feed_forward: `mlp`, `glu` or `pattention`.
        score: of the Pattention.

    Returns:
        True where a norm is to be built.

    Raises:
        ValueError: where the placement wants one and neither the score normalizes nor a norm may stand.
    """
    if "feed_forward" not in PLACEMENTS[placement].inner:
        return False
    if feed_forward != "pattention":
        return True
    if score not in NORMALIZING_SCORES:
        raise ValueError(
            f"norm_placement {placement} needs a normalization inside the feed-forward layer, which a Pattention with "
            f"the score {score} does not have; use the score {' or '.join(NORMALIZING_SCORES)}, or feed_forward: mlp"
        )
    return False


class HeadScale(nn.Module):
    """A learned factor for each head's output.

        h_i -> gamma_i h_i,   gamma_i = 1 at the start

    Source: NormFormer (arXiv 2110.09456), section 2.

    Args:
        num_heads: how many.
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """All factors become 1."""
        nn.init.ones_(self.weight)

    def forward(self, x: Float[Tensor, "batch length heads head"]) -> Float[Tensor, "batch length heads head"]:
        """Scale every head."""
        return x * self.weight.unsqueeze(-1).to(x.dtype)
