"""Projections: a linear layer or Pattention, behind one factory."""

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gnomon.nn import functional, kernels
from gnomon.nn.initialization import CROSS, Rule


class Linear(nn.Linear):
    """torch's linear layer that remembers the standard deviation it starts with.

        y = x W^T + b,   W ~ N(0, std^2),  b = 0

    Args:
        in_features: width of the input.
        out_features: width of the output.
        bias: whether to add b.
        std: initial standard deviation of W, its gain included.
        gain: the part of std that the depth of the model asked for, kept for whoever wants to know.
        is_uniform: draw W and b from the uniform distribution of that standard deviation instead.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = False,
        std: float = 0.02,
        gain: float = 1.0,
        is_uniform: bool = False,
    ) -> None:
        self.std, self.gain, self.is_uniform = std, gain, is_uniform
        super().__init__(in_features, out_features, bias=bias)

    def reset_parameters(self) -> None:
        """Draw fresh weights; the bias becomes zero, or is drawn as they are where they are uniform."""
        if self.is_uniform:
            bound = math.sqrt(3.0) * self.std
            nn.init.uniform_(self.weight, -bound, bound)
            if self.bias is not None:
                nn.init.uniform_(self.bias, -bound, bound)
            return
        nn.init.normal_(self.weight, std=self.std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Embedding(nn.Embedding):
    """torch's embedding that remembers the standard deviation it starts with.

    Args:
        num_embeddings: rows of the table.
        embedding_dim: width.
        padding_idx: a row that starts at zero and gets no gradient, or None.
        std: initial standard deviation of the table.
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, *, std: float = 0.02
    ) -> None:
        self.std = std
        super().__init__(num_embeddings, embedding_dim, padding_idx)

    def reset_parameters(self) -> None:
        """Draw a fresh table."""
        nn.init.normal_(self.weight, std=self.std)
        self._fill_padding_idx_with_zero()


