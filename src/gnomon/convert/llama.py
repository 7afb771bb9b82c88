"""Llama as transformers stores it (SmolLM2 and others): pre-norm, RMS norms, gated units, shared keys and values."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from transformers import LlamaConfig

from gnomon.convert.hub import Settings
from gnomon.convert.tables import Layout
from gnomon.models.config import GnomonConfig
from gnomon.models.text import GnomonForCausalLM

LAYER, OURS = "model.layers.{layer}", "model.layers.{layer}"

LAYOUT = Layout(
    project="Llama",
    names={
        "model.embed_tokens.weight": "model.embed_tokens.weight",
        f"{LAYER}.self_attn.q_proj.weight": f"{OURS}.attention.query.weight",
        f"{LAYER}.self_attn.k_proj.weight": f"{OURS}.attention.key.weight",
        f"{LAYER}.self_attn.v_proj.weight": f"{OURS}.attention.value.weight",
        f"{LAYER}.self_attn.o_proj.weight": f"{OURS}.attention.output.weight",
        f"{LAYER}.mlp.gate_proj.weight": f"{OURS}.feed_forward.gate.weight",
        f"{LAYER}.mlp.up_proj.weight": f"{OURS}.feed_forward.up.weight",
        f"{LAYER}.mlp.down_proj.weight": f"{OURS}.feed_forward.down.weight",
        f"{LAYER}.input_layernorm.weight": f"{OURS}.attention_residual.before.weight",
        f"{LAYER}.post_attention_layernorm.weight": f"{OURS}.feed_forward_residual.before.weight",
        "model.norm.weight": "model.norm.weight",
        "lm_head.weight": "lm_head.weight",
    },
    num_layers="num_hidden_layers",
    sizes={
        "vocab_size": ("model.embed_tokens.weight", 0),
        "hidden_size": ("model.embed_tokens.weight", 1),
        "intermediate_size": (f"{LAYER}.mlp.gate_proj.weight", 0),
    },
    copies={"lm_head.weight": "model.embed_tokens.weight"},
    prefix="model.",
)

SETTINGS = Settings(
    project="Llama",
    config_class=LlamaConfig,
    architecture="LlamaForCausalLM",
    keys={
        "vocab_size": "vocab_size",
        "hidden_size": "hidden_size",
        "num_hidden_layers": "num_hidden_layers",
        "num_attention_heads": "num_attention_heads",
        "num_key_value_heads": "num_key_value_heads",
        "head_dim": "head_dim",
        "intermediate_size": "intermediate_size",
        "attention_dropout": "attention_dropout",
        "max_position_embeddings": "max_position_embeddings",
        "initializer_range": "initializer_range",
        "rms_norm_eps": "norm_eps",
        "tie_word_embeddings": "tie_word_embeddings",
        "use_cache": "use_cache",
        "bos_token_id": "bos_token_id",
        "eos_token_id": "eos_token_id",
        "pad_token_id": "pad_token_id",
    },
    activation="hidden_act",
    ours={
        "projection": "linear",
        "feed_forward": "glu",
        "norm_placement": "pre",
        "norm": "rms",
        "final_norm": "rms",
        "positions": "rotary",
        "use_bias": False,
        "scale_embedding": False,
        "use_parallel_residual": False,
        "hidden_dropout": 0.0,
    },
    theirs={"attention_bias": False, "mlp_bias": False},
    rotary="whole",
)


def from_llama(state_dict: Mapping[str, Tensor], config: Mapping[str, Any]) -> GnomonForCausalLM:
    """Build our model from a Llama checkpoint.

    Args:
        state_dict: tensors by transformers' names, of any floating dtype.
        config: the mapping of its config.json.

    Returns:
        The model in float32 and in evaluation mode.

    Raises:
        ValueError: for names that are missing or left over, shapes that contradict the configuration, or a
            configuration that asks for what our models do not have (scaled rotary positions, biases).
    """
    return LAYOUT.read(state_dict, SETTINGS.read(config), GnomonForCausalLM)


def to_llama(model: GnomonForCausalLM) -> dict[str, Tensor]:
    """Write our model as a Llama checkpoint, the model's own numbers bit for bit.

    Args:
        model: a linear pre-norm model with RMS norms, gated feed-forward layers and rotary positions, grown or not.

    Returns:
        Tensors by transformers' names.

    Raises:
        ValueError: when Llama cannot be such a model.
    """
    config_to_llama(model.config)
    return LAYOUT.write(model)


def config_to_llama(config: GnomonConfig) -> dict[str, Any]:
    """The config.json that belongs to `to_llama`.

    Args:
        config: of our model.

    Returns:
        The mapping.

    Raises:
        ValueError: when Llama cannot be such a model.
    """
    return SETTINGS.write(config)


__all__ = ["config_to_llama", "from_llama", "to_llama"]
