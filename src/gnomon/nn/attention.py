"""Token-token attention: multi-head, grouped-query, with the inner attention function as a slot."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from gnomon.nn.multiway import call
from gnomon.nn.positions import Rotation, rotate_queries_and_keys


@runtime_checkable
class Cache(Protocol):
    """Keys and values of earlier tokens; transformers' caches fit."""

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
        """Append new keys and values of a layer and return all of them."""
        ...


@runtime_checkable
class MemoryCache(Cache, Protocol):
    """Keys and values of a memory, computed once: a layer's are read again as soon as they are there."""

    def read(self, layer_idx: int) -> tuple[Tensor, Tensor] | None:
        """Return a layer's keys and values, or None before its first `update`."""
        ...


AttentionFunction = Callable[..., tuple[Tensor, Tensor | None]]
Rotate = Callable[[Tensor, Tensor, Rotation | None], tuple[Tensor, Tensor]]


def dot_product_attention(
    module: nn.Module,
    query: Float[Tensor, "batch heads length head"],
    key: Float[Tensor, "batch kv_heads source head"],
    value: Float[Tensor, "batch kv_heads source head"],
    attention_mask: Tensor | None,
    *,
    scaling: float,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Float[Tensor, "batch length heads head"], Float[Tensor, "batch heads length source"]]:
    """Scaled dot-product attention in plain torch.

        softmax(Q K^T * scaling + mask) V

    Source: Vaswani et al. 2017, eq. 1. Without a mask a causal module still looks only backwards, its queries being
    the last `length` of the `source` positions. A row that may see nothing sees everything evenly, and is not NaN.

    Args:
        module: the attention layer (`is_causal`, `training`).
        query: Q.
        key: K, fewer heads where queries share them.
        value: V.
        attention_mask: True (or 0.0) where a query may look; False (or a large negative number) where not.
        scaling: 1 / sqrt(head size).
        dropout: probability, while training.

    Returns:
        The outputs and the attention weights.
    """
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scores = query @ key.transpose(-1, -2) * scaling
    if attention_mask is None and getattr(module, "is_causal", False):
        length, source = scores.shape[-2:]
        attention_mask = torch.ones(length, source, dtype=torch.bool, device=scores.device).tril(source - length)
    if attention_mask is not None:
        attention_mask = attention_mask[..., : scores.shape[-1]]
        if attention_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
        else:
            scores = scores + attention_mask
    wide = torch.promote_types(scores.dtype, torch.float32)
    weights = torch.softmax(scores, dim=-1, dtype=wide).to(query.dtype)
    weights = F.dropout(weights, dropout, module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights


class Attention(nn.Module):
    """Multi-head attention whose four projections, rotation and inner function are given to it.

        MHA(x) = W_O norm( concat_h s_h softmax(Q_h K_h^T / sqrt(d_h)) V_h ),  Q, K, V = W_Q x, W_K x, W_V x

    With a memory m, keys and values come from it: K, V = W_K m, W_V m (cross-attention).

    Source: Vaswani et al. 2017; TF section 3.2 (each W a Pattention); MG section 2 (`inner_norm`, Sub-LN).

    Args:
        query: projection to num_heads * head_size.
        key: projection to num_key_value_heads * head_size.
        value: projection to num_key_value_heads * head_size.
        output: projection from num_heads * head_size.
        num_heads: of the queries.
        num_key_value_heads: of keys and values; divides num_heads.
        head_size: width of a head.
        layer_index: which layer of a cache is this one's.
        is_causal: whether a token sees only earlier ones.
        dropout: of the attention weights.
        attend: the inner attention function.
        rotate: how positions act on queries and keys.
        inner_norm: before the output projection.
        scale_heads: factors s_h of the heads' outputs.

    Raises:
        ValueError: when the key-value heads do not divide the heads.
    """

    def __init__(
        self,
        *,
        query: nn.Module,
        key: nn.Module,
        value: nn.Module,
        output: nn.Module,
        num_heads: int,
        num_key_value_heads: int,
        head_size: int,
        layer_index: int = 0,
        is_causal: bool = True,
        dropout: float = 0.0,
        attend: AttentionFunction = dot_product_attention,
        rotate: Rotate = rotate_queries_and_keys,
        inner_norm: nn.Module | None = None,
        scale_heads: nn.Module | None = None,
    ) -> None:
        super().__init__()
        if num_heads % num_key_value_heads:
            raise ValueError(f"num_key_value_heads must divide the {num_heads} heads; got {num_key_value_heads}")
        self.query, self.key, self.value, self.output = query, key, value, output
        self.inner_norm = nn.Identity() if inner_norm is None else inner_norm
        self.scale_heads = nn.Identity() if scale_heads is None else scale_heads
        self.head_size, self.layer_index, self.is_causal = head_size, layer_index, is_causal
        self.num_key_value_groups = num_heads // num_key_value_heads
        self.scaling = head_size**-0.5
        self.dropout = dropout
        self.attend, self.rotate = attend, rotate

    def forward(
        self,
        x: Float[Tensor, "batch length width"],
        *,
        memory: Float[Tensor, "batch source memory_width"] | None = None,
        mask: Tensor | None = None,
        positions: Rotation | None = None,
        cache: Any = None,
        modality_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Float[Tensor, "batch length width"], Tensor | None]:
        """Attend among the tokens of x and those in the cache, or from x to a memory.

        Args:
            x: the inputs.
            memory: what is attended to in place of x; it has no positions, and a `MemoryCache` computes it once.
            mask: where a query may look, in the form of the inner attention function.
            positions: of the tokens of x, for the rotation.
            cache: a `Cache` of earlier keys and values, to which these tokens' are appended; with a memory a
                `MemoryCache`.
            modality_ids: of the tokens of x, (batch, length), for projections and norms that are multiway.
            kwargs: passed to the inner attention function.

        Returns:
            The outputs, and the attention weights where the inner function has them.
        """
        query = self._heads(call(self.query, x, modality_ids))
        kept = cache.read(self.layer_index) if memory is not None and cache is not None else None
        if kept is not None:
            key, value = kept
        else:
            source = x if memory is None else memory
            key = self._heads(call(self.key, source, modality_ids))
            value = self._heads(call(self.value, source, modality_ids))
            if memory is None:
                query, key = self.rotate(query, key, positions)
            if cache is not None:
                key, value = cache.update(key, value, self.layer_index)
        dropout = self.dropout if self.training else 0.0
        mixed, weights = self.attend(self, query, key, value, mask, scaling=self.scaling, dropout=dropout, **kwargs)
        normed = call(self.inner_norm, self.scale_heads(mixed).flatten(-2), modality_ids)
        return call(self.output, normed, modality_ids), weights

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.head_size).transpose(1, 2)
