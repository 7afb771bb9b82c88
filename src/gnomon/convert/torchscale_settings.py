"""torchscale's configuration classes, translated from and to ours."""

from collections.abc import Mapping, Sequence
from typing import Any

from gnomon.convert.tables import require
from gnomon.convert.torchscale_keys import (
    ACTIVATIONS,
    DECODER,
    ENCODER,
    KEYS,
    OFFSET,
    PROJECT,
    SHARED,
    SIDE_KEYS,
    complete,
)
from gnomon.models.blocks import depths, residual_scale
from gnomon.models.config import GnomonConfig


def config_from_torchscale(
    config: Mapping[str, Any],
    sides: tuple[str, ...],
    *,
    vocab_size: int,
    position_rows: int,
    has_images: bool = False,
) -> GnomonConfig:
    """Translate the keyword arguments of a configuration class.

    Args:
        config: them.
        sides: the stacks of the class.
        vocab_size: rows of the embedding table, where the configuration does not tell.
        position_rows: of the table of learned positions (never in the configuration), 0 if there is none.
        has_images: whether the encoder reads patches of images instead of tokens, as BEiT-3's branch A.

    Returns:
        Our configuration.

    Raises:
        ValueError: for unknown keys, or keys that ask for what our models do not have.
        TypeError: for a value of the wrong type.
    """
    theirs = complete(config, sides)
    fields = {ours: theirs[key] for key, (ours, _) in KEYS.items()}
    for key, (ours, _) in SIDE_KEYS.items():
        fields[ours] = _common(theirs, sides, key)
    placement = _norm_placement(theirs, sides)
    has_final_norm = placement in ("pre", "sub")
    if has_final_norm and not theirs.get("normalize_output", True):
        if sides != (ENCODER,):
            raise ValueError("normalize_output of an encoder-decoder must be True, since both stacks end alike here")
        has_final_norm = False
    if theirs["activation_fn"] not in ACTIVATIONS:
        raise ValueError(f"activation_fn must be one of {', '.join(ACTIVATIONS)}; got {theirs['activation_fn']!r}")
    layers = {f"{side}_layers": theirs[f"{side}_layers"] for side in sides}
    if len(sides) == 1:
        layers = {"num_hidden_layers": layers.popitem()[1]}
    longest = [theirs[key] for key in ("max_source_positions", "max_target_positions") if key in theirs]
    tokens = {
        **_positions(theirs, sides, position_rows),
        "vocab_size": theirs["vocab_size"] if theirs["vocab_size"] > 0 else vocab_size,
        "tie_word_embeddings": theirs[SHARED[sides]],
        "max_position_embeddings": position_rows - OFFSET if position_rows else max(longest),
    }
    return GnomonConfig(
        **fields,
        **layers,
        **(_images(theirs) if has_images else tokens),
        num_modalities=2 if theirs["multiway"] else None,
        is_decoder=None if len(sides) > 1 else sides == (DECODER,),
        projection="linear",
        feed_forward="mlp",
        hidden_act=ACTIVATIONS[theirs["activation_fn"]],
        use_bias=True,
        norm="layer",
        norm_placement=placement,
        final_norm="layer" if has_final_norm else "none",
        scale_embedding=not theirs["no_scale_embedding"],
    )


def _common(theirs: Mapping[str, Any], sides: Sequence[str], key: str) -> Any:
    """The value of a key that every stack has, and that must be the same in both."""
    values = [theirs[f"{side}_{key}"] for side in sides]
    if values[0] != values[-1]:
        raise ValueError(
            f"encoder_{key} and decoder_{key} must be the same to be converted, since both stacks of a model are "
            f"built alike here; got {values[0]} and {values[-1]}"
        )
    return values[0]


def _norm_placement(theirs: Mapping[str, Any], sides: tuple[str, ...]) -> str:
    """Our name of what torchscale's classes make of `deepnorm`, `subln` and `normalize_before`."""
    is_deep, is_sub = theirs["deepnorm"], theirs["subln"] and not theirs["deepnorm"]
    if ENCODER in sides and (is_deep or is_sub):  # the encoder's and the pair's class decide by themselves
        return "deep" if is_deep else "sub"
    is_before = _common(theirs, sides, "normalize_before")
    if is_deep and is_before:
        raise ValueError(
            "deepnorm with decoder_normalize_before True multiplies the residual stream of a pre-norm decoder by "
            "alpha, which is no DeepNorm (it lets the stream grow by alpha in every sublayer) and is not built here: "
            "where the weights were trained as DeepNorm, give decoder_normalize_before False"
        )
    if is_sub and not is_before:
        raise ValueError(
            "subln (True unless given) with decoder_normalize_before False puts inner norms into a post-norm decoder, "
            "which is not built here: where the weights have none, give subln False"
        )
    return "deep" if is_deep else "sub" if is_sub else "pre" if is_before else "post"


