"""From a configuration to one block: the only place where a config meets a layer."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from gnomon.models.config import GnomonConfig
from gnomon.models.sizes import layer_tokens, side_layers
from gnomon.nn.attention import Attention, dot_product_attention
from gnomon.nn.blocks import Block, Residual
from gnomon.nn.feedforward import build_feed_forward
from gnomon.nn.functional import default_score_scale
from gnomon.nn.initialization import CROSS, INITIALIZATIONS, Depths, Rule
from gnomon.nn.multiway import MultiwayPattention, SeparateLayers
from gnomon.nn.norms import build_norm
from gnomon.nn.placements import PLACEMENTS, HeadScale, has_inner_norm
from gnomon.nn.positions import ROTATIONS, rotate_queries_and_keys
from gnomon.nn.projections import Pattention, build_projection


class AttentionInterface:
    """transformers' attention functions (eager, sdpa, flash, ...) in the slot of `Attention`.

    Args:
        config: names the implementation; read at every call, so that `set_attn_implementation` takes effect.
    """

    def __init__(self, config: GnomonConfig) -> None:
        self.config = config

    def __call__(self, module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """Run the implementation that the configuration names."""
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, dot_product_attention)
        return attend(module, *args, **kwargs)


class GnomonBlock(GradientCheckpointingLayer, Block):
    """A block that transformers can checkpoint, shard and record."""


def depths(config: GnomonConfig, is_decoder: bool) -> Depths:
    """What an initialization may depend on, of one side of a model.

    Args:
        config: of the model.
        is_decoder: which side.

    Returns:
        Depths and width.
    """
    encoder_layers, decoder_layers = side_layers(config.to_dict())
    return Depths(
        hidden_size=config.hidden_size,
        encoder_layers=encoder_layers,
        decoder_layers=decoder_layers,
        is_decoder=is_decoder,
        std=config.initializer_range,
        is_torchscale=config.initialization_flavor == "torchscale",
    )


def initialization_rule(config: GnomonConfig, is_decoder: bool | None = None) -> Rule:
    """The initialization rule of one side of a model.

    Args:
        config: names the rule and the sizes that it depends on.
        is_decoder: which side; that of a single stack, or the decoder, if None.

    Returns:
        The rule, for the layers to ask.
    """
    side = config.is_decoder is not False if is_decoder is None else is_decoder
    return INITIALIZATIONS[config.initialization](depths(config, side))


def residual_scale(config: GnomonConfig, is_decoder: bool) -> float:
    """DeepNorm's alpha of one side: the one that the configuration holds, or what follows from the depth.

    Args:
        config: of the model.
        is_decoder: which side.

    Returns:
        alpha, 1 for placements without it.
    """
    if not PLACEMENTS[config.norm_placement].scales_residual:
        return 1.0
    held = config.residual_scale
    if held is None:
        return depths(config, is_decoder).deepnet.alpha
    return float(held[is_decoder] if isinstance(held, list) else held)


def build_block(config: GnomonConfig, layer: int) -> GnomonBlock:
    """Build one block as the configuration describes it.

    Args:
        config: of the model.
        layer: index of the block; a decoder's blocks are counted after those of its encoder.

    Returns:
        The block with fresh parameters.
    """
    encoder_layers, decoder_layers = side_layers(config.to_dict())
    is_decoder = layer >= encoder_layers
    index = layer - encoder_layers if is_decoder else layer
    rule, placement = initialization_rule(config, is_decoder), PLACEMENTS[config.norm_placement]
    alpha, width = residual_scale(config, is_decoder), config.hidden_size
    drop_path = config.drop_path_rate * index / max((decoder_layers if is_decoder else encoder_layers) - 1, 1)

    def norm(sublayers: tuple[str, ...], sublayer: str, size: int = width) -> nn.Module | None:
        return multiway_norm(config, config.norm, size) if sublayer in sublayers else None

    def residual(sublayer: str) -> Residual:
        return Residual(
            before=norm(placement.before, sublayer),
            after=norm(placement.after, sublayer),
            outer=norm(placement.outer, sublayer),
            scale=alpha,
            dropout=config.hidden_dropout,
            drop_path=drop_path,
        )

    parts: dict[str, Any] = {
        "attention": build_attention(config, layer, index, rule, is_causal=is_decoder),
        "attention_residual": residual("attention"),
        "feed_forward": multiway(config, lambda: _feed_forward(config, layer, rule)),
        "feed_forward_residual": residual("feed_forward"),
        "is_parallel": config.use_parallel_residual,
    }
    if is_decoder and config.is_encoder_decoder:
        parts["cross_attention"] = build_attention(config, layer, index, rule, is_causal=False, is_cross=True)
        parts["cross_attention_residual"] = residual("cross_attention")
    return GnomonBlock(**parts)


def build_attention(
    config: GnomonConfig, layer: int, index: int, rule: Rule, *, is_causal: bool, is_cross: bool = False
) -> Attention:
    """Build the attention of a block, to its own tokens or to a memory.

    Args:
        config: of the model.
        layer: index of the block among all blocks.
        index: its index within its side, which is that in a cache.
        rule: the initialization rule.
        is_causal: whether a token sees only earlier ones.
        is_cross: attention to a memory: no positions, no inner norm, no scaled heads.

    Returns:
        The layer.
    """
    tokens, placement = layer_tokens(config.to_dict(), layer), PLACEMENTS[config.norm_placement]
    width, attended = config.hidden_size, config.num_attention_heads * config.head_dim
    shared = config.num_key_value_heads * config.head_dim
    has_norm = "attention" in placement.inner and not is_cross

    def project(site: str, in_features: int, out_features: int) -> nn.Module:
        more = _pattention(config, tokens[site]) if config.projection == "pattention" else {}

        def build() -> nn.Module:
            return build_projection(
                config.projection,
                in_features,
                out_features,
                site=CROSS + site if is_cross else site,
                rule=rule,
                bias=config.use_bias,
                **more,
            )

        return multiway(config, build)

    return Attention(
        query=project("query", width, attended),
        key=project("key", width, shared),
        value=project("value", width, shared),
        output=project("output", attended, width),
        num_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_size=config.head_dim,
        layer_index=index,
        is_causal=is_causal,
        dropout=config.attention_dropout,
        attend=AttentionInterface(config),
        rotate=ROTATIONS.get(config.positions, rotate_queries_and_keys),
        inner_norm=multiway_norm(config, config.norm, attended) if has_norm else None,
        scale_heads=HeadScale(config.num_attention_heads) if placement.scales_heads and not is_cross else None,
    )


def _feed_forward(config: GnomonConfig, layer: int, rule: Rule) -> nn.Module:
    tokens = layer_tokens(config.to_dict(), layer)["feed_forward"]
    inner_norm = None
    if has_inner_norm(config.norm_placement, config.feed_forward, config.score):
        inner_norm = build_norm(config.norm, config.intermediate_size, eps=config.norm_eps)
    return build_feed_forward(
        config.feed_forward,
        config.hidden_size,
        intermediate_size=config.intermediate_size,
        activation=config.hidden_act,
        rule=rule,
        bias=config.use_bias,
        inner_norm=inner_norm,
        **(_pattention(config, tokens) if config.feed_forward == "pattention" else {}),
    )


def multiway(config: GnomonConfig, build: Callable[[], nn.Module]) -> nn.Module:
    """Build one layer, or what stands for it where every modality has parameters of its own.

    Args:
        config: of the model; `num_modalities` and `multiway` say which parameters those are.
        build: makes a layer with fresh parameters.

    Returns:
        The layer: as it is, a copy for each modality, or with tokens for each modality beside the shared ones.
    """
    if config.num_modalities is None:
        return build()
    if config.multiway == "separate":
        return SeparateLayers([build() for _ in range(config.num_modalities)])
    layer = build()
    if not isinstance(layer, Pattention):
        return layer
    return MultiwayPattention(
        layer, num_modalities=config.num_modalities, num_modality_tokens=config.num_modality_tokens
    )


def multiway_norm(config: GnomonConfig, kind: str, size: int) -> nn.Module:
    """Build a norm; where layers are copied for every modality, a norm that has parameters is copied as well.

    Args:
        config: of the model.
        kind: a name of `NORMS`.
        size: width of the last axis.

    Returns:
        The norm.
    """
    norm = build_norm(kind, size, eps=config.norm_eps)
    has_parameters = any(True for _ in norm.parameters())
    if not has_parameters or config.multiway != "separate":
        return norm
    return multiway(config, lambda: build_norm(kind, size, eps=config.norm_eps))


def _pattention(config: GnomonConfig, num_tokens: int) -> dict[str, Any]:
    seen = num_tokens + (config.num_modality_tokens or 0)
    return {
        "score": config.score,
        "learn_score_scale": config.learn_score_scale,
        "num_tokens": num_tokens,
        "score_scale": default_score_scale(config.score, seen),
    }
