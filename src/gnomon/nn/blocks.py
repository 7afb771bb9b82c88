"""A Transformer block: two sublayers on a residual stream, every place where a norm may stand a slot."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gnomon.nn.attention import Attention, Cache, MemoryCache
from gnomon.nn.multiway import call
from gnomon.nn.positions import Rotation


class DropPath(nn.Module):
    """Stochastic depth: while training, a row goes without the sublayer, and the others are scaled up.

        y -> y b / (1 - p),   b ~ Bernoulli(1 - p) for each row

    Source: Huang et al. 2016 (arXiv 1603.09382).

    Args:
        probability: p, from 0 to below 1.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, y: Float[Tensor, "batch *rest"]) -> Float[Tensor, "batch *rest"]:
        """Drop rows while training."""
        if not self.training:
            return y
        kept = torch.full((y.shape[0], *[1] * (y.dim() - 1)), 1.0 - self.probability, device=y.device)
        return y * (torch.bernoulli(kept) / (1.0 - self.probability)).to(y.dtype)

    def extra_repr(self) -> str:
        """What `print` shows."""
        return str(self.probability)


class Residual(nn.Module):
    """How one sublayer is put on the residual stream.

        x' = outer( alpha x + drop_path( dropout( after( f( before(x) ) ) ) ) )

    Pre-norm fills `before` (TF section 3.2), post-norm `outer`; the default of every slot is the identity.

    Args:
        before: norm of the sublayer's input.
        after: norm of the sublayer's output.
        outer: norm of the sum.
        scale: alpha.
        dropout: probability, of the sublayer's output.
        drop_path: probability that a row of the batch goes without the sublayer, while training.
    """

    def __init__(
        self,
        *,
        before: nn.Module | None = None,
        after: nn.Module | None = None,
        outer: nn.Module | None = None,
        scale: float = 1.0,
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.before = nn.Identity() if before is None else before
        self.after = nn.Identity() if after is None else after
        self.outer = nn.Identity() if outer is None else outer
        self.dropout = nn.Dropout(dropout)
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()
        self.scale = scale

    def forward(
        self, x: Float[Tensor, "*batch width"], y: Float[Tensor, "*batch width"], modality_ids: Tensor | None = None
    ) -> Float[Tensor, "*batch width"]:
        """Add the sublayer's output y = f(before(x)) to the stream x; multiway norms read the ids."""
        stream = x if self.scale == 1.0 else x * self.scale
        output = self.drop_path(self.dropout(call(self.after, y, modality_ids)))
        return call(self.outer, stream + output, modality_ids)


class Block(nn.Module):
    """Attention, cross-attention where there is a memory, and the feed-forward layer, each on the residual stream.

        X' = X + MHA(LN(X)),   X'' = X' + FFN(LN(X'))     (in the pre-norm placement)

        X' = X + MHA(LN(X)) + FFN(LN'(X))                 (with a parallel residual)

    Source: TF section 3.2; MG section 2 for the cross-attention in between; GPT-NeoX-20B (arXiv 2204.06745), section
    2.1, for the parallel form.

    Args:
        attention: the attention layer.
        feed_forward: the feed-forward layer.
        attention_residual: how the attention joins the stream.
        feed_forward_residual: how the feed-forward layer joins it.
        cross_attention: the attention to a memory, or None.
        cross_attention_residual: how that joins the stream.
        is_parallel: the feed-forward layer sees the stream as the attention does, before it.
    """

    def __init__(
        self,
        *,
        attention: Attention,
        feed_forward: nn.Module,
        attention_residual: Residual,
        feed_forward_residual: Residual,
        cross_attention: Attention | None = None,
        cross_attention_residual: Residual | None = None,
        is_parallel: bool = False,
    ) -> None:
        super().__init__()
        self.attention = attention
        self.feed_forward = feed_forward
        self.attention_residual = attention_residual
        self.feed_forward_residual = feed_forward_residual
        self.cross_attention = cross_attention
        self.cross_attention_residual = cross_attention_residual
        self.is_parallel = is_parallel

    def forward(
        self,
        x: Float[Tensor, "batch length width"],
        memory: Float[Tensor, "batch source width"] | None = None,
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        positions: Rotation | None = None,
        cache: Cache | None = None,
        modality_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> Float[Tensor, "batch length width"]:
        """Run the block.

        Args:
            x: the residual stream.
            memory: the encoder's output, for a block with cross-attention.
            mask: where a query may look, in the form of the inner attention function.
            memory_mask: the same for the memory.
            positions: of the tokens of x.
            cache: earlier keys and values; its `memory`, if it has one, keeps those of the memory.
            modality_ids: of the tokens of x, (batch, length), for multiway layers.
            kwargs: passed to the inner attention function.

        Returns:
            The residual stream after all sublayers.
        """
        before = x
        attended, _ = self.attention(
            call(self.attention_residual.before, x, modality_ids),
            mask=mask,
            positions=positions,
            cache=cache,
            modality_ids=modality_ids,
            **kwargs,
        )
        x = self.attention_residual(x, attended, modality_ids)
        if self.cross_attention is not None and self.cross_attention_residual is not None:
            kept: MemoryCache | None = getattr(cache, "memory", None)
            attended, _ = self.cross_attention(
                self.cross_attention_residual.before(x), memory=memory, mask=memory_mask, cache=kept, **kwargs
            )
            x = self.cross_attention_residual(x, attended)
        seen = before if self.is_parallel else x
        normed = call(self.feed_forward_residual.before, seen, modality_ids)
        output: Tensor = self.feed_forward_residual(x, call(self.feed_forward, normed, modality_ids), modality_ids)
        return output
