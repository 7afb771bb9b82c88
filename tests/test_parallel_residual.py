"""The parallel residual: attention and feed-forward layer see the same stream."""

import pytest
import torch

import gnomon
from samples import LINEAR, TINY, language_model, random_ids

PLACEMENTS = ("pre", "sub", "peri", "normformer")


def parallel(**changes):
    return language_model("linear", use_parallel_residual=True, use_bias=True, **changes)


@pytest.mark.parametrize("norm_placement", PLACEMENTS)
def test_both_sublayers_add_what_they_make_of_the_same_stream(norm_placement: str) -> None:
    """X' = X + MHA(LN(X)) + FFN(LN'(X)), with each placement's own norms; the serial block computes something else."""
    model, x = parallel(norm_placement=norm_placement).model, torch.randn(2, 7, 32)
    block = model.layers[0]
    with torch.no_grad():
        attention, feed_forward = block.attention_residual, block.feed_forward_residual
        attended = attention.after(block.attention(attention.before(x))[0])
        added = feed_forward.after(block.feed_forward(feed_forward.before(x)))
        torch.testing.assert_close(block(x), x + attended + added)
        block.is_parallel = False
        assert not torch.allclose(block(x), x + attended + added, atol=1e-2)


def test_new_layers_of_a_parallel_model_change_nothing_and_learn_at_once() -> None:
    """Depth grows within 1e-12 in float64, and the new blocks' outputs have gradients."""
    model, ids = parallel().double(), random_ids(2, 9)
    report = gnomon.grow(model, num_hidden_layers=4, layers=[0, 1], seed=0)
    assert report.exact
    assert report.gap_relative < 1e-12
    assert all(block.is_parallel for block in model.model.layers)
    model(input_ids=ids, labels=ids).loss.backward()
    for block in (model.model.layers[0], model.model.layers[2]):
        assert block.attention.output.weight.grad.abs().sum() > 0
        assert block.feed_forward.down.weight.grad.abs().sum() > 0


def test_parameter_tokens_may_stand_in_parallel() -> None:
    """A parallel TokenFormer grows its tokens exactly as a serial one does."""
    model = language_model("l2_norm_gelu", use_parallel_residual=True).double()
    assert gnomon.grow(model, num_feed_forward_tokens=96, seed=0).gap_relative < 1e-12


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({**LINEAR, "norm_placement": "post"}, "norm_placement post"),
        ({**LINEAR, "norm_placement": "deep"}, "norm_placement deep"),
        ({**TINY, "num_hidden_layers": None, "encoder_layers": 1, "decoder_layers": 1}, "an encoder-decoder"),
    ],
)
def test_a_parallel_residual_without_meaning_is_refused(fields: dict, where: str) -> None:
    """Norms of the sum and cross-attention leave it undefined; the error names what was asked for."""
    with pytest.raises(ValueError, match=f"use_parallel_residual needs a single stack .* got {where}: leave it"):
        gnomon.GnomonConfig(**fields, use_parallel_residual=True)
