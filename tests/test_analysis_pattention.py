"""What an L2 score does not see: the claims of docs/concepts/pattention-under-sub-ln.md, one test each."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gnomon.analysis.gains import sublayer_scales, update_bound
from gnomon.analysis.signals import model_blocks
from gnomon.analysis.updates import Setting, build_model, measure_update
from gnomon.nn.functional import pattention
from gnomon.nn.norms import build_norm

FIELDS = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_attention_tokens": 24,
    "num_output_tokens": 20,
    "num_feed_forward_tokens": 44,
    "tie_word_embeddings": False,
}
IDS = torch.randint(0, 40, (2, 9), generator=torch.Generator().manual_seed(5))


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, KEYS, VALUES = draw(7, 16), draw(24, 16, seed=1), draw(24, 10, seed=2)


def build(placement: str = "sub", depth: int = 3, **changes: object) -> torch.nn.Module:
    """A TokenFormer of a study."""
    return build_model(Setting({**FIELDS, **changes.pop("fields", {})}, **changes), placement, depth, seed=0)


def logits(model: torch.nn.Module) -> Tensor:
    """What the model says of the ids."""
    with torch.no_grad():
        return model(IDS).logits


def change(model: torch.nn.Module, alter: Callable[[torch.nn.Module], None]) -> float:
    """How far the logits move, over their size, when every block is altered."""
    before = logits(model)
    with torch.no_grad():
        for block in model_blocks(model):
            alter(block)
    return float((logits(model) - before).norm() / before.norm())


def test_an_l2_score_sees_the_scale_of_the_values_alone() -> None:
    """Input and keys may be scaled by 7 without effect to 1e-8; the output follows the values in proportion."""
    output = pattention(X, KEYS, VALUES)
    assert torch.allclose(pattention(7 * X, KEYS, VALUES), output, rtol=1e-8)
    assert torch.allclose(pattention(X, 7 * KEYS, VALUES), output, rtol=1e-8)
    assert torch.allclose(pattention(X, KEYS, 7 * VALUES), 7 * output, rtol=1e-12)


@pytest.mark.parametrize("score", ["gelu_l2_norm", "softmax", "gelu"])
def test_the_other_scores_see_the_scale_of_their_input(score: str) -> None:
    """Seven times the input moves the output by more than 2%: what holds for l2_norm_gelu is no property of all."""
    output = pattention(X, KEYS, VALUES, score=score)
    assert float((pattention(7 * X, KEYS, VALUES, score=score) - output).norm() / output.norm()) > 0.02


def test_gelu_l2_norm_is_blind_where_its_scores_are_all_large_or_all_small() -> None:
    """At inputs of 1e-7 or 1e7 another factor of 7 moves the output by less than one in 1000."""
    for size in (1e-7, 1e7):
        outputs = [pattention(c * size * X, KEYS, VALUES, score="gelu_l2_norm", eps=0.0) for c in (1, 7)]
        assert torch.allclose(*outputs, rtol=1e-3, atol=1e-3)


def test_the_output_of_random_tokens_has_the_derived_size() -> None:
    """The variance is 0.425 n var(V) to 5%, whatever the size of keys and inputs."""
    keys, values = 0.3 * draw(600, 64, seed=3), 0.2 * draw(600, 64, seed=4)
    output = pattention(5.0 * draw(400, 64, seed=6), keys, values)
    assert float(output.var()) == pytest.approx(0.425 * 600 * 0.2**2, rel=0.05)


def test_a_norm_without_parameters_before_a_pattention_only_centers() -> None:
    """RMSNorm changes nothing, LayerNorm does what centering the input or the keys does, gradients included."""
    eps = 1e-12
    plain, centered = X.clone().requires_grad_(), X.clone().requires_grad_()
    rms = pattention(build_norm("rms", 16, eps=eps).double()(plain), KEYS, VALUES)
    assert torch.allclose(rms, pattention(X, KEYS, VALUES), rtol=1e-7)
    layer = pattention(build_norm("layer_plain", 16, eps=eps).double()(plain), KEYS, VALUES)
    other = pattention(centered, KEYS - KEYS.mean(-1, keepdim=True), VALUES)
    assert torch.allclose(layer, other, rtol=1e-7)
    assert not torch.allclose(layer, rms, rtol=1e-2)
    weight = draw(7, 10, seed=8)
    (a,), (b,) = (torch.autograd.grad((y * weight).sum(), x) for y, x in ((layer, plain), (other, centered)))
    assert torch.allclose(a, b, rtol=1e-6, atol=1e-12)


def test_a_norms_bias_is_what_gives_the_size_of_its_input_a_meaning() -> None:
    """With a bias on the scores the output depends on the input's scale again; with weights alone it does not."""
    gains, bias = 1 + 0.5 * draw(16, seed=9), draw(16, seed=10)
    for shift, blind in ((torch.zeros(16), True), (bias, False)):
        outputs = [pattention(c * X * gains + shift, KEYS, VALUES) for c in (1.0, 3.0)]
        assert torch.allclose(*outputs, rtol=1e-6) is blind


