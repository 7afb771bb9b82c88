"""The published sizes of TokenFormer, and for each a Transformer of the same size, as one table without torch."""

import math
from typing import TYPE_CHECKING, Any

from gnomon.models.sizes import VOCABULARY

if TYPE_CHECKING:
    from gnomon.models.config import GnomonConfig


def _tokenformer(layers: int, width: int, heads: int, attention: int, feed_forward: int, **more: Any) -> dict[str, Any]:
    return {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_attention_tokens": attention,
        "num_output_tokens": attention,
        "num_feed_forward_tokens": feed_forward,
        **more,
    }


# Rows of TF tables 1, 3 and 6: layers, width, heads, tokens of each of query, key, value and output, feed-forward.
TOKENFORMERS: dict[str, dict[str, Any]] = {
    "150m": _tokenformer(12, 768, 12, 768, 3072),
    "450m": _tokenformer(24, 1024, 16, 1024, 4096),
    "900m": _tokenformer(32, 1280, 16, 1280, 5120),
    "1.5b": _tokenformer(40, 1536, 16, 1536, 6144),
    "growth-124m": _tokenformer(12, 768, 12, 576, 2304, max_position_embeddings=1024),
    "growth-354m": _tokenformer(12, 768, 12, 2140, 8560, max_position_embeddings=1024),
    "growth-757m": _tokenformer(12, 768, 12, 4850, 19400, max_position_embeddings=1024),
    "growth-1.4b": _tokenformer(12, 768, 12, 8620, 34480, max_position_embeddings=1024),
    "owt2-354m": _tokenformer(24, 1024, 16, 768, 3072, max_position_embeddings=1024),
    "owt2-757m": _tokenformer(24, 1024, 16, 1792, 7168, max_position_embeddings=1024),
    "tiny": _tokenformer(4, 128, 4, 128, 512, vocab_size=96, max_position_embeddings=256),
}

VISION = {"image_size": 224, "patch_size": 16, "num_labels": 1000}
VISION_TOKENFORMERS: dict[str, dict[str, Any]] = {
    "vit-b": _tokenformer(12, 768, 12, 768, 3072, **VISION),
    "vit-b-matched": _tokenformer(12, 768, 12, 576, 2304, **VISION),
    "vit-l": _tokenformer(24, 1024, 16, 1024, 4096, **VISION),
    "vit-l-matched": _tokenformer(24, 1024, 16, 768, 3072, **VISION),
}
"""TokenFormers for images of the paper's table 2; `matched` has the parameters of a plain ViT."""


def _twin(tokenformer: dict[str, Any]) -> dict[str, Any]:
    """A Transformer (linear, pre) with as many parameters as a TokenFormer, at its depth and number of heads.

    A Pattention layer holds 2 d (4 n + m) weights, a linear one 4 d^2 + 2 d f, with f its feed-forward width. At the
    TokenFormer's own d, f = 4 n + m - 2 d makes the layers equal; where that f is below d or above 8 d, the width is
    the one at which f = 4 d would fit, in whole heads of a size that rotates, and f then takes up the difference.
    """
    width, layers = tokenformer["hidden_size"], tokenformer["num_hidden_layers"]
    heads, rows = tokenformer["num_attention_heads"], tokenformer.get("vocab_size", VOCABULARY)
    tokens = 4 * tokenformer["num_attention_tokens"] + tokenformer["num_feed_forward_tokens"]
    d, feed_forward = width, tokens - 2 * width
    if not width <= feed_forward <= 8 * width:
        total, step = 2 * layers * width * tokens + rows * width, 8 * heads
        # 12 L d^2 + rows d = total, solved for d
        d = round((math.sqrt(rows**2 + 48 * layers * total) - rows) / (24 * layers) / step) * step
        feed_forward = round((total - rows * d - 4 * layers * d * d) / (2 * layers * d))
    kept = ("vocab_size", "max_position_embeddings", *VISION)
    more = {key: tokenformer[key] for key in kept if key in tokenformer}
    return {
        "hidden_size": d,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "projection": "linear",
        "intermediate_size": feed_forward,
        **more,
    }


_ALL = TOKENFORMERS | VISION_TOKENFORMERS
PRESETS: dict[str, dict[str, Any]] = {f"tokenformer-{name}": fields for name, fields in _ALL.items()} | {
    f"transformer-{name}": _twin(fields) for name, fields in _ALL.items()
}
"""Configuration fields by preset name."""


def presets() -> list[str]:
    """The names of all presets.

    Returns:
        The names, TokenFormers first.
    """
    return list(PRESETS)


def preset_fields(name: str) -> dict[str, Any]:
    """The configuration fields of a preset, without torch.

    Args:
        name: one of `presets()`.

    Returns:
        A new mapping.

    Raises:
        ValueError: naming the presets that exist.
    """
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}; there are {', '.join(PRESETS)}")
    return dict(PRESETS[name])


def preset(name: str) -> "GnomonConfig":
    """The configuration of a published size or of its Transformer twin.

    Args:
        name: one of `presets()`.

    Returns:
        A new `GnomonConfig`.

    Raises:
        ValueError: naming the presets that exist.
    """
    from gnomon.models.config import GnomonConfig

    return GnomonConfig(**preset_fields(name))
