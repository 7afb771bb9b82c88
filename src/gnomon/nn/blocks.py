"""A Transformer block: two sublayers on a residual stream, every place where a norm may stand a slot."""

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from gnomon.nn.attention import Attention, Cache
from gnomon.nn.positions import Rotation


class Residual(nn.Module):
    """How one sublayer is put on the residual stream.

        x' = outer( alpha x + dropout( after( f( before(x) ) ) ) )

    Pre-norm fills `before` (TF section 3.2), post-norm `outer`; the default of every slot is the identity.

    Args:
        before: norm of the sublayer's input.
        after: norm of the sublayer's output.
        outer: norm of the sum.
        scale: alpha.
        dropout: probability, of the sublayer's output.
    """

    def __init__(
        self,
        *,
        before: nn.Module | None = None,
        after: nn.Module | None = None,
        outer: nn.Module | None = None,
        scale: float = 1.0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.before = nn.Identity() if before is None else before
        self.after = nn.Identity() if after is None else after
        self.outer = nn.Identity() if outer is None else outer
        self.dropout = nn.Dropout(dropout)
        self.scale = scale

    def forward(
        self, x: Float[Tensor, "*batch width"], y: Float[Tensor, "*batch width"]
    ) -> Float[Tensor, "*batch width"]:
        """Add the sublayer's output y = f(before(x)) to the stream x."""
        stream = x if self.scale == 1.0 else x * self.scale
        output: Tensor = self.outer(stream + self.dropout(self.after(y)))
        return output


class Block(nn.Module):
    """Attention, then the feed-forward layer, each on the residual stream.

        X' = X + MHA(LN(X)),   X'' = X' + FFN(LN(X'))     (in the pre-norm placement)

    Source: TF section 3.2.

    Args:
        attention: the attention layer.
        feed_forward: the feed-forward layer.
        attention_residual: how the attention joins the stream.
        feed_forward_residual: how the feed-forward layer joins it.
    """

    def __init__(
        self,
        *,
        attention: Attention,
        feed_forward: nn.Module,
        attention_residual: Residual,
        feed_forward_residual: Residual,
    ) -> None:
        super().__init__()
        self.attention = attention
        self.feed_forward = feed_forward
        self.attention_residual = attention_residual
        self.feed_forward_residual = feed_forward_residual

    def forward(
        self,
        x: Float[Tensor, "batch length width"],
        mask: Tensor | None = None,
        positions: Rotation | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> Float[Tensor, "batch length width"]:
        """Run the block.

        Args:
            x: the residual stream.
            mask: where a query may look, in the form of the inner attention function.
            positions: of the tokens of x.
            cache: earlier keys and values.
            kwargs: passed to the inner attention function.

        Returns:
            The residual stream after both sublayers.
        """
        attended, _ = self.attention(
            self.attention_residual.before(x), mask=mask, positions=positions, cache=cache, **kwargs
        )
        x = self.attention_residual(x, attended)
        output: Tensor = self.feed_forward_residual(x, self.feed_forward(self.feed_forward_residual.before(x)))
        return output
