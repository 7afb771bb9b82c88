"""transformers' caches in the form that the blocks take."""

from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache

from gnomon.models.config import GnomonConfig


def new_cache(config: GnomonConfig) -> Cache:
    """An empty cache of a decoder, with room for a memory where it has cross-attention.

    Args:
        config: of the model.

    Returns:
        The cache.
    """
    if config.is_encoder_decoder:
        return EncoderDecoderCache(DynamicCache(config=config), DynamicCache(config=config))
    return DynamicCache(config=config)


class PairedCache:
    """An `EncoderDecoderCache` for a block: itself for the tokens, `memory` for the encoder's output.

    Args:
        cache: holds the keys and values.
    """

    def __init__(self, cache: EncoderDecoderCache) -> None:
        self.tokens = cache.self_attention_cache
        self.memory = KeptMemory(cache)

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
        """Append new keys and values of a layer and return all of them."""
        return self.tokens.update(key_states, value_states, layer_idx)


class KeptMemory:
    """The memory's keys and values, computed once for each layer.

    Args:
        cache: holds them, and which layers have them.
    """

    def __init__(self, cache: EncoderDecoderCache) -> None:
        self.cache = cache

    def read(self, layer_idx: int) -> tuple[Tensor, Tensor] | None:
        """Return a layer's keys and values, or None before its first `update`."""
        if not self.cache.is_updated.get(layer_idx):
            return None
        layer = self.cache.cross_attention_cache.layers[layer_idx]
        return layer.keys, layer.values

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
        """Keep a layer's keys and values."""
        self.cache.is_updated[layer_idx] = True
        return self.cache.cross_attention_cache.update(key_states, value_states, layer_idx)
