"""The fields of a configuration that make a model of sound: what follows from what, and their checks, without torch."""

from typing import Any

AUDIO_FIELDS = (
    "num_mel_bins",
    "subsampling_factor",
    "subsampling_conv_channels",
    "subsampling_conv_kernel_size",
    "num_conv_pos_embeddings",
    "num_conv_pos_embedding_groups",
)
"""Fields of a model of sound; None in every other model."""


def resolve_audio(fields: dict[str, Any]) -> None:
    """Fill in what follows for a model of sound, which is one with `num_mel_bins`.

    Args:
        fields: all fields of a configuration; changed in place.
    """
    if fields["num_mel_bins"] is None:
        return
    defaults = {
        "subsampling_factor": 4,
        "subsampling_conv_channels": fields["hidden_size"],
        "subsampling_conv_kernel_size": 3,
        "positions": "rotary",
    }
    if fields["num_conv_pos_embeddings"] is not None:
        defaults["num_conv_pos_embedding_groups"] = fields["num_attention_heads"]
    if not (fields["encoder_layers"] and fields["decoder_layers"]):
        defaults["is_decoder"] = False
    for name, value in defaults.items():
        if fields[name] is None:
            fields[name] = value


def check_audio(config: Any) -> None:
    """Refuse fields of sound that do not fit together, or that stand in another model.

    Args:
        config: a `GnomonConfig` with every field decided.

    Raises:
        ValueError: with the rule, the value and the remedy.
    """
    given = {name: getattr(config, name) for name in AUDIO_FIELDS if getattr(config, name) is not None}
    if config.num_mel_bins is None:
        for name, value in given.items():
            raise ValueError(f"{name} needs num_mel_bins, which makes a model of sound; got {value}")
        return
    for name, value in given.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1; got {value}")
    if config.image_size is not None:
        raise ValueError("num_mel_bins makes a model of sound and image_size one of images; set one of them")
    if config.is_decoder:
        raise ValueError("a model of sound looks both ways; leave is_decoder unset")
    if config.scale_embedding:
        raise ValueError(
            "scale_embedding is for token embeddings, and num_mel_bins makes a model of sound; leave it unset"
        )
    if config.subsampling_factor & (config.subsampling_factor - 1):
        raise ValueError(f"subsampling_factor is a power of 2, each a convolution; got {config.subsampling_factor}")
    groups = config.num_conv_pos_embedding_groups
    if groups is not None and config.num_conv_pos_embeddings is None:
        raise ValueError(
            f"num_conv_pos_embedding_groups needs num_conv_pos_embeddings, the kernel's size; got {groups}"
        )
    if groups is not None and config.hidden_size % groups:
        raise ValueError(f"num_conv_pos_embedding_groups must divide hidden_size ({config.hidden_size}); got {groups}")


def subsampled_length(frames: Any, factor: int) -> Any:
    """How many positions a model makes of so many frames: ceil(frames / factor).

    Args:
        frames: a number, or a tensor of numbers.
        factor: `subsampling_factor`.

    Returns:
        The same kind.

    >>> subsampled_length(9, 4)
    3
    """
    return (frames + factor - 1) // factor
