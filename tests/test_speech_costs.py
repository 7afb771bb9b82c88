"""The costs of models of sound by formula, against what is built and what torch counts."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from gnomon import GnomonForAudioClassification, GnomonForCTC, GnomonForSpeechSeq2Seq
from gnomon.analysis.flops import count_parameters, forward_flops_per_token
from sounds import listener, sound

VARIANTS = ("l2_norm_gelu", "sub, linear", "linear with biases")


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("factor", [1, 2, 8])
@pytest.mark.parametrize("kernel", [None, 4])
def test_the_formula_counts_the_parameters_that_are_built(variant: str, factor: int, kernel: int | None) -> None:
    """To the last one, for recognizers and classifiers, at every subsampling, with and without positions."""
    for cls in (GnomonForCTC, GnomonForAudioClassification):
        model = listener(cls, variant, subsampling_factor=factor, num_conv_pos_embeddings=kernel)
        assert count_parameters(model.config.to_dict()).total == model.num_parameters()


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("variant", ["linear", "sub, linear", "peri, linear", "learned positions"])
def test_a_pair_is_counted_to_the_last_parameter(variant: str, tie: bool) -> None:
    """Tables, positions of both sides, and the norms before its looks at the sound."""
    model = listener(GnomonForSpeechSeq2Seq, variant, tie_word_embeddings=tie)
    assert count_parameters(model.config.to_dict()).total == model.num_parameters()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("factor", [1, 4])
@torch.no_grad()
def test_the_formula_counts_the_operations_of_a_forward_pass(variant: str, factor: int) -> None:
    """Within a thousandth of torch's own counter, a clip of whole positions."""
    model = listener(GnomonForCTC, variant, subsampling_factor=factor)
    model.set_attn_implementation("eager")
    frames = 64
    with FlopCounterMode(display=False) as counter:
        model(input_features=sound(1, frames))
    expected = frames * forward_flops_per_token(model.config.to_dict(), frames)
    assert counter.get_total_flops() == pytest.approx(expected, rel=1e-3)
