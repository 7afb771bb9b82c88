r"""The published bounds on how far one step of SGD moves a model's output, as functions of its gains.

A sublayer l of a stack of L is written W2 phi(W1 x), with W1 ~ N(0, w_l^2 / d) and W2 ~ N(0, v_l^2 / d): value and
output projection of an attention, the two matrices of a feed-forward layer. A decoder layer has two such sublayers,
with cross-attention three. All bounds are in units of the learning rate times the width, and no torch is needed.
"""

from collections.abc import Sequence
from itertools import accumulate


def pre_norm_bound(output_scales: Sequence[float], input_scales: Sequence[float], *, rate_times_width: float) -> float:
    """Bound on the expected model update of a Pre-LN stack.

        dF <= eta d [ sum_l a_l / S_L + sum_l a_l / S_L sum_{k>=2} v_k^2 w_k^2 / S_{k-1} ],
        a_l = v_l^2 + w_l^2,   S_k = sum_{n<=k} v_n^2 w_n^2

    Source: MG theorem 3.1. With v = w = 1 it is 2 eta d (1 + H_{L-1}), which grows as log L.

    Args:
        output_scales: v_l, one for each sublayer.
        input_scales: w_l.
        rate_times_width: eta d.

    Returns:
        The bound.

    Raises:
        ValueError: when there is no sublayer, the lengths differ, or a number is not above 0.

    >>> pre_norm_bound([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], rate_times_width=1.0)  # 2 (1 + 1 + 1/2)
    5.0
    """
    _check(output_scales, input_scales, rate_times_width)
    moved = [v**2 + w**2 for v, w in zip(output_scales, input_scales, strict=True)]
    grown = [v**2 * w**2 for v, w in zip(output_scales, input_scales, strict=True)]
    return rate_times_width * sum(moved) / sum(grown) * (1.0 + _amplification(grown))


def sub_norm_bound(output_scales: Sequence[float], input_scales: Sequence[float], *, rate_times_width: float) -> float:
    """Bound on the expected model update of a Sub-LN stack.

        dF <= eta d [ sum_l b_l / S_L + sum_l b_l / S_L sum_{k>=2} v_k^2 / S_{k-1} ],
        b_l = 1 + v_l^2 / w_l^2,   S_k = sum_{n<=k} v_n^2

    Source: MG theorem 3.2. With v = w = gamma it is 2 eta d (1 + H_{L-1}) / gamma^2; gamma = sqrt(log L) makes it O(1).
    A sublayer that is one Pattention with the score `l2_norm_gelu` obeys the same form, since such a score is blind to
    the scale w of its keys (docs/concepts/pattention-under-sub-ln.md).

    Args:
        output_scales: v_l, one for each sublayer.
        input_scales: w_l.
        rate_times_width: eta d.

    Returns:
        The bound.

    Raises:
        ValueError: when there is no sublayer, the lengths differ, or a number is not above 0.

    >>> sub_norm_bound([2.0, 2.0, 2.0], [2.0, 2.0, 2.0], rate_times_width=1.0)
    1.25
    """
    _check(output_scales, input_scales, rate_times_width)
    moved = [1.0 + v**2 / w**2 for v, w in zip(output_scales, input_scales, strict=True)]
    grown = [v**2 for v in output_scales]
    return rate_times_width * sum(moved) / sum(grown) * (1.0 + _amplification(grown))


def encoder_decoder_bound(decoder_scales: Sequence[float], *, decoder_bound: float, encoder_bound: float) -> float:
    """Bound on the expected model update of a Sub-LN encoder-decoder: the decoder's, and the encoder's through it.

        dF <= dF_d + sum_{l % 3 = 1} v_l^2 / S_L (1 + sum_{k>=2} v_k^2 / S_{k-1}) dF_e,   S_k = sum_{n<=k} v_n^2

    Source: MG theorem 3.3; l counts from 0, so that l % 3 = 1 are the cross-attentions.

    Args:
        decoder_scales: v_l of the decoder: self-attention, cross-attention, feed-forward of each layer in turn.
        decoder_bound: dF_d, by `sub_norm_bound`.
        encoder_bound: dF_e, by `sub_norm_bound`.

    Returns:
        The bound.

    Raises:
        ValueError: when the decoder's sublayers are not three a layer, or a number is not above 0.

    >>> encoder_decoder_bound([1.0, 1.0, 1.0], decoder_bound=5.0, encoder_bound=3.0)  # 5 + 1/3 (1 + 1 + 1/2) 3
    7.5
    """
    _check(decoder_scales, decoder_scales, min(decoder_bound, encoder_bound))
    if len(decoder_scales) % 3:
        raise ValueError(
            f"a decoder layer with cross-attention has 3 sublayers, so decoder_scales needs a multiple of 3 entries; "
            f"got {len(decoder_scales)}"
        )
    grown = [v**2 for v in decoder_scales]
    return decoder_bound + sum(grown[1::3]) / sum(grown) * (1.0 + _amplification(grown)) * encoder_bound


def _amplification(grown: Sequence[float]) -> float:
    """How much the changes of a sublayer's input add: sum_{k>=2} g_k / sum_{n<k} g_n."""
    return sum(g / before for g, before in zip(grown[1:], accumulate(grown), strict=False))


def _check(output_scales: Sequence[float], input_scales: Sequence[float], factor: float) -> None:
    if not output_scales or len(output_scales) != len(input_scales):
        raise ValueError(
            f"a bound needs one output scale and one input scale for each of at least 1 sublayer; "
            f"got {len(output_scales)} and {len(input_scales)}"
        )
    for number in (*output_scales, *input_scales, factor):
        if not number > 0.0:
            raise ValueError(f"scales, rates and bounds must be above 0; got {number}")
