"""What the fields of a configuration may be, and how they have to fit together."""

import math
from typing import Any

from gnomon.models.audio_fields import check_audio
from gnomon.models.sizes import (
    IMAGE_DEFAULTS,
    PLACEMENT_INITIALIZATIONS,
    TOKEN_FIELDS,
    check_tokens,
    extents,
)
from gnomon.nn.feedforward import ACTIVATIONS
from gnomon.nn.functional import SCORES
from gnomon.nn.initialization import INITIALIZATIONS
from gnomon.nn.norms import NORMS
from gnomon.nn.placements import PLACEMENTS, has_inner_norm

CHOICES: dict[str, tuple[str, ...]] = {
    "projection": ("linear", "pattention"),
    "feed_forward": ("mlp", "glu", "pattention"),
    "score": tuple(SCORES),
    "norm_placement": tuple(PLACEMENTS),
    "norm": tuple(name for name in NORMS if name != "none"),
    "final_norm": tuple(NORMS),
    "initialization": tuple(INITIALIZATIONS),
    "initialization_flavor": ("paper", "torchscale"),
    "positions": ("rotary", "xpos", "learned", "sinusoidal", "sinusoidal_2d", "relative_bias", "alibi", "none"),
    "hidden_act": tuple(ACTIVATIONS),
}
"""The values of every field that is a choice."""

POSITIVE = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "encoder_layers",
    "decoder_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "max_position_embeddings",
    "relative_attention_num_buckets",
    "relative_attention_max_distance",
    "num_channels",
    "num_patch_tokens",
    "num_modality_tokens",
)
PROBABILITIES = ("hidden_dropout", "attention_dropout", "drop_path_rate")
POOLINGS = ("first", "mean", "last")
UNUSED = {"chunk_size_feed_forward": 0}
"""Fields that every transformers configuration has and that no model here reads, with their defaults."""


def check_fields(config: Any) -> None:
    """Refuse a configuration whose fields do not fit together.

    Args:
        config: a `GnomonConfig` with every field decided.

    Raises:
        ValueError: with the rule, the value and the remedy.
    """
    for name, choices in CHOICES.items():
        if getattr(config, name) not in choices:
            raise ValueError(f"{name} must be one of {', '.join(choices)}; got {getattr(config, name)!r}")
    for name in POSITIVE:
        if getattr(config, name) is not None and getattr(config, name) < 1:
            raise ValueError(f"{name} must be at least 1; got {getattr(config, name)}")
    for name in PROBABILITIES:
        if not 0.0 <= getattr(config, name) < 1.0:
            raise ValueError(f"{name} is a probability from 0 to below 1; got {getattr(config, name)}")
    for name in ("norm_eps", "initializer_range"):
        if not 0.0 < getattr(config, name) < math.inf:
            raise ValueError(f"{name} must be above 0 and finite; got {getattr(config, name)}")
    for name, value in UNUSED.items():
        if getattr(config, name) != value:
            raise ValueError(f"{name} has no meaning for gnomon's models; leave it at {value}")
    if config.num_attention_heads % config.num_key_value_heads:
        raise ValueError(
            f"num_key_value_heads must divide num_attention_heads ({config.num_attention_heads}); "
            f"got {config.num_key_value_heads}"
        )
    if (
        config.hidden_size % config.num_attention_heads
        and config.head_dim == config.hidden_size // config.num_attention_heads
    ):
        raise ValueError(
            f"hidden_size must be divisible by num_attention_heads ({config.num_attention_heads}) "
            f"unless head_dim is set; got {config.hidden_size}"
        )
    _check_sides(config)
    _check_projection(config)
    _check_placement(config)
    _check_positions(config)
    _check_rotary(config)
    _check_images(config)
    check_audio(config)
    _check_modalities(config)


def _check_images(config: Any) -> None:
    if config.image_size is None:
        for name in (*IMAGE_DEFAULTS, "num_patch_tokens", "stem_conv_channels"):
            if name not in ("positions", "is_decoder") and getattr(config, name) is not None:
                raise ValueError(f"{name} needs image_size, which makes a model of images; got {getattr(config, name)}")
        if config.positions == "sinusoidal_2d":
            raise ValueError("positions sinusoidal_2d needs image_size, since it numbers patches down and across")
        return
    for name in ("image_size", "patch_size"):
        size = getattr(config, name)
        numbers = size if isinstance(size, list) else [size, size]
        if len(numbers) != 2 or any(not isinstance(n, int) or isinstance(n, bool) or n < 1 for n in numbers):
            raise ValueError(f"{name} is a whole number of at least 1, or [height, width]; got {size}")
    check_divides(extents(config.image_size), config)
    if config.patch_projection not in CHOICES["projection"]:
        raise ValueError(
            f"patch_projection must be one of {', '.join(CHOICES['projection'])}; got {config.patch_projection!r}"
        )
    if config.num_patch_tokens is not None and config.patch_projection == "linear":
        raise ValueError("num_patch_tokens needs patch_projection: pattention, since nothing else has parameter tokens")
    _check_stem(config)
    if config.is_decoder or config.is_encoder_decoder:
        raise ValueError("a model of images is a single stack that looks both ways; leave is_decoder unset")
    if config.scale_embedding or config.position_offset:
        name = "scale_embedding" if config.scale_embedding else "position_offset"
        raise ValueError(f"{name} is for token embeddings, and image_size makes a model of images; leave it unset")
    if config.positions == "sinusoidal_2d" and (config.hidden_size % 4 or config.hidden_size < 8):
        raise ValueError(
            f"positions sinusoidal_2d needs a hidden_size of at least 8 that 4 divides; got {config.hidden_size}"
        )
    poolings = ("first", "mean") if config.use_class_token else ("mean",)
    if config.classifier_pooling not in (None, *poolings):
        raise ValueError(
            f"classifier_pooling of images is mean, or first with use_class_token; got {config.classifier_pooling!r}"
        )


