"""The scales v and w of a model's sublayers, which the published bounds are functions of: read off, or drawn anew."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gnomon.analysis.bounds import pre_norm_bound, sub_norm_bound
from gnomon.analysis.signals import model_blocks
from gnomon.models.blocks import depths
from gnomon.models.config import GnomonConfig
from gnomon.nn.attention import Attention
from gnomon.nn.blocks import Block
from gnomon.nn.initialization import GAINED_SITES
from gnomon.nn.projections import Pattention

ATTENTION_SITES = ("query", "key", "value", "output")
LINEAR_SITES = ("up", "gate", "down")

GAIN_TARGETS = ("values", "keys", "both")
"""Which tokens of a Pattention get a gain."""


@dataclass(frozen=True)
class Gains:
    """Xavier's initialization with one gain on the feed-forward layer, the value and the output projection.

        W ~ N(0, gain^2 * 2 / (fan in + fan out))

    Source: MG figure 2; with gain 1 it is the setting of MG theorem 3.1, v = w = 1.

    Args:
        gain: gamma or beta, or 1.
        tokens: which tokens of a Pattention have it: `values`, `keys` or `both`.
    """

    gain: float
    tokens: str = "both"

    def draw_(self, model: PreTrainedModel, *, seed: int) -> None:
        """Draw a model anew, its embeddings and its head from N(0, 1/d); norms stay as they are.

        Args:
            model: any model of the library.
            seed: of the draw.
        """
        generator = torch.Generator().manual_seed(seed)
        for block in model_blocks(model):
            for site, layer in block_sites(block):
                gain = self.gain if site in GAINED_SITES else 1.0
                if isinstance(layer, Pattention):
                    _xavier_(layer.key_tokens, gain if self.tokens != "values" else 1.0, generator)
                    _xavier_(layer.value_tokens, gain if self.tokens != "keys" else 1.0, generator)
                else:
                    _xavier_(layer.weight, gain, generator)
        for table in (model.get_input_embeddings(), model.get_output_embeddings()):
            if table is not None:
                _normal_(table.weight, table.weight.shape[1] ** -0.5, generator)


def own_gain(config: GnomonConfig) -> float:
    """The gain that a placement was published with: gamma for `sub`, beta for `deep`, else 1.

    Args:
        config: of the model.

    Returns:
        The gain of a single stack, or of an encoder-decoder's decoder.
    """
    scales = depths(config, config.is_decoder is not False)
    return {"sub": scales.gamma, "deep": scales.deepnet.beta}.get(config.norm_placement, 1.0)


def depth_gain(config: GnomonConfig) -> float:
    """MAGNETO's gamma at the model's depth, whatever its placement.

    Args:
        config: of the model.

    Returns:
        gamma.
    """
    return depths(config, config.is_decoder is not False).gamma


def block_sites(block: Block) -> list[tuple[str, nn.Module]]:
    """The layers of a block that have matrices or parameter tokens, each with its site.

    Args:
        block: of a model.

    Returns:
        (site, layer); the sites of cross-attention begin with `cross_`.
    """
    sites = [(site, getattr(block.attention, site)) for site in ATTENTION_SITES]
    cross = getattr(block, "cross_attention", None)
    if cross is not None:
        sites += [(f"cross_{site}", getattr(cross, site)) for site in ATTENTION_SITES]
    if isinstance(block.feed_forward, Pattention):
        return [*sites, ("feed_forward", block.feed_forward)]
    return [
        *sites,
        *((site, getattr(block.feed_forward, site)) for site in LINEAR_SITES if hasattr(block.feed_forward, site)),
    ]


def sublayer_scales(model: nn.Module) -> tuple[list[float], list[float]]:
    """v_l and w_l of every sublayer, read off the weights as they stand.

        v_l^2 = fan_in var(W2),   w_l^2 = fan_in var(W1)

    W1 and W2 are the value and the output projection of an attention, the two matrices of a feed-forward layer. A
    Pattention K, V counts as W1 = K, W2 = V^T. Where the value and the output projection are Pattentions, what stands
    before the last values are three factors, none of whose scales is seen: 1 / w_l^2 is the sum of their 1 / scale^2
    (docs/concepts/pattention-under-sub-ln.md).

    Args:
        model: any model of the library.

    Returns:
        All v_l and all w_l.
    """
    outputs, inputs = [], []
    for block in model_blocks(model):
        attentions = [block.attention, getattr(block, "cross_attention", None)]
        for attention in attentions:
            if attention is not None:
                v, w = _attention_scales(attention)
                outputs.append(v)
                inputs.append(w)
        layer = block.feed_forward
        first, last = (
            (layer.key_tokens, layer.value_tokens.T)
            if isinstance(layer, Pattention)
            else (layer.up.weight, layer.down.weight)
        )
        outputs.append(_scale(last))
        inputs.append(_scale(first))
    return outputs, inputs


def update_bound(model: nn.Module, *, learning_rate: float) -> float | None:
    """The published bound of a model's expected update, where there is one.

    Source: MG theorem 3.1 for `pre`, 3.2 for `sub`.

    Differs: `pre` with Pattentions of the score `l2_norm_gelu` follows theorem 3.2, since such a score normalizes as
    Sub-LN's inner norm does.

    Args:
        model: of a single stack, with its `config`.
        learning_rate: eta.

    Returns:
        The bound, or None for a placement that the theorems do not treat.
    """
    config = model.config
    factor = learning_rate * config.hidden_size
    normalizes = config.projection == config.feed_forward == "pattention" and config.score == "l2_norm_gelu"
    if config.norm_placement == "sub" or (config.norm_placement == "pre" and normalizes):
        return sub_norm_bound(*sublayer_scales(model), rate_times_width=factor)
    if config.norm_placement == "pre" and config.projection == "linear" and config.feed_forward != "pattention":
        return pre_norm_bound(*sublayer_scales(model), rate_times_width=factor)
    return None


def _attention_scales(attention: Attention) -> tuple[float, float]:
    value, output = attention.value, attention.output
    if not isinstance(value, Pattention):
        return _scale(output.weight), _scale(value.weight)
    unseen = (output.key_tokens, value.value_tokens.T, value.key_tokens)
    return _scale(output.value_tokens.T), sum(_scale(matrix) ** -2 for matrix in unseen) ** -0.5


def _scale(matrix: Tensor) -> float:
    """sqrt(fan_in) times the standard deviation: what a matrix multiplies the size of a random input by."""
    return math.sqrt(matrix.shape[-1]) * float(matrix.detach().double().square().mean().sqrt())


def _xavier_(matrix: Tensor, gain: float, generator: torch.Generator) -> None:
    _normal_(matrix, gain * math.sqrt(2.0 / sum(matrix.shape)), generator)


def _normal_(matrix: Tensor, std: float, generator: torch.Generator) -> None:
    with torch.no_grad():
        matrix.copy_(torch.randn(matrix.shape, generator=generator, dtype=torch.float64) * std)
