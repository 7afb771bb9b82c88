"""GPT-2 as transformers stores it, to a linear pre-norm model with learned positions and back."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import GPT2Config

from gnomon.convert.hub import Settings
from gnomon.convert.tables import Layout, Parts, transposed
from gnomon.models.config import GnomonConfig
from gnomon.models.text import GnomonForCausalLM

LAYER, OURS = "transformer.h.{layer}", "model.layers.{layer}"
SITES = ("query", "key", "value")


def split_columns(fused: Tensor, _: GnomonConfig) -> Sequence[Tensor]:
    """Take the fused projection apart: query, key and value side by side, stored input by output."""
    return [part.T for part in fused.chunk(3, dim=-1)] if fused.dim() == 2 else fused.chunk(3)


def join_columns(parts: Sequence[Tensor], _: GnomonConfig) -> Tensor:
    """The inverse of `split_columns`."""
    return torch.cat([part.T if part.dim() == 2 else part for part in parts], dim=-1)


def fused(part: str) -> Parts:
    """The fused projection's weight or bias."""
    return Parts(tuple(f"{OURS}.attention.{site}.{part}" for site in SITES), split_columns, join_columns)


LAYOUT = Layout(
    project="GPT-2",
    names={
        "transformer.wte.weight": "model.embed_tokens.weight",
        "transformer.wpe.weight": "model.embed_positions.weight",
        f"{LAYER}.attn.c_attn.weight": fused("weight"),
        f"{LAYER}.attn.c_attn.bias": fused("bias"),
        f"{LAYER}.attn.c_proj.weight": transposed(f"{OURS}.attention.output.weight"),
        f"{LAYER}.attn.c_proj.bias": f"{OURS}.attention.output.bias",
        f"{LAYER}.mlp.c_fc.weight": transposed(f"{OURS}.feed_forward.up.weight"),
        f"{LAYER}.mlp.c_fc.bias": f"{OURS}.feed_forward.up.bias",
        f"{LAYER}.mlp.c_proj.weight": transposed(f"{OURS}.feed_forward.down.weight"),
        f"{LAYER}.mlp.c_proj.bias": f"{OURS}.feed_forward.down.bias",
        f"{LAYER}.ln_1.weight": f"{OURS}.attention_residual.before.weight",
        f"{LAYER}.ln_1.bias": f"{OURS}.attention_residual.before.bias",
        f"{LAYER}.ln_2.weight": f"{OURS}.feed_forward_residual.before.weight",
        f"{LAYER}.ln_2.bias": f"{OURS}.feed_forward_residual.before.bias",
        "transformer.ln_f.weight": "model.norm.weight",
        "transformer.ln_f.bias": "model.norm.bias",
        "lm_head.weight": "lm_head.weight",
    },
    num_layers="n_layer",
    sizes={
        "vocab_size": ("transformer.wte.weight", 0),
        "n_embd": ("transformer.wte.weight", 1),
        "n_positions": ("transformer.wpe.weight", 0),
        "n_inner": (f"{LAYER}.mlp.c_fc.bias", 0),
    },
    copies={"lm_head.weight": "transformer.wte.weight"},
    prefix="transformer.",
    passed_over=r"\.attn\.(bias|masked_bias)$",
)

SETTINGS = Settings(
    project="GPT-2",
    config_class=GPT2Config,
    architecture="GPT2LMHeadModel",
    keys={
        "vocab_size": "vocab_size",
        "n_embd": "hidden_size",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "n_inner": "intermediate_size",
        "n_positions": "max_position_embeddings",
        "resid_pdrop": "hidden_dropout",
        "attn_pdrop": "attention_dropout",
        "initializer_range": "initializer_range",
        "layer_norm_epsilon": "norm_eps",
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
        "norm_placement": "pre",
        "norm": "layer",
        "final_norm": "layer",
        "positions": "learned",
        "position_offset": 0,
        "use_bias": True,
        "scale_embedding": False,
        "use_parallel_residual": False,
    },
    theirs={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
)


def from_gpt2(state_dict: Mapping[str, Tensor], config: Mapping[str, Any]) -> GnomonForCausalLM:
    """Build our model from a GPT-2 checkpoint.

    Args:
        state_dict: tensors by transformers' names, with or without `transformer.`, of any floating dtype.
        config: the mapping of its config.json.

    Returns:
        The model in float32 and in evaluation mode.

    Raises:
        ValueError: for names that are missing or left over, shapes that contradict the configuration, or a
            configuration that asks for what our models do not have.
    """
    ours = SETTINGS.read(config)
    embedding = config.get("embd_pdrop", GPT2Config.embd_pdrop)
    if embedding != ours.hidden_dropout:
        raise ValueError(
            f"GPT-2 models are converted with one dropout of embeddings and sublayers; this one has embd_pdrop "
            f"{embedding} and resid_pdrop {ours.hidden_dropout}: make both the same in its config.json"
        )
    return LAYOUT.read(state_dict, ours, GnomonForCausalLM)


def to_gpt2(model: GnomonForCausalLM) -> dict[str, Tensor]:
    """Write our model as a GPT-2 checkpoint, the model's own numbers bit for bit.

    Args:
        model: a linear pre-norm model with biases and learned positions, grown or not.

    Returns:
        Tensors by transformers' names.

    Raises:
        ValueError: when GPT-2 cannot be such a model.
    """
    config_to_gpt2(model.config)
    return LAYOUT.write(model)


def config_to_gpt2(config: GnomonConfig) -> dict[str, Any]:
    """The config.json that belongs to `to_gpt2`.

    Args:
        config: of our model.

    Returns:
        The mapping.

    Raises:
        ValueError: when GPT-2 cannot be such a model.
    """
    return SETTINGS.write(config, embd_pdrop=config.hidden_dropout)


__all__ = ["config_to_gpt2", "from_gpt2", "to_gpt2"]
