"""The fields of a model's configuration: defaults, what follows from what, and token counts, without torch.

`GnomonConfig` is these fields with types and checks; the cost accounting and `gnomon info` read them from a plain
mapping, so that neither has to import torch.
"""

from collections.abc import Mapping
from typing import Any

from gnomon.models.audio_fields import AUDIO_FIELDS, resolve_audio

DEFAULTS: dict[str, Any] = {
    "vocab_size": None,
    "hidden_size": 768,
    "num_hidden_layers": None,
    "encoder_layers": None,
    "decoder_layers": None,
    "num_attention_heads": 12,
    "num_key_value_heads": None,
    "head_dim": None,
    "intermediate_size": None,
    "hidden_act": "gelu",
    "projection": "pattention",
    "feed_forward": None,
    "num_attention_tokens": None,
    "num_output_tokens": None,
    "num_feed_forward_tokens": None,
    "score": "l2_norm_gelu",
    "learn_score_scale": False,
    "norm_placement": "pre",
    "norm": None,
    "final_norm": None,
    "norm_eps": 1e-5,
    "residual_scale": None,
    "use_parallel_residual": False,
    "initialization": None,
    "initialization_flavor": "paper",
    "initializer_range": 0.02,
    "positions": None,
    "position_offset": 0,
    "rope_parameters": None,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "relative_attention_bidirectional": None,
    "scale_embedding": False,
    "max_position_embeddings": 2048,
    "use_bias": False,
    "tie_word_embeddings": True,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "drop_path_rate": 0.0,
    "classifier_pooling": None,
    "image_size": None,
    "patch_size": None,
    "num_channels": None,
    "patch_projection": None,
    "num_patch_tokens": None,
    "stem_conv_channels": None,
    "use_class_token": None,
    "use_image_padding": None,
    "num_modalities": None,
    "multiway": None,
    "num_modality_tokens": None,
    **dict.fromkeys(AUDIO_FIELDS),
    "use_cache": True,
    "is_decoder": None,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "decoder_start_token_id": None,
}
"""The default of every field; None means that it follows from others (see `resolve`)."""

VOCABULARY = 50304
"""Rows of the embedding table of a model of text, where nothing else is asked for."""

IMAGE_DEFAULTS: dict[str, Any] = {
    "patch_size": 16,
    "num_channels": 3,
    "patch_projection": "linear",
    "use_class_token": True,
    "use_image_padding": False,
    "positions": "learned",
    "is_decoder": False,
}
"""What follows for a model of images, which is one with an `image_size`."""

PLACEMENT_INITIALIZATIONS = {"sub": "magneto", "deep": "deepnet"}
"""The initialization that belongs to a norm placement, and to no other."""

NO_FINAL_NORM = ("post", "deep")
"""Norm placements whose last block ends in a norm."""

ROPE_DEFAULTS = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}

ATTENTION_SITES = ("query", "key", "value")
SITES = (*ATTENTION_SITES, "output", "feed_forward")
"""Where a layer can have parameter tokens."""

TOKEN_FIELDS = ("num_attention_tokens", "num_output_tokens", "num_feed_forward_tokens")

TokenCount = int | dict[str, int]
"""One count for all three of query, key and value, or one each."""


