"""Kosmos-2's text decoder as transformers stores it: a Sub-LN model with sinusoidal positions and biases."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from transformers import Kosmos2TextConfig

from gnomon.convert.hub import Settings
from gnomon.convert.tables import Layout
from gnomon.models.config import GnomonConfig
from gnomon.models.text import GnomonForCausalLM

LAYER, OURS = "model.layers.{layer}", "model.layers.{layer}"
WHOLE_MODEL, TEXT = "kosmos-2", "text_model."
"""The whole model's type, and where its checkpoint keeps the text decoder."""

SITES = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "output", "inner_attn_ln": "inner_norm"}
UNITS = {"fc1": "up", "fc2": "down", "ffn_layernorm": "inner_norm"}
NORMS = {"self_attn_layer_norm": "attention_residual", "final_layer_norm": "feed_forward_residual"}
PARTS = ("weight", "bias")

LAYOUT = Layout(
    project="Kosmos-2",
    names={
        "model.embed_tokens.weight": "model.embed_tokens.weight",
        **{f"{LAYER}.self_attn.{t}.{p}": f"{OURS}.attention.{o}.{p}" for t, o in SITES.items() for p in PARTS},
        **{f"{LAYER}.ffn.{t}.{p}": f"{OURS}.feed_forward.{o}.{p}" for t, o in UNITS.items() for p in PARTS},
        **{f"{LAYER}.{t}.{p}": f"{OURS}.{o}.before.{p}" for t, o in NORMS.items() for p in PARTS},
        "model.layer_norm.weight": "model.norm.weight",
        "model.layer_norm.bias": "model.norm.bias",
        "lm_head.weight": "lm_head.weight",
    },
    num_layers="layers",
    sizes={
        "vocab_size": ("model.embed_tokens.weight", 0),
        "embed_dim": ("model.embed_tokens.weight", 1),
        "ffn_dim": (f"{LAYER}.ffn.fc1.bias", 0),
    },
    copies={"lm_head.weight": "model.embed_tokens.weight"},
    prefix="model.",
    passed_over=r"embed_positions\.",  # sines and cosines, which are computed
)

SETTINGS = Settings(
    project="Kosmos-2 text",
    config_class=Kosmos2TextConfig,
    architecture="Kosmos2TextForCausalLM",
    keys={
        "vocab_size": "vocab_size",
        "embed_dim": "hidden_size",
        "layers": "num_hidden_layers",
        "attention_heads": "num_attention_heads",
        "ffn_dim": "intermediate_size",
        "max_position_embeddings": "max_position_embeddings",
        "dropout": "hidden_dropout",
        "attention_dropout": "attention_dropout",
        "init_std": "initializer_range",
        "layer_norm_eps": "norm_eps",
        "scale_embedding": "scale_embedding",
        "tie_word_embeddings": "tie_word_embeddings",
        "use_cache": "use_cache",
        "bos_token_id": "bos_token_id",
        "eos_token_id": "eos_token_id",
        "pad_token_id": "pad_token_id",
    },
    activation="activation_function",
    ours={
        "projection": "linear",
        "feed_forward": "mlp",
        "norm_placement": "sub",
        "norm": "layer",
        "final_norm": "layer",
        "positions": "sinusoidal",
        "use_bias": True,
        "use_parallel_residual": False,
    },
    theirs={"add_cross_attention": False, "activation_dropout": 0.0, "layerdrop": 0.0},
)


def from_kosmos2(state_dict: Mapping[str, Tensor], config: Mapping[str, Any]) -> GnomonForCausalLM:
    """Build our model from Kosmos-2's text decoder; of a whole model, what sees images is left behind.

    Differs: the dropout of the embeddings is applied once, where Kosmos-2 applies it twice.

    Args:
        state_dict: tensors by transformers' names, of any floating dtype.
        config: the mapping of its config.json, the text decoder's or the whole model's.

    Returns:
        The model in float32 and in evaluation mode.

    Raises:
        ValueError: for names that are missing or left over, shapes that contradict the configuration, or a
            configuration that asks for what our models do not have.
    """
    if config.get("model_type") == WHOLE_MODEL:
        config = config.get("text_config") or {}
        state_dict = {n.removeprefix(TEXT): tensor for n, tensor in state_dict.items() if n.startswith(TEXT)}
    first = config.get("pad_token_id", Kosmos2TextConfig.pad_token_id) + 1
    return LAYOUT.read(state_dict, SETTINGS.read(config, position_offset=first), GnomonForCausalLM)


def to_kosmos2(model: GnomonForCausalLM) -> dict[str, Tensor]:
    """Write our model as a Kosmos-2 text decoder, the model's own numbers bit for bit.

    Args:
        model: a linear Sub-LN model with biases and sinusoidal positions.

    Returns:
        Tensors by transformers' names.

    Raises:
        ValueError: when Kosmos-2's text decoder cannot be such a model.
    """
    config_to_kosmos2(model.config)
    return LAYOUT.write(model)


def config_to_kosmos2(config: GnomonConfig) -> dict[str, Any]:
    """The config.json that belongs to `to_kosmos2`.

    Args:
        config: of our model.

    Returns:
        The mapping.

    Raises:
        ValueError: when Kosmos-2's text decoder cannot be such a model.
    """
    if config.pad_token_id is None or config.position_offset != config.pad_token_id + 1:
        raise ValueError(
            "the Kosmos-2 text layout counts positions from pad_token_id + 1; this model has position_offset "
            f"{config.position_offset} and pad_token_id {config.pad_token_id}"
        )
    return SETTINGS.write(config)


__all__ = ["config_to_kosmos2", "from_kosmos2", "to_kosmos2"]
