"""GPT-NeoX as transformers stores it (Pythia and others), to a linear pre-norm model and back."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import GPTNeoXConfig

from gnomon.convert.hub import Settings
from gnomon.convert.tables import Layout, Parts
from gnomon.models.config import GnomonConfig
from gnomon.models.text import GnomonForCausalLM

LAYER, OURS = "gpt_neox.layers.{layer}", "model.layers.{layer}"
SITES = ("query", "key", "value")


def split_heads(fused: Tensor, config: GnomonConfig) -> Sequence[Tensor]:
    """Take the fused projection apart, whose rows are ordered by head, then query, key and value."""
    by_head = fused.unflatten(0, (config.num_attention_heads, 3, config.head_dim))
    return [part.flatten(0, 1) for part in by_head.unbind(1)]


def join_heads(parts: Sequence[Tensor], config: GnomonConfig) -> Tensor:
    """The inverse of `split_heads`."""
    heads = [part.unflatten(0, (config.num_attention_heads, config.head_dim)) for part in parts]
    return torch.stack(heads, dim=1).flatten(0, 2)


def fused(part: str) -> Parts:
    """The fused projection's weight or bias."""
    return Parts(tuple(f"{OURS}.attention.{site}.{part}" for site in SITES), split_heads, join_heads)


LAYOUT = Layout(
    project="GPT-NeoX",
    names={
        "gpt_neox.embed_in.weight": "model.embed_tokens.weight",
        f"{LAYER}.attention.query_key_value.weight": fused("weight"),
        f"{LAYER}.attention.query_key_value.bias": fused("bias"),
        f"{LAYER}.attention.dense.weight": f"{OURS}.attention.output.weight",
        f"{LAYER}.attention.dense.bias": f"{OURS}.attention.output.bias",
        f"{LAYER}.mlp.dense_h_to_4h.weight": f"{OURS}.feed_forward.up.weight",
        f"{LAYER}.mlp.dense_h_to_4h.bias": f"{OURS}.feed_forward.up.bias",
        f"{LAYER}.mlp.dense_4h_to_h.weight": f"{OURS}.feed_forward.down.weight",
        f"{LAYER}.mlp.dense_4h_to_h.bias": f"{OURS}.feed_forward.down.bias",
        f"{LAYER}.input_layernorm.weight": f"{OURS}.attention_residual.before.weight",
        f"{LAYER}.input_layernorm.bias": f"{OURS}.attention_residual.before.bias",
        f"{LAYER}.post_attention_layernorm.weight": f"{OURS}.feed_forward_residual.before.weight",
        f"{LAYER}.post_attention_layernorm.bias": f"{OURS}.feed_forward_residual.before.bias",
        "gpt_neox.final_layer_norm.weight": "model.norm.weight",
        "gpt_neox.final_layer_norm.bias": "model.norm.bias",
        "embed_out.weight": "lm_head.weight",
    },
    num_layers="num_hidden_layers",
    sizes={
        "vocab_size": ("gpt_neox.embed_in.weight", 0),
        "hidden_size": ("gpt_neox.embed_in.weight", 1),
        "intermediate_size": (f"{LAYER}.mlp.dense_h_to_4h.bias", 0),
    },
    copies={"lm_head.weight": "embed_out.weight", "embed_out.weight": "gpt_neox.embed_in.weight"},
    prefix="gpt_neox.",
    passed_over=r"rotary_emb\.inv_freq$|\.attention\.(bias|masked_bias)$",
)

SETTINGS = Settings(
    project="GPT-NeoX",
    config_class=GPTNeoXConfig,
    architecture="GPTNeoXForCausalLM",
    keys={
        "vocab_size": "vocab_size",
        "hidden_size": "hidden_size",
        "num_hidden_layers": "num_hidden_layers",
        "num_attention_heads": "num_attention_heads",
        "intermediate_size": "intermediate_size",
        "hidden_dropout": "hidden_dropout",
        "attention_dropout": "attention_dropout",
        "max_position_embeddings": "max_position_embeddings",
        "initializer_range": "initializer_range",
        "layer_norm_eps": "norm_eps",
        "use_parallel_residual": "use_parallel_residual",
        "tie_word_embeddings": "tie_word_embeddings",
        "use_cache": "use_cache",
        "bos_token_id": "bos_token_id",
        "eos_token_id": "eos_token_id",
        "pad_token_id": "pad_token_id",
    },
    activation="hidden_act",
    ours={
        "projection": "linear",
        "feed_forward": "mlp",
        "norm_placement": "pre",
        "norm": "layer",
        "final_norm": "layer",
        "positions": "rotary",
        "use_bias": True,
        "scale_embedding": False,
    },
    theirs={"attention_bias": True},
    rotary="partial",
)


def from_gpt_neox(state_dict: Mapping[str, Tensor], config: Mapping[str, Any]) -> GnomonForCausalLM:
    """Build our model from a GPT-NeoX checkpoint.

    Args:
        state_dict: tensors by transformers' names (`embed_out` or `lm_head`), of any floating dtype.
        config: the mapping of its config.json.

    Returns:
        The model in float32 and in evaluation mode.

    Raises:
        ValueError: for names that are missing or left over, shapes that contradict the configuration, or a
            configuration that asks for what our models do not have.
    """
    return LAYOUT.read(state_dict, SETTINGS.read(config), GnomonForCausalLM)


def to_gpt_neox(model: GnomonForCausalLM) -> dict[str, Tensor]:
    """Write our model as a GPT-NeoX checkpoint, the model's own numbers bit for bit.

    Args:
        model: a linear pre-norm model with biases and rotary positions, grown or not.

    Returns:
        Tensors by the names of the released files.

    Raises:
        ValueError: when GPT-NeoX cannot be such a model.
    """
    config_to_gpt_neox(model.config)
    return LAYOUT.write(model)


def config_to_gpt_neox(config: GnomonConfig) -> dict[str, Any]:
    """The config.json that belongs to `to_gpt_neox`.

    Args:
        config: of our model.

    Returns:
        The mapping.

    Raises:
        ValueError: when GPT-NeoX cannot be such a model.
    """
    return SETTINGS.write(config)


__all__ = ["config_to_gpt_neox", "from_gpt_neox", "to_gpt_neox"]