def _check_stem(config: Any) -> None:
    channels = config.stem_conv_channels
    if channels is None:
        return
    if not channels or any(not isinstance(n, int) or isinstance(n, bool) or n < 2 for n in channels):
        raise ValueError(  # the layer norm of a single channel is zero whatever the image
            f"stem_conv_channels is a list of whole numbers of at least 2, one a convolution, or unset; got {channels}"
        )
    patch, step = extents(config.patch_size), 2 ** len(channels)
    if patch[0] % step or patch[1] % step:
        raise ValueError(
            f"each convolution of the stem halves the image, so {step} must divide the patches; got patches of "
            f"{patch[0]} x {patch[1]} pixels and stem_conv_channels {channels}"
        )


def _check_modalities(config: Any) -> None:
    if config.num_modalities is None:
        for name in ("multiway", "num_modality_tokens"):
            if getattr(config, name) is not None:
                raise ValueError(f"{name} needs num_modalities, of at least 2; got {getattr(config, name)!r}")
        return
    if config.num_modalities < 2:
        raise ValueError(f"num_modalities must be at least 2, or unset; got {config.num_modalities}")
    if config.multiway not in ("separate", "tokens"):
        raise ValueError(f"multiway must be one of separate, tokens; got {config.multiway!r}")
    if config.is_encoder_decoder:
        raise ValueError("num_modalities is for a single stack; got encoder_layers and decoder_layers: leave one out")
    if config.multiway == "tokens" and "pattention" not in (config.projection, config.feed_forward):
        raise ValueError(
            "multiway tokens needs parameter tokens; set projection to pattention, or multiway to separate"
        )
    if config.multiway == "separate" and config.num_modality_tokens is not None:
        raise ValueError("num_modality_tokens needs multiway: tokens; with separate copies leave it unset")


def check_divides(size: tuple[int, int], config: Any) -> None:
    """Refuse an image that does not fall into whole patches, unless it is to be padded.

    Args:
        size: height and width of the image.
        config: tells the patches, and whether images are padded.

    Raises:
        ValueError: with both sizes and the remedy.
    """
    patch = extents(config.patch_size)
    if not config.use_image_padding and (size[0] % patch[0] or size[1] % patch[1]):
        raise ValueError(
            f"patches of {patch[0]} x {patch[1]} pixels must divide the image; got {size[0]} x {size[1]}: resize it, "
            "or set use_image_padding to fill it up with zeros"
        )


def _check_sides(config: Any) -> None:
    sides = (config.encoder_layers, config.decoder_layers)
    if (sides[0] is None) != (sides[1] is None):
        raise ValueError(
            "encoder_layers and decoder_layers come together, for an encoder-decoder; "
            f"got {sides[0]} and {sides[1]}: a single stack has num_hidden_layers"
        )
    if config.is_encoder_decoder and config.num_hidden_layers != sum(sides):
        raise ValueError(
            f"num_hidden_layers of an encoder-decoder is encoder_layers + decoder_layers ({sum(sides)}); "
            f"got {config.num_hidden_layers}: leave it unset"
        )
    if config.is_encoder_decoder and config.is_decoder is not None:
        raise ValueError(
            f"is_decoder is for a single stack; leave it unset beside both layers, got {config.is_decoder}"
        )