class Pattention(nn.Module):
    """Attention between the inputs and learnable parameter tokens, a stand-in for a linear layer.

        Pattention(X) = Theta(X K_P^T) V_P

    Source: TF eq. 4. The score scale tau is state, not a count: it starts at `default_score_scale` and stays what it
    is when tokens are appended. It is kept in float32 or wider whatever the module is cast to, since bfloat16 would
    round sqrt(2140) = 46.26 to 46.25 for ever.

    Args:
        in_features: width of the input and of the key tokens.
        out_features: width of the output and of the value tokens.
        num_tokens: n, the number of parameter tokens.
        score: the score function Theta, a name of `functional.SCORES`.
        score_scale: tau at the start; `functional.default_score_scale` when None.
        learn_score_scale: make tau a parameter.
        key_std: initial standard deviation of the key tokens.
        value_std: initial standard deviation of the value tokens, their gain included.
        gain: the part of value_std that the depth of the model asked for, kept for whoever wants to know.
        eps: times tau^2, added to the sum of squares of a score row.

    Raises:
        ValueError: for an unknown score, a width or count below 1, or a score scale that is not above 0 or that the
            score has no use for.

    >>> Pattention(16, 32, num_tokens=8)(torch.zeros(2, 16)).shape
    torch.Size([2, 32])
    """

    score_scale: Tensor | None
    site: str | None = None
    """Where the layer stands (`query`, ..., `feed_forward`), in cross-attention as in attention; growth reads it."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        num_tokens: int,
        *,
        score: str = "l2_norm_gelu",
        score_scale: float | None = None,
        learn_score_scale: bool = False,
        key_std: float = 0.02,
        value_std: float = 0.02,
        gain: float = 1.0,
        eps: float = functional.EPSILON,
    ) -> None:
        super().__init__()
        for name, size in (
            ("in_features", in_features),
            ("out_features", out_features),
            ("num_tokens", num_tokens),
        ):
            if size < 1:
                raise ValueError(f"{name} of a Pattention must be at least 1; got {size}")
        default = functional.default_score_scale(score, num_tokens)
        if default is None and (score_scale is not None or learn_score_scale):
            raise ValueError(f"the score {score!r} normalizes nothing and has no score scale; leave it unset")
        if score_scale is not None and not 0.0 < score_scale < math.inf:
            raise ValueError(f"score_scale must be above 0 and finite; got {score_scale}")
        self.in_features, self.out_features = in_features, out_features
        self.score, self.eps = score, eps
        self.key_std, self.value_std, self.gain = key_std, value_std, gain
        self.initial_score_scale = default if score_scale is None else float(score_scale)
        self.key_tokens = nn.Parameter(torch.empty(num_tokens, in_features))
        self.value_tokens = nn.Parameter(torch.empty(num_tokens, out_features))
        scale = None if default is None else torch.empty(1, dtype=torch.float32)
        if learn_score_scale and scale is not None:
            self.score_scale = nn.Parameter(scale)
        else:
            self.register_buffer("score_scale", scale)
        self.reset_parameters()

    @property
    def num_tokens(self) -> int:
        """n, the number of parameter tokens."""
        return self.key_tokens.shape[0]

    def reset_parameters(self) -> None:
        """Draw fresh tokens and set tau to its initial value."""
        nn.init.normal_(self.key_tokens, std=self.key_std)
        nn.init.normal_(self.value_tokens, std=self.value_std)
        if self.score_scale is not None and self.initial_score_scale is not None:
            nn.init.constant_(self.score_scale, self.initial_score_scale)

    def forward(self, x: Float[Tensor, "*batch in_features"]) -> Float[Tensor, "*batch out_features"]:
        """Apply the projection to the last axis."""
        return kernels.pattention(
            x,
            self.key_tokens,
            self.value_tokens,
            score=self.score,
            score_scale=self.score_scale,
            eps=self.eps,
        )

    def extra_repr(self) -> str:
        """What `print` shows."""
        return f"{self.in_features}, {self.out_features}, num_tokens={self.num_tokens}, score={self.score!r}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Pattention":
        """Move or cast the module, tau never below float32."""
        before = self.score_scale
        exact = None if before is None else before.detach()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        after = self.score_scale
        if exact is not None and after is not None and after.dtype in (torch.float16, torch.bfloat16):
            kept = exact.to(device=after.device, dtype=torch.float32)
            if isinstance(after, nn.Parameter):
                after.data = kept
                if after.grad is not None:
                    after.grad = after.grad.to(torch.float32)
            else:
                self.score_scale = kept
        return self


def build_projection(
    kind: str,
    in_features: int,
    out_features: int,
    *,
    site: str,
    rule: Rule,
    bias: bool = False,
    **pattention: Any,
) -> nn.Module:
    """Build the projection of one site.

    Args:
        kind: `linear` or `pattention`.
        in_features: width of the input.
        out_features: width of the output.
        site: where it stands (`query`, `key`, `value`, `output`, ...), for the initialization.
        rule: the initialization rule.
        bias: whether a linear projection has a bias.
        pattention: `num_tokens` and the other arguments of `Pattention`.

    Returns:
        The layer.

    Raises:
        ValueError: for an unknown kind.
    """
    if kind == "linear":
        std, gain = rule(site, "weight", in_features, out_features), rule.gain(site, "weight")
        return Linear(in_features, out_features, bias=bias, std=std, gain=gain, is_uniform=rule.is_uniform)
    if kind == "pattention":
        layer = Pattention(
            in_features,
            out_features,
            key_std=rule(site, "key_tokens", in_features, pattention["num_tokens"]),
            value_std=rule(site, "value_tokens", pattention["num_tokens"], out_features),
            gain=rule.gain(site, "value_tokens"),
            **pattention,
        )
        layer.site = site.removeprefix(CROSS)
        return layer
    raise ValueError(f"projection must be linear or pattention; got {kind!r}")
