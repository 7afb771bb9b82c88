"""Initial standard deviations as functions of depth and width, each with its source.

A rule answers one question: which standard deviation does this parameter start with? It is asked when a layer is
built, and the layer remembers the answer with its gain, so that a gain belongs to the layer's own parameter, is part
of its standard deviation, and is never guessed from a name.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

BaseStd = Callable[[str, str, int, int], float]
"""(site, kind, fan in, fan out) -> standard deviation before the gain."""

RESIDUAL_SITES = ("output", "down")
"""The linear layers whose output is added to the residual stream."""

GAINED_SITES = ("value", "output", "up", "gate", "down", "feed_forward")
"""Where MAGNETO's gamma and DeepNet's beta act: the feed-forward layer, the value and the output projection."""

CROSS = "cross_"
"""Prefix of the sites of cross-attention."""


def _no_gain(site: str, kind: str) -> float:
    return 1.0


@dataclass(frozen=True)
class Rule:
    """The standard deviation of every parameter of a layer, asked by site and kind.

    Sites: `embedding`, `query`, `key`, `value`, `output`, `up`, `gate`, `down`, `feed_forward`, and `cross_` before
    the attention's four. Kinds: `weight` (a matrix), `key_tokens`, `value_tokens`.

    Args:
        base: the standard deviation before the gain.
        gain: (site, kind) -> factor.
        is_uniform: draw from a uniform instead of a normal distribution, biases too.
    """

    base: BaseStd
    gain: Callable[[str, str], float] = _no_gain
    is_uniform: bool = False

    def __call__(self, site: str, kind: str, fan_in: int, fan_out: int) -> float:
        """The standard deviation, its gain folded in."""
        return self.base(site, kind, fan_in, fan_out) * self.gain(site, kind)


def tokenformer(*, num_layers: int, hidden_size: int, std: float = 0.02) -> Rule:
    """TokenFormer's initialization.

        keys, embeddings and inner weights: N(0, std^2),   values and residual weights: N(0, (2 / (L sqrt(d)))^2)

    Source: the reference code's configs (`normal` and `wang_init`), facts checked against its parameters.

    Args:
        num_layers: L.
        hidden_size: d.
        std: of keys and embeddings.

    Returns:
        The rule.
    """
    small = 2.0 / (num_layers * math.sqrt(hidden_size))

    def base(site: str, kind: str, fan_in: int, fan_out: int) -> float:
        inner = site.removeprefix(CROSS)
        return small if kind == "value_tokens" or (inner in RESIDUAL_SITES and kind == "weight") else std

    return Rule(base)


def normal(*, num_layers: int, hidden_size: int, std: float = 0.02) -> Rule:
    """GPT-2's initialization, the usual one of a pre-norm Transformer.

        everything: N(0, std^2),   residual weights and values: N(0, std^2 / (2 L))

    Source: Radford et al. 2019, section 2.3.

    Args:
        num_layers: L.
        hidden_size: d; unused, for one signature of all rules.
        std: of everything else.

    Returns:
        The rule.
    """
    small = std / math.sqrt(2 * num_layers)

    def base(site: str, kind: str, fan_in: int, fan_out: int) -> float:
        inner = site.removeprefix(CROSS)
        residual = inner in (*RESIDUAL_SITES, "feed_forward") and kind in ("weight", "value_tokens")
        return small if residual else std

    return Rule(base)


def magneto_gains(encoder_layers: int, decoder_layers: int) -> tuple[float, float]:
    """MAGNETO's gains gamma of the encoder and of the decoder, by depth.

        encoder only:     sqrt(log 2N)
        decoder only:     sqrt(log 2M)
        encoder-decoder:  sqrt(1/3 log 3M log 2N) and sqrt(log 3M)

    Source: MG figure 2.

    Args:
        encoder_layers: N, 0 without an encoder.
        decoder_layers: M, 0 without a decoder.

    Returns:
        Both gains; 1 for a side that is not there.

    >>> round(magneto_gains(12, 0)[0], 4)
    1.7827
    """
    if encoder_layers and decoder_layers:
        decoder = math.log(3 * decoder_layers)
        return math.sqrt(decoder * math.log(2 * encoder_layers) / 3), math.sqrt(decoder)
    layers = encoder_layers or decoder_layers
    gain = math.sqrt(math.log(2 * layers))
    return (gain, 1.0) if encoder_layers else (1.0, gain)


@dataclass(frozen=True)
class DeepNetScales:
    """DeepNorm's residual scale alpha and initialization gain beta of one side."""

    alpha: float
    beta: float