def _positions(theirs: Mapping[str, Any], sides: Sequence[str], rows: int) -> dict[str, Any]:
    """Our fields of the position scheme."""
    has_bias = theirs["rel_pos_buckets"] > 0 and theirs["max_rel_pos"] > 0
    found = {"learned": rows > 0, "xpos": theirs["xpos_rel_pos"], "relative_bias": has_bias}
    schemes = [name for name, is_there in found.items() if is_there]
    if len(schemes) > 1:
        raise ValueError(
            "a model has one position scheme here (learned positions: embed_positions in the weights; xpos: "
            f"xpos_rel_pos; relative_bias: rel_pos_buckets and max_rel_pos); got {' and '.join(schemes)}"
        )
    if has_bias and len(sides) > 1:
        raise ValueError(
            "rel_pos_buckets must be 0 for an encoder-decoder, whose cross-attention has no positions here and a "
            f"relative bias in torchscale; got {theirs['rel_pos_buckets']}"
        )
    if not schemes:
        return {"positions": "none"}
    fields: dict[str, dict[str, Any]] = {
        "learned": {"position_offset": OFFSET},
        "xpos": {},
        "relative_bias": {
            "relative_attention_num_buckets": theirs["rel_pos_buckets"],
            "relative_attention_max_distance": theirs["max_rel_pos"],
            "relative_attention_bidirectional": True,
        },
    }
    return {"positions": schemes[0], **fields[schemes[0]]}


def _images(theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Our fields of a model of images, with a class token and one learned position for each patch."""
    if not theirs["no_scale_embedding"]:
        raise ValueError("no_scale_embedding must be True for images, whose patches are not scaled here; got False")
    return {
        "vocab_size": None,
        "image_size": theirs["img_size"],
        "patch_size": theirs["patch_size"],
        "num_channels": theirs["in_chans"],
        "positions": "learned",
        "use_class_token": True,
    }


def sides_of(config: GnomonConfig) -> tuple[str, ...]:
    """The stacks of a model."""
    return (ENCODER, DECODER) if config.is_encoder_decoder else (ENCODER,) if config.is_decoder is False else (DECODER,)


def config_to_torchscale(config: GnomonConfig) -> dict[str, Any]:
    """The keyword arguments of torchscale's configuration class that belong to `to_torchscale`.

    Args:
        config: of our model; where `architectures` names a model without a head, no_output_layer is set.

    Returns:
        The mapping.

    Raises:
        ValueError: when torchscale cannot be such a model.
    """
    sides, placement = sides_of(config), config.norm_placement
    _check(config, sides)
    theirs: dict[str, Any] = {key: getattr(config, ours) for key, (ours, _) in KEYS.items()}
    for side in sides:
        theirs |= {f"{side}_{key}": getattr(config, ours) for key, (ours, _) in SIDE_KEYS.items()}
        theirs[f"{side}_layers"] = getattr(config, f"{side}_layers") or config.num_hidden_layers
        theirs[f"{side}_normalize_before"] = placement in ("pre", "sub")
        theirs[f"max_{'source' if side == ENCODER else 'target'}_positions"] = config.max_position_embeddings
    if ENCODER in sides:
        theirs["normalize_output"] = config.final_norm == "layer" or placement in ("post", "deep")
    if DECODER in sides:
        theirs["share_decoder_input_output_embed"] = config.tie_word_embeddings
    if config.positions == "relative_bias":
        theirs["rel_pos_buckets"] = config.relative_attention_num_buckets
        theirs["max_rel_pos"] = config.relative_attention_max_distance
    return theirs | {
        SHARED[sides]: config.tie_word_embeddings,
        "activation_fn": next(name for name, ours in ACTIVATIONS.items() if ours == config.hidden_act),
        "deepnorm": placement == "deep",
        "subln": placement == "sub",
        "no_scale_embedding": not config.scale_embedding,
        "xpos_rel_pos": config.positions == "xpos",
        "multiway": config.num_modalities is not None,
        "vocab_size": config.vocab_size,
        "no_output_layer": (config.architectures or [""])[0] in ("GnomonModel", "GnomonEncoderDecoderModel"),
    }


def _check(config: GnomonConfig, sides: tuple[str, ...]) -> None:
    """Refuse what torchscale's classes cannot say.

    Raises:
        ValueError: naming the field and both values.
    """
    final = {"pre": ("layer", "none") if sides == (ENCODER,) else "layer", "post": "none", "deep": "none"}
    fields: dict[str, Any] = {
        "projection": "linear",
        "feed_forward": "mlp",
        "use_bias": True,
        "norm": "layer",
        "norm_placement": ("pre", "post", "deep", "sub"),
        "hidden_act": tuple(ACTIVATIONS.values()),
        "use_parallel_residual": False,
        "image_size": None,
        "num_mel_bins": None,
        "num_modalities": (None, 2) if sides == (ENCODER,) else None,
        "multiway": (None, "separate"),
        "num_key_value_heads": config.num_attention_heads,
        "head_dim": config.hidden_size // config.num_attention_heads,
        "positions": ("learned", "xpos", "none", *(("relative_bias",) if len(sides) == 1 else ())),
    }
    require(config, PROJECT, fields)
    require(config, PROJECT, {"final_norm": final.get(config.norm_placement, final["pre"])})
    if config.positions == "learned":
        require(config, PROJECT, {"position_offset": OFFSET})
    if config.positions == "relative_bias":
        unset = (None,) if sides == (ENCODER,) else ()
        require(config, PROJECT, {"relative_attention_bidirectional": (True, *unset)})
    for is_decoder in (side == DECODER for side in sides):
        held, alpha = residual_scale(config, is_decoder), depths(config, is_decoder).deepnet.alpha
        if config.norm_placement == "deep" and held != alpha:
            raise ValueError(
                f"the torchscale layout computes DeepNorm's alpha from the depth, {alpha:.6g}; this model has "
                f"residual_scale {held:.6g}, held when it grew: set residual_scale to null if its output may change"
            )


__all__ = ["config_from_torchscale", "config_to_torchscale", "sides_of"]
