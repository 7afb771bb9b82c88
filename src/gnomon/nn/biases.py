"""Position schemes that act on the scores of token-token attention: a number for each head and distance."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


def relative_buckets(
    distances: Int[Tensor, "*shape"], *, is_bidirectional: bool, num_buckets: int, max_distance: int
) -> Int[Tensor, "*shape"]:
    """Buckets of distances: the small ones each have their own, the larger ones share by logarithm.

    Source: T5 (arXiv 1910.10683), section 2.1, and its code.

    Args:
        distances: position of the key less position of the query.
        is_bidirectional: halves the buckets between both directions; otherwise all later keys share bucket 0.
        num_buckets: how many in all.
        max_distance: from which on all distances share the last bucket.

    Returns:
        Bucket numbers from 0.
    """
    first = torch.zeros_like(distances)
    if is_bidirectional:
        num_buckets //= 2
        first = (distances > 0).to(distances.dtype) * num_buckets
        distances = distances.abs()
    else:
        distances = (-distances).clamp(min=0)
    exact = num_buckets // 2
    ratio = torch.log(distances.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    shared = exact + (ratio * (num_buckets - exact)).to(distances.dtype)
    return first + torch.where(distances < exact, distances, shared.clamp(max=num_buckets - 1))


class RelativeBias(nn.Module):
    """A learned number for each head and bucket of distances, added to the scores.

        A_ij <- A_ij + b[head, bucket(j - i)]

    Source: T5 (arXiv 1910.10683), section 2.1; one table for all layers.

    Args:
        num_heads: heads.
        num_buckets: rows of the table.
        max_distance: from which on all distances share a bucket.
        is_bidirectional: whether later keys have buckets of their own.
        std: initial standard deviation.
    """

    def __init__(
        self,
        num_heads: int,
        *,
        num_buckets: int = 32,
        max_distance: int = 128,
        is_bidirectional: bool = True,
        std: float = 0.02,
    ) -> None:
        super().__init__()
        self.num_buckets, self.max_distance, self.is_bidirectional = num_buckets, max_distance, is_bidirectional
        self.std = std
        self.weight = nn.Parameter(torch.empty(num_buckets, num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw a fresh table."""
        nn.init.normal_(self.weight, std=self.std)

    def forward(
        self, queries: Int[Tensor, "#batch length"], keys: Int[Tensor, "#batch source"]
    ) -> Float[Tensor, "#batch heads length source"]:
        """The bias of every query and key.

        Args:
            queries: positions of the queries.
            keys: positions of the keys.

        Returns:
            The bias.
        """
        buckets = relative_buckets(
            keys.unsqueeze(1) - queries.unsqueeze(2),
            is_bidirectional=self.is_bidirectional,
            num_buckets=self.num_buckets,
            max_distance=self.max_distance,
        )
        return self.weight[buckets].movedim(-1, 1)


def alibi_slopes(num_heads: int) -> list[float]:
    """The slope of each head: a geometric progression that begins and ratios at 2^(-8 / heads).

    Source: ALiBi (arXiv 2108.12409), section 3; heads beyond a power of two take every other slope of the next one.

    Args:
        num_heads: how many.

    Returns:
        Positive slopes.

    >>> alibi_slopes(4)
    [0.25, 0.0625, 0.015625, 0.00390625]
    """
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    return slopes + [2 ** (-4 * (2 * head + 1) / power) for head in range(num_heads - power)]


class Alibi(nn.Module):
    """A penalty that grows with the distance, at a fixed slope for each head.

        A_ij <- A_ij - m_h |i - j|

    Source: ALiBi (arXiv 2108.12409); the symmetric form where a token sees both ways.

    Args:
        num_heads: heads.
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.slopes = alibi_slopes(num_heads)

    def forward(
        self, queries: Int[Tensor, "#batch length"], keys: Int[Tensor, "#batch source"]
    ) -> Float[Tensor, "#batch heads length source"]:
        """The bias of every query and key (see `RelativeBias.forward`)."""
        distances = (keys.unsqueeze(1) - queries.unsqueeze(2)).abs().float()
        slopes = torch.tensor(self.slopes, device=distances.device)
        return -slopes.view(-1, 1, 1) * distances.unsqueeze(1)


def add_to_mask(mask: Tensor, bias: Float[Tensor, "#batch heads length source"], dtype: torch.dtype) -> Tensor:
    """Join a bias and a mask in the form that attention functions add to the scores.

    Args:
        mask: True where a query may look, or numbers to add.
        bias: to add where it may.
        dtype: of the result.

    Returns:
        Numbers to add to the scores.
    """
    if mask.dtype == torch.bool:
        return bias.to(dtype).masked_fill(~mask, torch.finfo(dtype).min)
    return (bias.to(dtype) + mask).clamp(min=torch.finfo(dtype).min)