def deepnet_scales(
    encoder_layers: int, decoder_layers: int, *, encoder_factor: float = 0.87
) -> tuple[DeepNetScales, DeepNetScales]:
    """DeepNorm's alpha and beta of the encoder and of the decoder, by depth.

        one stack of L layers:  alpha = (2L)^(1/4),                   beta = (8L)^(-1/4)
        encoder of a pair:      alpha = 0.81 (N^4 M)^(1/16),          beta = 0.87 (N^4 M)^(-1/16)
        decoder of a pair:      alpha = (3M)^(1/4),                   beta = (12M)^(-1/4)

    Source: DN figure 2.

    Differs: torchscale's encoder of a pair takes 1.15 in place of 0.87 (`encoder_factor`).

    Args:
        encoder_layers: N, 0 without an encoder.
        decoder_layers: M, 0 without a decoder.
        encoder_factor: of the encoder's beta in a pair.

    Returns:
        The scales of both sides; 1 and 1 for a side that is not there.
    """
    if encoder_layers and decoder_layers:
        depth = (encoder_layers**4 * decoder_layers) ** (1 / 16)
        return (
            DeepNetScales(0.81 * depth, encoder_factor / depth),
            DeepNetScales((3 * decoder_layers) ** 0.25, (12 * decoder_layers) ** -0.25),
        )
    layers, absent = encoder_layers or decoder_layers, DeepNetScales(1.0, 1.0)
    scales = DeepNetScales((2 * layers) ** 0.25, (8 * layers) ** -0.25)
    return (scales, absent) if encoder_layers else (absent, scales)


def xavier(*, hidden_size: int, gain: float, gains_cross: bool, is_uniform: bool = False) -> Rule:
    """Xavier's initialization with a gain on the feed-forward layer, the value and the output projection.

        W ~ N(0, gain^2 * 2 / (fan in + fan out)),   embeddings ~ N(0, 1/d)

    Of a Pattention, the value tokens have the gain; the key tokens have it in the feed-forward layer alone, as the
    first of its two matrices (an L2 score is blind to it, see the concept page on Pattention under Sub-LN).

    Source: MG figure 2 and DN section 3; Glorot and Bengio 2010, eq. 12.

    Differs: `is_uniform` is torchscale's base, torch's own default of a linear layer: uniform with standard deviation
    1 / sqrt(3 fan in), its biases too, all times the gain.

    Args:
        hidden_size: d.
        gain: gamma (MAGNETO) or beta (DeepNet).
        gains_cross: whether cross-attention has it as well (DeepNet) or not (MAGNETO).
        is_uniform: torchscale's flavor.

    Returns:
        The rule.
    """

    def base(site: str, kind: str, fan_in: int, fan_out: int) -> float:
        if site == "embedding":
            return float(hidden_size**-0.5)
        if is_uniform and kind == "weight":
            return float((3 * fan_in) ** -0.5)
        return math.sqrt(2.0 / (fan_in + fan_out))

    def gained(site: str, kind: str) -> float:
        inner = site.removeprefix(CROSS)
        acts = inner in GAINED_SITES and (kind != "key_tokens" or inner == "feed_forward")
        return gain if acts and (gains_cross or inner == site) else 1.0

    return Rule(base, gained, is_uniform)


TORCHSCALE_ENCODER_FACTOR = 1.15


@dataclass(frozen=True)
class Depths:
    """What a rule may depend on.

    Args:
        hidden_size: d.
        encoder_layers: N, 0 without an encoder.
        decoder_layers: M, 0 without a decoder.
        is_decoder: which of the two sides the rule is for.
        std: the standard deviation that `tokenformer` and `normal` start from.
        is_torchscale: torchscale's flavor of `magneto` and `deepnet`.
    """

    hidden_size: int
    encoder_layers: int
    decoder_layers: int
    is_decoder: bool
    std: float = 0.02
    is_torchscale: bool = False

    @property
    def num_layers(self) -> int:
        """Layers of this side."""
        return self.decoder_layers if self.is_decoder else self.encoder_layers

    @property
    def gamma(self) -> float:
        """MAGNETO's gain of this side."""
        return magneto_gains(self.encoder_layers, self.decoder_layers)[self.is_decoder]

    @property
    def deepnet(self) -> DeepNetScales:
        """DeepNorm's scales of this side."""
        factor = TORCHSCALE_ENCODER_FACTOR if self.is_torchscale else 0.87
        return deepnet_scales(self.encoder_layers, self.decoder_layers, encoder_factor=factor)[self.is_decoder]


def _simple(rule: Callable[..., Rule]) -> Callable[[Depths], Rule]:
    return lambda depths: rule(num_layers=depths.num_layers, hidden_size=depths.hidden_size, std=depths.std)


INITIALIZATIONS: dict[str, Callable[[Depths], Rule]] = {
    "tokenformer": _simple(tokenformer),
    "normal": _simple(normal),
    "magneto": lambda depths: xavier(
        hidden_size=depths.hidden_size, gain=depths.gamma, gains_cross=False, is_uniform=depths.is_torchscale
    ),
    "deepnet": lambda depths: xavier(
        hidden_size=depths.hidden_size, gain=depths.deepnet.beta, gains_cross=True, is_uniform=depths.is_torchscale
    ),
}
"""The rules by name."""
