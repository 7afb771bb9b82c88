"""Norm placements: which norms a block has and where, in every topology, and what contradicts a placement."""

import pytest
import torch
from torch import nn

from gnomon import GnomonConfig, GnomonForCausalLM, GnomonForMaskedLM, GnomonForSeq2SeqLM
from gnomon.nn.placements import PLACEMENTS, HeadScale
from samples import BASE, LINEAR, TINY

PAIR = {"num_hidden_layers": None, "encoder_layers": 2, "decoder_layers": 2}
NORMS = (nn.LayerNorm, nn.RMSNorm)


def norms(module: nn.Module) -> int:
    return sum(isinstance(part, NORMS) for part in module.modules())


@pytest.mark.parametrize(
    ("placement", "linear", "tokens", "cross"),
    [
        ("pre", 2, 2, 1),
        ("post", 2, 2, 1),
        ("deep", 2, 2, 1),
        ("sub", 4, 3, 1),
        ("peri", 4, 4, 2),
        ("normformer", 4, 3, 1),
    ],
)
def test_a_layer_has_exactly_the_norms_of_its_placement(placement: str, linear: int, tokens: int, cross: int) -> None:
    """Sub-LN: 4 in an encoder layer, 5 with cross-attention, one fewer where an L2 score takes its place."""
    for fields, expected in (
        (LINEAR, linear),
        ({**LINEAR, "feed_forward": "glu"}, linear),
        (TINY, tokens),
        ({**LINEAR, "norm": "rms"}, linear),
        ({**LINEAR, "norm": "layer_plain"}, linear),
    ):
        fields = {**fields, "norm_placement": placement}
        for cls in (GnomonForCausalLM, GnomonForMaskedLM):
            model = cls(GnomonConfig(**fields)).model
            assert [norms(layer) for layer in model.layers] == [expected] * 2
            assert norms(model.norm) == PLACEMENTS[placement].has_final_norm
        pair = GnomonForSeq2SeqLM(GnomonConfig(**{**fields, **PAIR})).model
        assert [norms(layer) for layer in pair.encoder.layers] == [expected] * 2
        assert [norms(layer) for layer in pair.decoder.layers] == [expected + cross] * 2
        assert all(norms(layer.cross_attention) == 0 for layer in pair.decoder.layers)


def test_the_inner_norms_of_sub_ln_have_the_widths_of_what_they_norm() -> None:
    """The attention's is as wide as its joined heads, the feed-forward layer's as its hidden units."""
    fields = {**LINEAR, "head_dim": 6, "rope_parameters": {"partial_rotary_factor": 1.0}, "norm_placement": "sub"}
    layer = GnomonForCausalLM(GnomonConfig(**fields)).model.layers[0]
    assert layer.attention.inner_norm.normalized_shape == (24,)
    assert layer.feed_forward.inner_norm.normalized_shape == (80,)


@torch.no_grad()
def test_each_placement_computes_its_equation() -> None:
    """One sublayer by hand: where the norms stand around and inside the feed-forward layer, and alpha."""
    x = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(0))

    def norm(y):
        return nn.functional.layer_norm(y, y.shape[-1:])

    for placement in PLACEMENTS:
        torch.manual_seed(0)
        config = GnomonConfig(**LINEAR, norm_placement=placement)
        layer = GnomonForCausalLM(config).model.layers[1]
        up, down, residual = layer.feed_forward.up, layer.feed_forward.down, layer.feed_forward_residual

        def inside(y, up=up, down=down, placement=placement):
            hidden = nn.functional.gelu(up(y))
            return down(norm(hidden) if placement in ("sub", "normformer") else hidden)

        expected = {
            "pre": lambda: x + inside(norm(x)),
            "post": lambda: norm(x + inside(x)),
            "deep": lambda: norm((2 * 2) ** 0.25 * x + inside(x)),
            "sub": lambda: x + inside(norm(x)),
            "peri": lambda: x + norm(inside(norm(x))),
            "normformer": lambda: x + inside(norm(x)),
        }[placement]()
        found = residual(x, layer.feed_forward(residual.before(x)))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_normformer_scales_each_head_and_norms_the_attention_s_output() -> None:
    """A factor of 1 a head at the start, before the output projection; not in cross-attention."""
    pair = GnomonForSeq2SeqLM(GnomonConfig(**{**LINEAR, **PAIR, "norm_placement": "normformer"})).model
    layer = pair.decoder.layers[0]
    assert isinstance(layer.attention.scale_heads, HeadScale)
    assert layer.attention.scale_heads.weight.tolist() == [1.0] * 4
    assert isinstance(layer.attention_residual.after, nn.LayerNorm)
    assert not isinstance(layer.cross_attention.scale_heads, HeadScale)
    mixed = torch.ones(1, 3, 4, 8)
    with torch.no_grad():
        layer.attention.scale_heads.weight.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert layer.attention.scale_heads(mixed)[0, 0, :, 0].tolist() == [1.0, 2.0, 3.0, 4.0]


