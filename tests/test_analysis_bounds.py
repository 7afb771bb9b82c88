import itertools
import math

import pytest

from gnomon.analysis.bounds import encoder_decoder_bound, pre_norm_bound, sub_norm_bound

LAYERS = (6, 12, 24, 48, 100, 200, 1000)


def harmonic(count: int) -> float:
    return math.fsum(1 / number for number in range(1, count + 1))


def test_pre_norm_bound_of_two_unequal_sublayers_is_the_hand_computed_one():
    """With v = (1, 2) and w = (3, 1), Thm 3.1 gives (10 + 5) / (9 + 4) times (1 + 4 / 9)."""
    bound = pre_norm_bound([1.0, 2.0], [3.0, 1.0], rate_times_width=0.5)
    assert bound == pytest.approx(0.5 * 15 / 13 * 13 / 9, rel=1e-12)


def test_sub_norm_bound_of_three_unequal_sublayers_is_the_hand_computed_one():
    """With v = (1, 2, 1) and w = (1, 1, 2), Thm 3.2 gives (2 + 5 + 5/4) / 6 times (1 + 4/1 + 1/5)."""
    bound = sub_norm_bound([1.0, 2.0, 1.0], [1.0, 1.0, 2.0], rate_times_width=2.0)
    assert bound == pytest.approx(2.0 * 8.25 / 6 * 5.2, rel=1e-12)


def test_encoder_decoder_bound_weighs_the_encoder_by_the_cross_attentions():
    """With v = (1, 2, 1), Thm 3.3 adds 4/6 times (1 + 4/1 + 1/5) of the encoder's bound to the decoder's."""
    bound = encoder_decoder_bound([1.0, 2.0, 1.0], decoder_bound=7.0, encoder_bound=3.0)
    assert bound == pytest.approx(7.0 + 4 / 6 * 5.2 * 3.0, rel=1e-12)


@pytest.mark.parametrize("layers", LAYERS)
def test_without_gains_both_bounds_are_the_same_harmonic_number(layers):
    """At v = w = 1 Sub-LN's inner norms alone gain nothing: both bounds are 2 (1 + H_{L-1})."""
    ones = [1.0] * (2 * layers)
    expected = 2 * (1 + harmonic(2 * layers - 1))
    assert pre_norm_bound(ones, ones, rate_times_width=1.0) == pytest.approx(expected, rel=1e-12)
    assert sub_norm_bound(ones, ones, rate_times_width=1.0) == pytest.approx(expected, rel=1e-12)


def test_pre_norm_bound_grows_as_the_logarithm_of_the_depth():
    """From one depth to the next, the bound grows by 2 log of their ratio, to 7% of that."""
    values = [pre_norm_bound([1.0] * 2 * n, [1.0] * 2 * n, rate_times_width=1.0) for n in LAYERS]
    for (low, high), (first, second) in zip(itertools.pairwise(LAYERS), itertools.pairwise(values), strict=True):
        growth = 2 * math.log(high / low)
        assert second - first == pytest.approx(growth, rel=0.07)


def test_magnetos_gain_bounds_the_update_at_every_depth():
    """With gamma = sqrt(log 2N), Thm 3.2's bound falls towards 2 and never rises with depth."""
    values = []
    for layers in LAYERS:
        gamma = [math.sqrt(math.log(2 * layers))] * (2 * layers)
        values.append(sub_norm_bound(gamma, gamma, rate_times_width=1.0))
    assert values == sorted(values, reverse=True)
    assert 2.0 < values[-1] < values[0] < 3.5


def test_encoder_decoders_gains_bound_both_sides():
    """With the gains of MG figure 2, the encoder's share stays within a constant of the decoder's."""
    shares = []
    for layers in LAYERS:
        decoder = [math.sqrt(math.log(3 * layers))] * (3 * layers)
        encoder = [math.sqrt(math.log(3 * layers) * math.log(2 * layers) / 3)] * (2 * layers)
        own = sub_norm_bound(decoder, decoder, rate_times_width=1.0)
        through = sub_norm_bound(encoder, encoder, rate_times_width=1.0)
        whole = encoder_decoder_bound(decoder, decoder_bound=own, encoder_bound=through)
        shares.append(whole / own)
    assert shares == sorted(shares, reverse=True)
    assert 2.0 < shares[-1] < shares[0] < 2.7


def test_a_larger_gain_lowers_both_bounds_in_proportion_to_its_square():
    """v = w = g divides either bound by g^2: what tells Sub-LN apart is not in this formula."""
    for bound in (pre_norm_bound, sub_norm_bound):
        plain, gained = (bound([g] * 20, [g] * 20, rate_times_width=1.0) for g in (1.0, 2.0))
        assert gained == pytest.approx(plain / 4, rel=1e-12)


def test_under_sub_norm_the_gain_of_one_matrix_alone_does_not_bound_the_update():
    """A gain on v alone leaves v^2 / w^2 in every term, so that the bound still grows with depth."""
    values = []
    for layers in LAYERS:
        gamma, ones = [math.sqrt(math.log(2 * layers))] * (2 * layers), [1.0] * (2 * layers)
        values.append(sub_norm_bound(gamma, ones, rate_times_width=1.0))
    assert values == sorted(values)
    assert values[-1] > 1.8 * values[0]


@pytest.mark.parametrize("scales", [([], []), ([1.0], []), ([1.0, 0.0], [1.0, 1.0]), ([1.0, math.nan], [1.0, 1.0])])
def test_scales_that_make_no_stack_are_refused(scales):
    """No sublayer, unequal lengths, zero and NaN have no bound."""
    with pytest.raises(ValueError, match=r"at least 1 sublayer|above 0"):
        sub_norm_bound(*scales, rate_times_width=1.0)


def test_a_decoder_without_three_sublayers_a_layer_has_no_cross_attentions_to_weigh():
    """Two sublayers a layer are refused with the rule and the count."""
    with pytest.raises(ValueError, match="multiple of 3 entries; got 4"):
        encoder_decoder_bound([1.0] * 4, decoder_bound=1.0, encoder_bound=1.0)
