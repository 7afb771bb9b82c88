"""Feed-forward layers: two linear layers, a gated form, or one Pattention."""

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from gnomon.nn.initialization import Rule
from gnomon.nn.projections import build_projection

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "silu": F.silu,
}
"""Activation functions of linear feed-forward layers, by name."""


class FeedForward(nn.Module):
    """Two linear layers around an activation.

        FFN(x) = W_down norm( phi(W_up x) )

    Source: Vaswani et al. 2017, eq. 2; MG section 2 (`inner_norm`, Sub-LN).

    Args:
        up: projection to the intermediate width.
        down: projection back.
        activation: phi.
        inner_norm: before the second projection.
    """

    def __init__(
        self,
        *,
        up: nn.Module,
        down: nn.Module,
        activation: Callable[[Tensor], Tensor],
        inner_norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.up, self.down, self.activation = up, down, activation
        self.inner_norm = nn.Identity() if inner_norm is None else inner_norm

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """Apply the layer to the last axis."""
        output: Tensor = self.down(self.inner_norm(self.activation(self.up(x))))
        return output


class GatedFeedForward(FeedForward):
    """A feed-forward layer whose hidden units are gated.

        FFN(x) = W_down norm( phi(W_gate x) * W_up x )

    Source: Shazeer 2020 (arXiv 2002.05202).

    Args:
        gate: projection to the intermediate width, under the activation.
        others: the arguments of `FeedForward`.
    """

    def __init__(self, *, gate: nn.Module, **others: Any) -> None:
        super().__init__(**others)
        self.gate = gate

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """Apply the layer to the last axis."""
        output: Tensor = self.down(self.inner_norm(self.activation(self.gate(x)) * self.up(x)))
        return output


def build_feed_forward(
    kind: str,
    width: int,
    *,
    intermediate_size: int | None = None,
    activation: str,
    rule: Rule,
    bias: bool = False,
    inner_norm: nn.Module | None = None,
    **pattention: Any,
) -> nn.Module:
    """Build a feed-forward layer.

    Args:
        kind: `mlp`, `glu` or `pattention` (ONE Pattention, no second layer: TF section 3.2).
        width: of input and output.
        intermediate_size: hidden width of `mlp` and `glu`.
        activation: a name of `ACTIVATIONS`, for `mlp` and `glu`.
        rule: the initialization rule.
        bias: whether linear layers have biases.
        inner_norm: before the second projection of `mlp` and `glu`.
        pattention: `num_tokens` and the other arguments of `Pattention`.

    Returns:
        The layer.

    Raises:
        ValueError: for an unknown kind or activation, or a missing hidden width.
    """
    if kind == "pattention":
        return build_projection(kind, width, width, site="feed_forward", rule=rule, **pattention)
    if kind not in ("mlp", "glu"):
        raise ValueError(f"feed_forward must be mlp, glu or pattention; got {kind!r}")
    if activation not in ACTIVATIONS:
        raise ValueError(f"hidden_act must be one of {', '.join(ACTIVATIONS)}; got {activation!r}")
    if intermediate_size is None:
        raise ValueError(f"feed_forward {kind} needs an intermediate_size; got None")

    def linear(site: str, in_features: int, out_features: int) -> nn.Module:
        return build_projection("linear", in_features, out_features, site=site, rule=rule, bias=bias)

    layers: dict[str, Any] = {
        "up": linear("up", width, intermediate_size),
        "down": linear("down", intermediate_size, width),
        "activation": ACTIVATIONS[activation],
        "inner_norm": inner_norm,
    }
    if kind == "glu":
        return GatedFeedForward(gate=linear("gate", width, intermediate_size), **layers)
    return FeedForward(**layers)
