"""The official TokenFormer layout: names, config keys, and where its tau is not ours.

`LAYOUT` and `CONFIG_KEYS` are the only places where the foreign names stand; both directions read them.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gnomon.convert.tables import Layout, require
from gnomon.convert.vocabulary import never_sample_padding_rows
from gnomon.models.config import GnomonConfig
from gnomon.models.sizes import layer_tokens
from gnomon.models.text import GnomonForCausalLM
from gnomon.nn.functional import default_score_scale
from gnomon.nn.projections import Pattention

TABLE = "sequential.0.word_embeddings.weight"
LAYER, OURS = "sequential.{layer}", "model.layers.{layer}"

LAYOUT = Layout(
    project="TokenFormer",
    names={
        TABLE: "model.embed_tokens.weight",
        f"{LAYER}.attention.query.key_param_tokens": f"{OURS}.attention.query.key_tokens",
        f"{LAYER}.attention.query.value_param_tokens": f"{OURS}.attention.query.value_tokens",
        f"{LAYER}.attention.key.key_param_tokens": f"{OURS}.attention.key.key_tokens",
        f"{LAYER}.attention.key.value_param_tokens": f"{OURS}.attention.key.value_tokens",
        f"{LAYER}.attention.value.key_param_tokens": f"{OURS}.attention.value.key_tokens",
        f"{LAYER}.attention.value.value_param_tokens": f"{OURS}.attention.value.value_tokens",
        f"{LAYER}.attention.proj.key_param_tokens": f"{OURS}.attention.output.key_tokens",
        f"{LAYER}.attention.proj.value_param_tokens": f"{OURS}.attention.output.value_tokens",
        f"{LAYER}.mlp.key_param_tokens": f"{OURS}.feed_forward.key_tokens",
        f"{LAYER}.mlp.value_param_tokens": f"{OURS}.feed_forward.value_tokens",
        "sequential.{last}.norm.weight": "model.norm.weight",
        "sequential.{last}.norm.bias": "model.norm.bias",
    },
    num_layers="num_layers",
    sizes={
        "hidden_size": (TABLE, 1),
        "qkv_slot_num": (f"{LAYER}.attention.query.key_param_tokens", 0),
        "proj_slot_num": (f"{LAYER}.attention.proj.key_param_tokens", 0),
        "ffn_slot_num": (f"{LAYER}.mlp.key_param_tokens", 0),
    },
    copies={"tied_modules.embed.word_embeddings.weight": TABLE},  # the name in files of a pipeline run
    passed_over=r"rotary_emb\.inv_freq$|\.attention\.(bias|masked_bias)$",
    first_layer=2,  # `sequential.0` is the embedding and `.1` a reshaping without parameters
)

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

RELEASED = {
    "norm": "layernorm_nonparam",
    "final_norm": "layernorm",
    "pos_emb": "rotary",
    "no_weight_tying": False,
    "gpt_j_residual": False,
}
"""Official keys whose only value here is the released models' own."""

RELEASED_ROWS, RELEASED_IDS = 50304, 50277
"""Rows of the released tables, and the ids of their tokenizer (GPT-NeoX-20B's)."""


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
    for key, released in RELEASED.items():
        if official.get(key, released) != released:
            raise ValueError(
                f"only the released TokenFormer form can be converted, {key} {released}; got {key} {official[key]}"
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
    rope = config.rope_parameters
    turning = {"rotary_pct": rope["partial_rotary_factor"], "rotary_emb_base": rope["rope_theta"]}
    return official | RELEASED | turning


def from_tokenformer(
    state_dict: Mapping[str, Tensor], config: Mapping[str, Any], *, num_token_ids: int | None = None
) -> GnomonForCausalLM:
    """Build our model from an official checkpoint.

    Args:
        state_dict: tensors by their released names, or by those of a pipeline run, of any floating dtype.
        config: the mapping of the official YAML.
        num_token_ids: how many ids the tokenizer has; `generate` never emits one of the rows behind them. If None,
            50277 for a table of the released 50304 rows, and every row otherwise.

    Returns:
        The model in float32, every tau at the square root of its token count (softmax: at the count).

    Raises:
        ValueError: for names that are missing or left over, shapes that contradict the config, or a config that
            cannot be converted.
    """
    table = state_dict.get(TABLE, state_dict.get("tied_modules.embed.word_embeddings.weight"))
    if table is None or table.dim() != 2:
        raise ValueError(
            f"a TokenFormer checkpoint needs the table {TABLE}; "
            f"got {len(state_dict)} tensors, the first named {next(iter(state_dict), 'nothing')!r}"
        )
    model = LAYOUT.read(state_dict, config_from_tokenformer(config, vocab_size=table.shape[0]), GnomonForCausalLM)
    rows = model.config.vocab_size
    default = RELEASED_IDS if rows == RELEASED_ROWS else rows
    never_sample_padding_rows(model, default if num_token_ids is None else num_token_ids)
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
    tensors = dict(model.named_parameters())
    for name, module in model.named_modules():
        if isinstance(module, Pattention):
            ratio = _tau_ratio(name, module)
            if ratio != 1.0:
                values = module.value_tokens
                tensors[f"{name}.value_tokens"] = (values.double() * ratio).to(values.dtype)
    return LAYOUT.write(model, tensors)


def tensor_names(num_layers: int) -> dict[str, str]:
    """The table of names for a number of layers.

    Args:
        num_layers: L.

    Returns:
        Official name -> our name, 10 L + 3 rows.
    """
    return {official: parts.names[0] for official, parts in LAYOUT.expand(num_layers).items()}


def _check_released_form(config: GnomonConfig) -> None:
    require(
        config,
        "official TokenFormer",
        {
            "projection": "pattention",
            "feed_forward": "pattention",
            "norm": "layer_plain",
            "final_norm": "layer",
            "norm_placement": "pre",
            "positions": "rotary",
            "tie_word_embeddings": True,
            "num_key_value_heads": config.num_attention_heads,
            "score": ("l2_norm_gelu", "gelu_l2_norm", "softmax"),
            "head_dim": config.hidden_size // config.num_attention_heads,
        },
    )
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