def _check_placement(config: Any) -> None:
    has_inner_norm(config.norm_placement, config.feed_forward, config.score)
    if config.use_parallel_residual and (PLACEMENTS[config.norm_placement].outer or config.is_encoder_decoder):
        where = "an encoder-decoder" if config.is_encoder_decoder else f"norm_placement {config.norm_placement}"
        raise ValueError(
            "use_parallel_residual needs a single stack whose norms stand before the sublayers (norm_placement pre, "
            f"sub, peri or normformer); got {where}: leave it at false"
        )
    for placement, own in PLACEMENT_INITIALIZATIONS.items():
        if config.initialization == own and config.norm_placement != placement:
            raise ValueError(
                f"initialization {own} is derived for norm_placement {placement}; got {config.norm_placement}: change "
                "one of the two"
            )
    if config.initialization_flavor == "torchscale" and config.initialization not in PLACEMENT_INITIALIZATIONS.values():
        raise ValueError(
            f"initialization_flavor torchscale belongs to magneto and deepnet; got initialization "
            f"{config.initialization}: leave it at paper"
        )
    if config.residual_scale is None:
        return
    if not PLACEMENTS[config.norm_placement].scales_residual:
        raise ValueError(f"residual_scale needs norm_placement: deep; got {config.norm_placement}")
    scales = config.residual_scale if isinstance(config.residual_scale, list) else [config.residual_scale]
    numbers = all(isinstance(scale, int | float) and 0.0 < scale < math.inf for scale in scales)
    if not numbers or len(scales) != (2 if config.is_encoder_decoder else 1):
        raise ValueError(
            "residual_scale is a number above 0, or [encoder's, decoder's] for an encoder-decoder; "
            f"got {config.residual_scale}"
        )


def _check_positions(config: Any) -> None:
    if config.position_offset and config.positions not in ("learned", "sinusoidal"):
        raise ValueError(f"position_offset needs positions: learned or sinusoidal; got {config.positions}")
    if config.position_offset < 0:
        raise ValueError(f"position_offset must be at least 0; got {config.position_offset}")
    if config.positions == "xpos" and config.head_dim % 2:
        raise ValueError(f"positions xpos turns pairs, so head_dim must be even; got {config.head_dim}")
    if config.positions == "sinusoidal" and (config.hidden_size % 2 or config.hidden_size < 4):
        raise ValueError(f"positions sinusoidal needs an even hidden_size of at least 4; got {config.hidden_size}")
    if config.relative_attention_bidirectional is not None and config.positions != "relative_bias":
        raise ValueError(f"relative_attention_bidirectional needs positions: relative_bias; got {config.positions}")
    if config.positions == "relative_bias":
        least = 4 if config.relative_attention_bidirectional is not False else 2
        if config.relative_attention_num_buckets < least or config.relative_attention_num_buckets % 2:
            raise ValueError(
                f"relative_attention_num_buckets must be even and at least {least}; "
                f"got {config.relative_attention_num_buckets}"
            )
        if config.relative_attention_max_distance <= config.relative_attention_num_buckets // 2:
            raise ValueError(
                "relative_attention_max_distance must exceed half of relative_attention_num_buckets "
                f"({config.relative_attention_num_buckets}); got {config.relative_attention_max_distance}"
            )
    if config.classifier_pooling is not None and config.classifier_pooling not in POOLINGS:
        raise ValueError(f"classifier_pooling must be one of {', '.join(POOLINGS)}; got {config.classifier_pooling!r}")


def _check_projection(config: Any) -> None:
    pattention = "pattention" in (config.projection, config.feed_forward)
    for name in TOKEN_FIELDS:
        owner = "feed_forward" if name == "num_feed_forward_tokens" else "projection"
        if getattr(config, owner) == "pattention":
            check_tokens(name, getattr(config, name), config.num_hidden_layers)
        elif getattr(config, name) is not None:
            raise ValueError(f"{name} needs {owner}: pattention, since nothing else has parameter tokens")
    if config.feed_forward == "pattention" and config.intermediate_size is not None:
        raise ValueError("intermediate_size needs feed_forward: mlp or glu; a Pattention has no hidden width")
    if config.use_bias and config.projection == config.feed_forward == "pattention":
        raise ValueError("use_bias needs a linear layer: Pattention has no biases; set projection to linear")
    if config.learn_score_scale and not pattention:
        raise ValueError("learn_score_scale needs Pattention; set projection or feed_forward to pattention")
    if config.learn_score_scale and config.score == "gelu":
        raise ValueError("learn_score_scale needs a score that normalizes; gelu has no score scale")


def _check_rotary(config: Any) -> None:
    if config.positions != "rotary":
        if config.rope_parameters:
            raise ValueError(f"rope_parameters needs positions: rotary; got positions: {config.positions}")
        return
    rope = config.rope_parameters
    if unknown := set(rope) - {"rope_type", "rope_theta", "partial_rotary_factor"}:
        raise ValueError(f"rope_parameters takes rope_theta and partial_rotary_factor; got {sorted(unknown)}")
    if rope["rope_type"] != "default":
        raise ValueError(f"rope_parameters supports rope_type default alone; got {rope['rope_type']!r}")
    for name in ("rope_theta", "partial_rotary_factor"):
        number = rope[name]
        if not isinstance(number, int | float) or isinstance(number, bool) or not 0.0 < number < math.inf:
            raise ValueError(f"{name} of rope_parameters must be a number above 0; got {number!r}")
    if rope["partial_rotary_factor"] > 1.0 or config.rotary_size % 2 or config.rotary_size < 2:
        raise ValueError(
            f"partial_rotary_factor of head_dim {config.head_dim} must give an even number of at least 2 dimensions; "
            f"got {rope['partial_rotary_factor']}, which gives {config.rotary_size}"
        )
