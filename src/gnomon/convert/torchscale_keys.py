"""The keyword arguments of torchscale's configuration classes, what they mean here, and their defaults."""

import difflib
from collections.abc import Mapping
from typing import Any

ENCODER, DECODER = "encoder", "decoder"
PROJECT = "torchscale"

SIDE_KEYS: dict[str, tuple[str, Any]] = {
    "embed_dim": ("hidden_size", 768),
    "attention_heads": ("num_attention_heads", 12),
    "ffn_embed_dim": ("intermediate_size", 3072),
}
"""Key behind `encoder_` or `decoder_` -> our field and the value of an absent key."""

KEYS: dict[str, tuple[str, Any]] = {
    "dropout": ("hidden_dropout", 0.0),
    "attention_dropout": ("attention_dropout", 0.0),
    "drop_path_rate": ("drop_path_rate", 0.0),
    "layernorm_eps": ("norm_eps", 1e-5),
}
"""Key -> our field and the value of an absent key."""

ACTIVATIONS = {"gelu": "gelu", "relu": "relu", "swish": "silu"}
"""torchscale's name -> ours."""

ALONE: dict[str, tuple[Any, str]] = {
    "activation_dropout": (0.0, "feed-forward layers have no dropout inside"),
    "layernorm_embedding": (False, "no norm follows the embeddings"),
    "moe_freq": (0, "feed-forward layers are no mixtures of experts"),
    "use_xmoe": (False, "feed-forward layers are no mixtures of experts"),
    "xpos_scale_base": (512, "xPos has the scale of its paper"),
    "flash_attention": (False, "torchscale's kernel passes over padding masks"),
    "segment_length": (None, "attention is not dilated"),
    "dilated_ratio": (None, "attention is not dilated"),
    "seq_parallel": (False, "attention is not dilated"),
}
"""Key -> the only value that can be converted (torchscale's default), and why."""

UNUSED = {
    "bert_init": False,
    "checkpoint_activations": False,
    "fsdp": False,
    "ddp_rank": 0,
    "moe_top1_expert": False,
    "moe_expert_count": 0,
    "moe_gating_use_fp32": True,
    "moe_eval_capacity_token_fraction": 0.25,
    "moe_second_expert_policy": "random",
    "moe_normalize_gate_prob_before_dropping": False,
}
"""Keys, with their defaults, that say nothing about what loaded weights compute (without experts)."""

DEFAULTS: dict[str, Any] = {
    **{key: default for key, (_, default) in KEYS.items()},
    **{key: default for key, (default, _) in ALONE.items()},
    **UNUSED,
    "multiway": False,
    "activation_fn": "gelu",
    "no_scale_embedding": True,
    "rel_pos_buckets": 0,
    "max_rel_pos": 0,
    "xpos_rel_pos": False,
    "deepnorm": False,
    "subln": True,
    "vocab_size": -1,
    "no_output_layer": False,
}
"""Keys of every class, with the value of an absent key."""

OWN: dict[tuple[str, ...], dict[str, Any]] = {
    (ENCODER,): {
        "max_source_positions": 1024,
        "normalize_output": True,
        "share_encoder_input_output_embed": False,
        "img_size": 224,
        "patch_size": 16,
        "in_chans": 3,
    },
    (DECODER,): {"max_target_positions": 1024, "share_decoder_input_output_embed": False},
    (ENCODER, DECODER): {
        "max_source_positions": 1024,
        "max_target_positions": 1024,
        "normalize_output": True,
        "share_all_embeddings": False,
        "share_decoder_input_output_embed": False,
    },
}
"""The stacks of a class -> keys that it has by itself."""

SHARED = {
    (ENCODER,): "share_encoder_input_output_embed",
    (DECODER,): "share_decoder_input_output_embed",
    (ENCODER, DECODER): "share_all_embeddings",
}
"""The stacks of a class -> the key that says that there is one table."""

OFFSET = 2
"""The first row of a position table that is used, as in fairseq."""


def complete(config: Mapping[str, Any], sides: tuple[str, ...]) -> dict[str, Any]:
    """Every key of a configuration class with its value.

    Args:
        config: the keyword arguments of the class.
        sides: its stacks.

    Returns:
        The keyword arguments and the defaults of the others.

    Raises:
        ValueError: for an unknown key (with the nearest known one), which torchscale itself drops without a word, or
            a value that asks for what our models do not have.
        TypeError: for a value of the wrong type.
    """
    known = {**DEFAULTS, **OWN[sides]}
    for side in sides:
        known |= {f"{side}_{key}": default for key, (_, default) in SIDE_KEYS.items()}
        known |= {f"{side}_layers": 12, f"{side}_normalize_before": True}
    for key, value in config.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "leave it out"
            raise ValueError(f"unknown key {key!r} in the torchscale configuration; {hint}")
        wanted, reason = ALONE.get(key, (value, ""))
        if value != wanted and not (wanted is None and value == ""):
            raise ValueError(f"{key} must be {wanted} to be converted, since here {reason}; got {value!r}")
        kind = type(known[key])
        if known[key] is not None and type(value) is not kind and (kind, type(value)) != (float, int):
            raise TypeError(f"{key} of the torchscale configuration is of type {kind.__name__}; got {value!r}")
    if config.get("multiway") and sides != (ENCODER,):
        raise ValueError(
            "multiway must be False for a decoder, which torchscale never tells where to split, so that its second "
            "branch does nothing; got True"
        )
    return {**known, **config}