def test_deepnorm_is_post_norm_on_both_sides_with_an_alpha_for_each() -> None:
    """The residual of encoder and decoder is scaled by its own alpha, cross-attention's too."""
    config = GnomonConfig(
        **{**LINEAR, "num_hidden_layers": None, "encoder_layers": 3, "decoder_layers": 2, "norm_placement": "deep"}
    )
    pair = GnomonForSeq2SeqLM(config).model
    encoder, decoder = 0.81 * (3**4 * 2) ** (1 / 16), (3 * 2) ** 0.25
    for stack, alpha in ((pair.encoder, encoder), (pair.decoder, decoder)):
        for layer in stack.layers:
            residuals = [layer.attention_residual, layer.feed_forward_residual]
            residuals += [layer.cross_attention_residual] if layer.cross_attention_residual else []
            assert [residual.scale for residual in residuals] == [pytest.approx(alpha)] * len(residuals)
            assert all(isinstance(residual.outer, nn.LayerNorm) for residual in residuals)
            assert all(isinstance(residual.before, nn.Identity) for residual in residuals)
    held = GnomonConfig(**{**LINEAR, "norm_placement": "deep", "residual_scale": 1.75})
    assert GnomonForCausalLM(held).model.layers[1].feed_forward_residual.scale == 1.75


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({**TINY, "norm_placement": "sub", "score": "softmax"}, "Pattention with the score softmax does not have"),
        ({**TINY, "norm_placement": "normformer", "score": "gelu"}, "Pattention with the score gelu does not have"),
        ({**LINEAR, "initialization": "magneto"}, "magneto is derived for norm_placement sub; got pre"),
        (
            {**LINEAR, "norm_placement": "sub", "initialization": "deepnet"},
            "deepnet is derived for norm_placement deep",
        ),
        (
            {**LINEAR, "norm_placement": "deep", "initialization": "magneto"},
            "magneto is derived for norm_placement sub",
        ),
        ({**LINEAR, "initialization_flavor": "torchscale"}, "torchscale belongs to magneto and deepnet"),
        ({**LINEAR, "residual_scale": 2.0}, "residual_scale needs norm_placement: deep; got pre"),
        ({**LINEAR, "norm_placement": "deep", "residual_scale": -1.0}, "a number above 0"),
        ({**LINEAR, "norm_placement": "deep", "residual_scale": [1.0, 2.0]}, "a number above 0"),
        ({**LINEAR, "norm_placement": "upper"}, "norm_placement must be one of pre, post, deep, sub, peri, normformer"),
    ],
)
def test_contradictions_get_one_sentence(fields: dict, message: str) -> None:
    """Settings that contradict each other are refused; none silently wins over the other."""
    with pytest.raises(ValueError, match=message):
        GnomonConfig(**fields)


def test_a_gelu_pattention_may_stand_in_every_placement_that_norms_nothing_inside() -> None:
    """Softmax and gelu are refused for sub and normformer alone."""
    for placement in ("pre", "post", "deep", "peri"):
        for score in ("softmax", "gelu"):
            GnomonConfig(**{**TINY, "norm_placement": placement, "score": score})


def test_stochastic_depth_rises_with_depth_and_rests_in_evaluation() -> None:
    """The first layer never drops, the last at the full rate; the mean of many draws is the evaluation's output."""
    config = GnomonConfig(**{**BASE, "projection": "linear", "num_hidden_layers": 3, "drop_path_rate": 0.4})
    model = GnomonForCausalLM(config).model
    rates = [getattr(layer.attention_residual.drop_path, "probability", 0.0) for layer in model.layers]
    assert rates == pytest.approx([0.0, 0.2, 0.4])
    residual = model.layers[2].attention_residual
    x, y = torch.zeros(4000, 1, 32), torch.ones(4000, 1, 32)
    torch.manual_seed(0)
    dropped = residual.train()(x, y)
    assert sorted(set(dropped[:, 0, 0].tolist())) == pytest.approx([0.0, 1 / 0.6])
    assert dropped.mean() == pytest.approx(1.0, abs=0.05)
    assert torch.equal(residual.eval()(x, y), y)
