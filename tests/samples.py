"""Tiny models, batches and golden files that several test modules share."""

import functools
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

GOLDEN = Path(__file__).parent / "golden"

BASE = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
TOKENS = {"num_attention_tokens": 16, "num_output_tokens": 20, "num_feed_forward_tokens": 48}
TINY = {**BASE, **TOKENS}
LINEAR = {**BASE, "projection": "linear", "intermediate_size": 80}

VARIANTS: dict[str, dict[str, Any]] = {
    "l2_norm_gelu": TINY,
    "gelu_l2_norm": {**TINY, "score": "gelu_l2_norm"},
    "softmax": {**TINY, "score": "softmax"},
    "gelu": {**TINY, "score": "gelu"},
    "learned score scale": {**TINY, "learn_score_scale": True},
    "grouped queries": {**TINY, "num_key_value_heads": 2},
    "untied head": {**TINY, "tie_word_embeddings": False},
    "rms norm": {**TINY, "norm": "rms"},
    "no positions": {**TINY, "positions": "none"},
    "token lists": {
        **TINY,
        "num_attention_tokens": [16, {"query": 5, "key": 7, "value": 11}],
        "num_output_tokens": [9, 20],
        "num_feed_forward_tokens": [48, 31],
    },
    "narrow heads": {**TINY, "head_dim": 6, "rope_parameters": {"partial_rotary_factor": 1.0}},
    "linear": LINEAR,
    "linear with biases": {**LINEAR, "use_bias": True},
    "parallel residual": {**LINEAR, "use_bias": True, "use_parallel_residual": True},
    "gated": {**LINEAR, "feed_forward": "glu", "hidden_act": "silu", "norm": "rms", "num_key_value_heads": 1},
    "linear attention": {**BASE, "projection": "linear", "feed_forward": "pattention", "num_feed_forward_tokens": 48},
    "linear feed-forward": {**TINY, "num_feed_forward_tokens": None, "feed_forward": "mlp", "intermediate_size": 80},
}
"""Configurations that differ from the tiny one in what a model is made of."""

PLACEMENTS = ("post", "deep", "sub", "peri", "normformer")
PLACED = {
    f"{placement}, {name}": {**fields, "norm_placement": placement}
    for placement in PLACEMENTS
    for name, fields in (("tokens", TINY), ("linear", LINEAR))
}
"""Every norm placement but `pre`, with each projection."""

POSITIONED = {
    "xpos": {**TINY, "positions": "xpos"},
    "learned positions": {**LINEAR, "positions": "learned", "max_position_embeddings": 20, "position_offset": 2},
    "sinusoidal positions": {**TINY, "positions": "sinusoidal", "scale_embedding": True},
    "relative bias": {**LINEAR, "positions": "relative_bias", "relative_attention_num_buckets": 8},
    "alibi": {**TINY, "positions": "alibi"},
}
"""Every position scheme but rotary and none."""

VARIANTS |= PLACED | POSITIONED


def build(cls: type, fields: dict[str, Any], *, factor: float = 4.0, seed: int = 0):
    """A model in evaluation mode with its fresh weights times a factor: at std 0.02 a missing mask goes unseen.

    Norms and biases stay as they are, and so do Xavier's weights, which are nine times as large at these widths:
    more would amplify rounding beyond all bounds.
    """
    from gnomon import GnomonConfig

    torch.manual_seed(seed)
    model = cls(GnomonConfig(**fields)).eval()
    factor = 1.0 if model.config.initialization in ("magneto", "deepnet") else factor
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and not name.endswith("score_scale"):
                parameter.mul_(factor)
    return model


def language_model(variant: str = "l2_norm_gelu", **changes: Any):
    """A causal language model of a variant."""
    from gnomon import GnomonForCausalLM

    return build(GnomonForCausalLM, {**VARIANTS[variant], **changes})


def random_ids(*shape: int, seed: int = 1, vocab_size: int = 64) -> Tensor:
    """Token ids."""
    return torch.randint(vocab_size, shape, generator=torch.Generator().manual_seed(seed))


@functools.cache
def golden(name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the config of a golden file."""
    with safe_open(GOLDEN / f"{name}.safetensors", framework="pt") as file:
        metadata = file.metadata() or {}
        return {key: file.get_tensor(key) for key in file.keys()}, json.loads(metadata.get("config", "{}"))  # noqa: SIM118


def parameters_of(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The checkpoint inside a golden file."""
    return {name.removeprefix("param."): t for name, t in tensors.items() if name.startswith("param.")}
