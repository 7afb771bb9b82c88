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
def test_the_weights_of_a_pair_are_counted_exactly(tie: bool) -> None:
    """All but the norms before the looks at the sound, as for every pair."""
    model = listener(GnomonForSpeechSeq2Seq, "linear", tie_word_embeddings=tie)
    counts = count_parameters(model.config.to_dict())
    norms = sum(p.numel() for name, p in model.named_parameters() if "norm" in name or "residual" in name)
    assert counts.total - counts.norms == model.num_parameters() - norms


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