def resolve(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fill every field of a configuration that follows from others.

    Args:
        fields: some or all fields; those that are no field of a model (a checkpoint's `architectures`, ...) are kept.

    Returns:
        A new mapping with every field of `DEFAULTS` decided.
    """
    full = {**DEFAULTS, **fields}
    heads, width = full["num_attention_heads"], full["hidden_size"]
    pattention = full["projection"] == "pattention"

    def default(name: str, value: Any) -> None:
        if full[name] is None:
            full[name] = value

    resolve_audio(full)
    if full["image_size"] is None:
        if full["num_mel_bins"] is None:
            default("vocab_size", VOCABULARY)
        default("positions", "rotary")
    else:
        for name, value in IMAGE_DEFAULTS.items():
            default(name, value)
        if full["patch_projection"] == "pattention":
            default("num_patch_tokens", width)
    full["is_encoder_decoder"] = bool(full["encoder_layers"] and full["decoder_layers"])
    default("num_hidden_layers", sum(side_layers(full)) if full["is_encoder_decoder"] else 12)
    default("num_key_value_heads", heads)
    default("head_dim", width // heads if heads else None)
    default("feed_forward", "pattention" if pattention else "mlp")
    default("norm", "layer_plain" if pattention else "layer")
    last = "layer" if full["norm"] == "layer_plain" else full["norm"]
    default("final_norm", "none" if full["norm_placement"] in NO_FINAL_NORM else last)
    own = PLACEMENT_INITIALIZATIONS.get(full["norm_placement"])
    default("initialization", own or ("tokenformer" if pattention else "normal"))
    if pattention:
        default("num_attention_tokens", width)
        default("num_output_tokens", width)
    if full["feed_forward"] == "pattention":
        default("num_feed_forward_tokens", 4 * width)
    else:
        default("intermediate_size", 4 * width)
    if full["num_modalities"] is not None:
        default("multiway", "separate")
        if full["multiway"] == "tokens":
            default("num_modality_tokens", width)
    if full["positions"] == "rotary":
        full["rope_parameters"] = {**ROPE_DEFAULTS, **(full["rope_parameters"] or {})}
    return full


def side_layers(fields: Mapping[str, Any]) -> tuple[int, int]:
    """How many layers the encoder and the decoder have; a single stack is one of them.

    Args:
        fields: resolved fields; `is_decoder` tells what a single stack is (a decoder where it is unset).

    Returns:
        (N, M), 0 for the side that is not there.
    """
    if fields["encoder_layers"] and fields["decoder_layers"]:
        return fields["encoder_layers"], fields["decoder_layers"]
    layers = fields["num_hidden_layers"]
    return (layers, 0) if fields["is_decoder"] is False else (0, layers)


def extents(size: int | list[int]) -> tuple[int, int]:
    """Height and width of an image or a patch.

    Args:
        size: one number for both, or [height, width].

    Returns:
        Both.
    """
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def image_grid(fields: Mapping[str, Any]) -> tuple[int, int]:
    """How many patches a model's images have, down and across; a last one that is not filled counts.

    Args:
        fields: resolved fields of a model of images.

    Returns:
        Rows and columns.
    """
    (height, width), (down, across) = extents(fields["image_size"]), extents(fields["patch_size"])
    return -(-height // down), -(-width // across)


def layer_tokens(fields: Mapping[str, Any], layer: int) -> dict[str, int]:
    """The parameter tokens of one layer, zero where a site is linear.

    Args:
        fields: resolved fields.
        layer: its index; a decoder's layers are counted after those of its encoder.

    Returns:
        A count for each of `SITES`.
    """

    def entry(name: str) -> TokenCount:
        value = fields[name]
        count: TokenCount = value[layer] if isinstance(value, list | tuple) else value
        return count

    counts = dict.fromkeys(SITES, 0)
    if fields["projection"] == "pattention":
        attention = entry("num_attention_tokens")
        for site in ATTENTION_SITES:
            counts[site] = attention[site] if isinstance(attention, dict) else attention
        output = entry("num_output_tokens")
        counts["output"] = output  # type: ignore[assignment]  # checked to be an int
    if fields["feed_forward"] == "pattention":
        counts["feed_forward"] = entry("num_feed_forward_tokens")  # type: ignore[assignment]
    return counts


def compact(counts: list[TokenCount]) -> TokenCount | list[TokenCount]:
    """The shortest form of one count a layer: a single one where all layers agree.

    Args:
        counts: one entry a layer.

    Returns:
        The value to write into a token field.
    """
    shortened = [
        next(iter(count.values())) if isinstance(count, dict) and len(set(count.values())) == 1 else count
        for count in counts
    ]
    return shortened[0] if all(count == shortened[0] for count in shortened) else shortened


def check_tokens(name: str, value: Any, num_layers: int) -> None:
    """Refuse a token field that is not a count, a mapping of counts, or a list with one of these a layer.

    Args:
        name: the field, one of `TOKEN_FIELDS`.
        value: what it holds.
        num_layers: of the model.

    Raises:
        ValueError: naming the field, the rule and the value.
    """
    entries = value if isinstance(value, list | tuple) else [value]
    if isinstance(value, list | tuple) and len(value) != num_layers:
        raise ValueError(f"{name} as a list needs one entry for each of the {num_layers} layers; got {len(value)}")
    for entry in entries:
        counts = [entry]
        if isinstance(entry, dict) and name == "num_attention_tokens":
            if set(entry) != set(ATTENTION_SITES):
                raise ValueError(f"{name} as a mapping needs exactly the keys query, key and value; got {entry}")
            counts = list(entry.values())
        if any(not isinstance(count, int) or isinstance(count, bool) or count < 1 for count in counts):
            raise ValueError(f"{name} takes whole numbers of at least 1; got {entry!r}")
