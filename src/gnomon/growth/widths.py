"""Which widths of a model can grow, and to what."""

from collections.abc import Mapping

from gnomon.models.config import GnomonConfig

WIDTHS = ("intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size")

METHODS = ("exact", "net2net", "hypercloning")


def check_widths(config: GnomonConfig, method: str, sizes: Mapping[str, int]) -> None:
    """Refuse widths that cannot be grown to.

    Args:
        config: of the model.
        method: of `METHODS`.
        sizes: asked for.

    Raises:
        ValueError: with the rule, the value and the remedy.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}; got {method!r}")
    if not sizes or (unknown := sorted(set(sizes) - set(WIDTHS))):
        raise ValueError(f"widths are {', '.join(WIDTHS)}; got {unknown[0] if sizes else 'none'}")
    for name, value in sizes.items():
        present = getattr(config, name)
        if present is None:
            raise ValueError(
                f"{name} cannot grow: the feed-forward layer is a Pattention; grow num_feed_forward_tokens"
            )
        if not isinstance(value, int) or value < present:
            raise ValueError(f"{name} is {present} and grows to a larger whole number; got {value!r}")
    if all(value == getattr(config, name) for name, value in sizes.items()):
        raise ValueError(f"nothing grows: the model already has {dict(sizes)}; ask for larger widths")
    if method != "exact" and sizes.get("head_dim", config.head_dim) != config.head_dim:
        raise ValueError("head_dim grows by method exact alone, since copied dimensions would not turn alike")
    width = sizes.get("hidden_size", config.hidden_size)
    check_positions(config, sizes)
    if width % config.hidden_size and not {config.norm, config.final_norm} <= {"rms", "none"}:
        raise ValueError(
            f"under LayerNorm the hidden size grows by whole factors, from {config.hidden_size} to "
            f"{2 * config.hidden_size}; got {width}"
        )


def check_positions(config: GnomonConfig, sizes: Mapping[str, int]) -> None:
    """Refuse widths that a position scheme is made from: its numbers would change with them.

    Args:
        config: of the model.
        sizes: asked for.

    Raises:
        ValueError: naming the scheme and the width.
    """
    made_from = {"alibi": "num_attention_heads", "xpos": "head_dim"}
    made_from |= dict.fromkeys(("sinusoidal", "sinusoidal_2d"), "hidden_size")
    width, groups = sizes.get("hidden_size", config.hidden_size), config.num_conv_pos_embedding_groups
    if groups is not None and width % (config.hidden_size // groups):
        raise ValueError(
            f"the convolution of positions has groups of {config.hidden_size // groups} channels, so hidden_size grows "
            f"by whole groups; got {width}"
        )
    name = made_from.get(config.positions)
    if name is not None and sizes.get(name, getattr(config, name)) != getattr(config, name):
        raise ValueError(
            f"positions {config.positions} follow from {name}, so {name} cannot grow without changing all of them; "
            f"leave it at {getattr(config, name)}, got {sizes[name]}"
        )
