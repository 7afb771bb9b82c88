"""The official TokenFormer layout: names, config keys, and where its tau is not ours.

`NAMES` and `CONFIG_KEYS` are the only places where the foreign names stand; both directions read them.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gnomon.models.config import GnomonConfig
from gnomon.models.sizes import layer_tokens
from gnomon.models.text import GnomonForCausalLM
from gnomon.nn.functional import default_score_scale
from gnomon.nn.projections import Pattention

FIRST_LAYER = 2
"""`sequential.0` is the embedding and `.1` a reshaping without parameters; the final norm is `.{L + 3}`."""

NAMES: dict[str, str] = {
    "sequential.0.word_embeddings.weight": "model.embed_tokens.weight",
    "sequential.{layer}.attention.query.key_param_tokens": "model.layers.{layer}.attention.query.key_tokens",
    "sequential.{layer}.attention.query.value_param_tokens": "model.layers.{layer}.attention.query.value_tokens",
    "sequential.{layer}.attention.key.key_param_tokens": "model.layers.{layer}.attention.key.key_tokens",
    "sequential.{layer}.attention.key.value_param_tokens": "model.layers.{layer}.attention.key.value_tokens",
    "sequential.{layer}.attention.value.key_param_tokens": "model.layers.{layer}.attention.value.key_tokens",
    "sequential.{layer}.attention.value.value_param_tokens": "model.layers.{layer}.attention.value.value_tokens",
    "sequential.{layer}.attention.proj.key_param_tokens": "model.layers.{layer}.attention.output.key_tokens",
    "sequential.{layer}.attention.proj.value_param_tokens": "model.layers.{layer}.attention.output.value_tokens",
    "sequential.{layer}.mlp.key_param_tokens": "model.layers.{layer}.feed_forward.key_tokens",
    "sequential.{layer}.mlp.value_param_tokens": "model.layers.{layer}.feed_forward.value_tokens",
    "sequential.{last}.norm.weight": "model.norm.weight",
    "sequential.{last}.norm.bias": "model.norm.bias",
}
"""Official name -> our name."""

CONFIG_KEYS: dict[str, tuple[str, Any]] = {
    "num_layers": ("num_hidden_layers", None),
    "hidden_size": ("hidden_size", None),
    "num_attention_heads": ("num_attention_heads", None),
    "qkv_slot_num": ("num_attention_tokens", None),
    "proj_slot_num": ("num_output_tokens", None),
    "ffn_slot_num": ("num_feed_forward_tokens", None),
    "norm_activation_type": ("score", "l2_norm_gelu"),
    "layernorm_epsilon": ("norm_eps", 1e-5),
    "max_position_embeddings": ("max_position_embeddings", 2048),
}
"""Official key -> our field and the value of an absent key (GPT-NeoX's; None: the key is required)."""

BLOCK_NORMS = {"layernorm_nonparam": "layer_plain", "layernorm": "layer", "rmsnorm": "rms"}


def config_from_tokenformer(config: Mapping[str, Any], *, vocab_size: int) -> GnomonConfig:
    """Translate an official configuration.

    Args:
        config: the mapping of the official YAML; keys that only steer its training are ignored.
        vocab_size: rows of the embedding table (never in the file).

    Returns:
        Our configuration.

    Raises:
        ValueError: when a required key is missing or asks for what the released models never had.
    """
    official = {key.replace("-", "_"): value for key, value in config.items()}
    fields: dict[str, Any] = {"vocab_size": vocab_size, "is_decoder": True}
    for key, (field, default) in CONFIG_KEYS.items():
        if key not in official and default is None:
            raise ValueError(f"the TokenFormer config needs the key {key}; it has {', '.join(sorted(official))}")
        fields[field] = official.get(key, default)
    block_norm, final_norm = (
        official.get("norm", "layernorm_nonparam"),
        official.get("final_norm", "layernorm"),
    )
    if block_norm != "layernorm_nonparam" or final_norm != "layernorm":
        raise ValueError(
            "only the released TokenFormer norms can be converted, norm layernorm_nonparam and final_norm layernorm; "
            f"got norm {block_norm} and final_norm {final_norm}"
        )
    if official.get("pos_emb", "rotary") != "rotary" or official.get("no_weight_tying", False):
        raise ValueError(
            "only the released TokenFormer form can be converted, pos_emb rotary and no_weight_tying false; got "
            f"pos_emb {official.get('pos_emb')} and no_weight_tying {official.get('no_weight_tying')}"
        )
    rope = {
        "rope_theta": float(official.get("rotary_emb_base", 10000)),
        "partial_rotary_factor": float(official.get("rotary_pct", 1.0)),
    }
    return GnomonConfig(**fields, rope_parameters=rope)


def config_to_tokenformer(config: GnomonConfig) -> dict[str, Any]:
    """Translate our configuration into the official keys.

    Args:
        config: of a TokenFormer language model.

    Returns:
        The mapping, ready to be written as YAML.
    """
    official = {key: getattr(config, field) for key, (field, _) in CONFIG_KEYS.items()}
    return official | {
        "norm": "layernorm_nonparam",
        "final_norm": "layernorm",
        "pos_emb": "rotary",
        "rotary_pct": config.rope_parameters["partial_rotary_factor"],
        "rotary_emb_base": config.rope_parameters["rope_theta"],
        "no_weight_tying": False,
    }


def from_tokenformer(state_dict: Mapping[str, Tensor], config: Mapping[str, Any]) -> GnomonForCausalLM:
    """Build our model from an official checkpoint.

    Args:
        state_dict: tensors by their released names, of any floating dtype.
        config: the mapping of the official YAML.

    Returns:
        The model in float32, every tau at the square root of its token count (softmax: at the count).

    Raises:
        ValueError: for names that are missing or left over, shapes that contradict the config, or a config that
            cannot be converted.
    """
    table = state_dict.get("sequential.0.word_embeddings.weight")
    if table is None:
        raise ValueError(
            "a TokenFormer checkpoint needs sequential.0.word_embeddings.weight; "
            f"got {len(state_dict)} tensors, the first named {next(iter(state_dict), 'nothing')!r}"
        )
    ours = config_from_tokenformer(config, vocab_size=table.shape[0])
    names = tensor_names(ours.num_hidden_layers)
    _check_names(set(state_dict), set(names))
    model = GnomonForCausalLM(ours)
    targets = dict(model.named_parameters())
    with torch.no_grad():
        for official, name in names.items():
            source, target = state_dict[official], targets[name]
            if source.shape != target.shape:
                raise ValueError(
                    f"{official} has shape {tuple(source.shape)}, but the config makes it {tuple(target.shape)}; "
                    "use the config that belongs to this checkpoint"
                )
            target.copy_(source)
    return model


def to_tokenformer(model: GnomonForCausalLM) -> dict[str, Tensor]:
    """Write our model in the official layout.

    The layout has no tau: its code uses the value that follows from the token count. Where a model's tau differs, the
    ratio is folded into the value tokens if the score is linear in tau (gelu_l2_norm, softmax).

    Args:
        model: a TokenFormer language model.

    Returns:
        Tensors by their released names; where nothing had to be folded, the model's own numbers.

    Raises:
        ValueError: when the model is no TokenFormer of the released form, or tau cannot be folded (l2_norm_gelu).
    """
    _check_released_form(model.config)
    tensors = dict(model.state_dict())
    for name, module in model.named_modules():
        if isinstance(module, Pattention):
            ratio = _tau_ratio(name, module)
            if ratio != 1.0:
                tensors[f"{name}.value_tokens"] = tensors[f"{name}.value_tokens"] * ratio
    names = tensor_names(model.config.num_hidden_layers)
    return {official: tensors[ours].detach().clone() for official, ours in names.items()}


def tensor_names(num_layers: int) -> dict[str, str]:
    """The table of names for a number of layers.

    Args:
        num_layers: L.

    Returns:
        Official name -> our name, 10 L + 3 rows.
    """
    rows = {}
    for official, ours in NAMES.items():
        for layer in range(num_layers) if "{layer}" in official else (0,):
            rows[official.format(layer=layer + FIRST_LAYER, last=num_layers + 3)] = ours.format(layer=layer)
    return rows


def _check_names(given: set[str], expected: set[str]) -> None:
    # releases may carry buffers that hold no trained numbers
    given = {name for name in given if not re.search(r"rotary_emb\.inv_freq$|\.attention\.(bias|masked_bias)$", name)}
    if missing := sorted(expected - given):
        raise ValueError(f"the TokenFormer checkpoint lacks {len(missing)} tensors, the first {missing[0]}")
    if left_over := sorted(given - expected):
        raise ValueError(
            f"the TokenFormer checkpoint has {len(left_over)} tensors that its config leaves no place for, "
            f"the first {left_over[0]}; use the config that belongs to it"
        )


def _check_released_form(config: GnomonConfig) -> None:
    wanted = {"projection": "pattention", "feed_forward": "pattention", "norm": "layer_plain", "final_norm": "layer",
              "norm_placement": "pre", "positions": "rotary", "tie_word_embeddings": True,
              "num_key_value_heads": config.num_attention_heads}  # fmt: skip
    for field, value in wanted.items():
        if getattr(config, field) != value:
            raise ValueError(
                f"the official TokenFormer layout needs {field} {value}; this model has {getattr(config, field)}"
            )
    if config.score == "gelu":
        raise ValueError("the official TokenFormer layout has no score gelu; it knows l2_norm_gelu and two others")
    if config.head_dim * config.num_attention_heads != config.hidden_size:
        raise ValueError("the official TokenFormer layout needs head_dim = hidden_size / num_attention_heads")
    for layer in range(config.num_hidden_layers):
        tokens = layer_tokens(config.to_dict(), layer)
        same = tokens["query"] == tokens["key"] == tokens["value"]
        if not same or tokens != layer_tokens(config.to_dict(), 0):
            raise ValueError(
                "the official TokenFormer layout needs the same token counts in every layer, and one for query, key "
                f"and value; layer {layer} has {tokens}"
            )


def _tau_ratio(name: str, module: Pattention) -> float:
    """tau over the value that the official code would use; 1.0 where it is the same float32 number."""
    expected = default_score_scale(module.score, module.num_tokens)
    tau = float(module.score_scale.detach())  # type: ignore[union-attr]  # only the score gelu has none
    if expected is None or tau == float(torch.tensor(expected, dtype=torch.float32)) or tau == expected:
        return 1.0
    if module.score == "l2_norm_gelu":
        raise ValueError(
            f"the official TokenFormer layout has no score scale: {name} has {tau:.6g}, its code would use "
            f"sqrt({module.num_tokens}) = {math.sqrt(module.num_tokens):.6g}, and inside the GELU of l2_norm_gelu the "
            "ratio cannot be folded into the values; keep gnomon's own format, or train on with the score scale "
            "annealed to its default"
        )
    return tau / expected


__all__ = [
    "config_from_tokenformer",
    "config_to_tokenformer",
    "from_tokenformer",
    "tensor_names",
    "to_tokenformer",
]