@pytest.mark.parametrize("placement", ["pre", "sub"])
def test_a_model_sees_the_gain_of_two_kinds_of_values_alone(placement: str) -> None:
    """Keys everywhere and the value projection's values may be tripled; values of output and feed-forward may not."""

    def triple(*names: tuple[str, str]) -> Callable[[torch.nn.Module], None]:
        def alter(block: torch.nn.Module) -> None:
            for site, tokens in names:
                layer = block.feed_forward if site == "feed_forward" else getattr(block.attention, site)
                getattr(layer, tokens).mul_(3.0)

        return alter

    sites = ("query", "key", "value", "output", "feed_forward")
    unseen = [*((site, "key_tokens") for site in sites), ("value", "value_tokens")]
    assert change(build(placement), triple(*unseen)) < 1e-4  # what is left is the norms' epsilon
    for site in ("output", "feed_forward"):
        assert change(build(placement), triple((site, "value_tokens"))) > 0.05


def test_norms_inside_and_before_do_nothing_where_they_do_not_center() -> None:
    """With RMSNorm a Sub-LN TokenFormer computes the same without any of them, to 1e-4; a Transformer does not."""
    rms = {"norm": "rms"}
    linear = {"projection": "linear", **dict.fromkeys(name for name in FIELDS if name.endswith("_tokens"))}
    for fields, blind in ((rms, True), ({**rms, **linear}, False)):
        for slots in (["before"], ["inner"], ["before", "inner"]):
            whole, without = logits(build(fields=fields)), logits(build(fields=fields, removed_norms=slots))
            assert (float((whole - without).norm() / whole.norm()) < 1e-3) is blind, slots


def test_a_gain_that_no_forward_pass_sees_divides_the_training_step() -> None:
    """Tripled keys get a third of the gradient, so that SGD moves the output by a ninth as far."""
    norms = []
    for factor in (1.0, 3.0):
        keys = (factor * KEYS).requires_grad_()
        (gradient,) = torch.autograd.grad((pattention(X, keys, VALUES) * draw(7, 10, seed=8)).sum(), keys)
        norms.append(float(gradient.norm()))
    assert norms[0] / norms[1] == pytest.approx(3.0, rel=1e-6)


def test_a_gain_on_values_and_keys_lowers_the_update_more_than_on_either_alone() -> None:
    """With gamma = 2 on the same draws: both lie below 0.6 of none, below keys alone and below values alone."""
    batch = {"input_ids": IDS, "labels": IDS}

    def update(gain: float, tokens: str) -> float:
        return measure_update(build(gain=gain, gain_tokens=tokens), batch).update

    none, values, keys, both = update(1.0, "both"), update(2.0, "values"), update(2.0, "keys"), update(2.0, "both")
    assert both < 0.6 * none
    assert both < keys < none
    assert both < values


def test_the_bound_of_a_tokenformer_is_that_of_sub_norm_for_both_placements() -> None:
    """Pre-LN and Sub-LN of the same tokens get one bound, which a gain g on all tokens divides by g^2."""
    bounds = {
        (placement, gain): update_bound(build(placement, gain=gain), learning_rate=1.0)
        for placement, gain in itertools.product(("pre", "sub"), (1.0, 2.0))
    }
    assert bounds["pre", 1.0] == pytest.approx(bounds["sub", 1.0], rel=1e-12)
    assert bounds["sub", 2.0] == pytest.approx(bounds["sub", 1.0] / 4, rel=1e-12)


def test_an_attentions_input_scale_joins_the_three_matrices_whose_scales_are_unseen() -> None:
    """Multiplying output keys, value values and value keys by c multiplies w by c; v follows the output's values."""
    model = build(depth=1)
    (v, _), (w, _) = sublayer_scales(model)
    attention = model_blocks(model)[0].attention
    with torch.no_grad():
        for tokens in (attention.output.key_tokens, attention.value.value_tokens, attention.value.key_tokens):
            tokens.mul_(2.0)
        attention.output.value_tokens.mul_(5.0)
    (after_v, _), (after_w, _) = sublayer_scales(model)
    assert after_v == pytest.approx(5 * v, rel=1e-12)
    assert after_w == pytest.approx(2 * w, rel=1e-12)
