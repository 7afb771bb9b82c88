"""The equations of Pattention: against the reference code's numbers, a naive version, and what must hold by algebra."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from gnomon.nn import functional, kernels
from gnomon.nn.functional import SCORES, default_score_scale
from samples import golden

NORMALISING = ("l2_norm_gelu", "gelu_l2_norm", "softmax")
L2 = NORMALISING[:2]


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def problem(rows: int = 5, width: int = 16, tokens: int = 32, out: int = 9, dtype: torch.dtype = torch.float64):
    return tuple(draw(*s, seed=i, dtype=dtype) for i, s in enumerate(((rows, width), (tokens, width), (tokens, out))))


@pytest.mark.parametrize("path", ["functional", "kernels"])
@pytest.mark.parametrize("score", NORMALISING)
def test_outputs_and_gradients_equal_the_reference_codes_numbers(score: str, path: str) -> None:
    """Outputs agree with the golden file within 1e-5 and gradients within 1e-4."""
    tensors = {name.removeprefix(f"{score}."): t for name, t in golden("pattention")[0].items() if score + "." in name}
    x, key, value = (tensors[name].clone().requires_grad_() for name in ("x", "key", "value"))
    if path == "functional":
        y = functional.pattention(x, key, value, score=score)
    else:
        scale = torch.tensor([default_score_scale(score, len(key))])
        y = kernels.pattention(x, key, value, score=score, score_scale=scale)
    y.backward(tensors["cotangent"])
    torch.testing.assert_close(y, tensors["y"], rtol=1e-5, atol=1e-5)
    for name, tensor in (("x", x), ("key", key), ("value", value)):
        torch.testing.assert_close(tensor.grad, tensors[f"grad_{name}"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-8), (torch.float32, 2e-5)])
def test_the_equations_equal_a_loop_over_rows_and_tokens(score: str, dtype: torch.dtype, tolerance: float) -> None:
    """Outputs and all three gradients equal those of the naive version at odd sizes."""
    leaves = [t.requires_grad_() for t in problem(7, 5, 13, 3, dtype)]
    cotangent = draw(7, 3, seed=9, dtype=dtype)
    expected = reference.pattention(*leaves, score)
    found = functional.pattention(*leaves, score=score)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    for ours, naive in zip(
        torch.autograd.grad(found, leaves, cotangent), torch.autograd.grad(expected, leaves, cotangent), strict=True
    ):
        torch.testing.assert_close(ours, naive, rtol=tolerance, atol=tolerance)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    score=st.sampled_from(sorted(SCORES)),
    lead=st.lists(st.integers(1, 3), max_size=2),
    sizes=st.tuples(st.integers(1, 6), st.integers(1, 9), st.integers(1, 5)),
    tau=st.floats(0.1, 50.0),
)
def test_any_shape_and_score_scale_equals_the_naive_version(score, lead, sizes, tau) -> None:
    """For every leading shape, every width down to 1 and every tau the equations without epsilon equal the loop."""
    width, tokens, out = sizes
    x, keys, values = draw(*lead, width), draw(tokens, width, seed=1), draw(tokens, out, seed=2)
    scale = None if score == "gelu" else tau
    expected = reference.pattention(x, keys, values, score, tau)
    found = functional.pattention(x, keys, values, score=score, score_scale=scale, eps=0.0)
    assert found.shape == (*lead, out)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_the_default_score_is_gelu_of_scores_over_their_norm_times_the_root_of_n() -> None:
    """TF eq. 5 by hand at n = 32: GELU(A sqrt(32) / ||A||_2)."""
    x, keys, _ = problem()
    scores = x @ keys.T
    by_hand = reference.gelu(scores / scores.norm(dim=-1, keepdim=True) * math.sqrt(32))
    weights = functional.pattention(x, keys, torch.eye(32, dtype=torch.float64))
    torch.testing.assert_close(weights, by_hand, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("tokens", [1, 7, 32, 501])
def test_scores_have_unit_root_mean_square_before_the_gelu(tokens: int) -> None:
    """With tau = sqrt(n) the RMS of the normalized scores is 1 for any number of tokens."""
    x, keys, _ = problem(tokens=tokens)
    normalized = functional._l2_normalize(x @ keys.T, math.sqrt(tokens), functional.EPSILON)
    torch.testing.assert_close(normalized.square().mean(-1), torch.ones(5, dtype=torch.float64), rtol=1e-7, atol=0)


def test_the_default_score_is_blind_to_the_scale_of_keys_and_inputs() -> None:
    """Keys times 7 and inputs times 0.3 leave the output alone; with gelu_l2_norm and gelu they do not."""
    x, keys, values = problem()
    for score in SCORES:
        before = functional.pattention(x, keys, values, score=score)
        after = functional.pattention(x * 0.3, keys * 7, values, score=score)
        assert torch.allclose(before, after, rtol=1e-6, atol=1e-8) == (score == "l2_norm_gelu"), score


def test_softmax_weights_are_positive_and_sum_to_the_token_count() -> None:
    """The score softmax is torch's softmax times n: non-negative, each row summing to n."""
    x, keys, _ = problem()
    weights = functional.softmax(x @ keys.T, 32.0)
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.full((5,), 32.0, dtype=torch.float64))
    torch.testing.assert_close(weights, torch.softmax(x @ keys.T, dim=-1) * 32)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("size", [1e3, 1e-12])
def test_scores_of_any_size_stay_finite_in_float32(score: str, size: float) -> None:
    """Scores of a thousand and of a million millionth give finite weights and gradients."""
    scores = (draw(4, 9, dtype=torch.float32).sign() * size).requires_grad_()
    weights = SCORES[score](scores, default_score_scale(score, 9))
    weights.square().sum().backward()
    assert weights.isfinite().all()
    assert scores.grad.isfinite().all()


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("zero", ["x", "keys", "both"])
def test_all_zero_inputs_and_keys_give_finite_outputs_and_gradients(score: str, zero: str) -> None:
    """Where the reference code gives NaN, an all-zero row gives zero (softmax: the mean value times n)."""
    x, keys, values = (t.float() for t in problem())
    x = torch.zeros_like(x) if zero in ("x", "both") else x
    keys = torch.zeros_like(keys) if zero in ("keys", "both") else keys
    leaves = [t.clone().requires_grad_() for t in (x, keys, values)]
    y = functional.pattention(*leaves, score=score)
    y.sum().backward()
    assert all(leaf.grad.isfinite().all() for leaf in leaves)
    expected = values.sum(0).expand(5, -1) if score == "softmax" else torch.zeros(5, 9)
    torch.testing.assert_close(y.detach(), expected)


def test_without_normalization_pattention_is_a_bias_free_perceptron() -> None:
    """The score gelu equals two linear layers with W1 = K and W2 = V^T."""
    x, keys, values = problem()
    first, second = torch.nn.Linear(16, 32, bias=False), torch.nn.Linear(32, 9, bias=False)
    first.weight.data, second.weight.data = keys, values.T.contiguous()
    expected = second(torch.nn.functional.gelu(first(x)))
    torch.testing.assert_close(functional.pattention(x, keys, values, score="gelu"), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("score", L2)
def test_zero_keys_change_nothing_while_the_score_scale_is_held(score: str) -> None:
    """Appending tokens with zero keys is exact with tau held, and moves the output by far with tau = sqrt(new n)."""
    x, keys, values = problem()
    grown = torch.cat((keys, torch.zeros(7, 16, dtype=keys.dtype))), torch.cat((values, draw(7, 9, seed=5)))
    before = functional.pattention(x, keys, values, score=score)
    held = functional.pattention(x, *grown, score=score, score_scale=math.sqrt(32))
    followed = functional.pattention(x, *grown, score=score)
    torch.testing.assert_close(held, before, rtol=1e-12, atol=1e-12)
    assert (followed - before).norm() / before.norm() > 0.05


@pytest.mark.parametrize("score", SCORES)
def test_only_the_last_axis_is_touched(score: str) -> None:
    """Swapping or permuting leading axes of the input swaps or permutes the output."""
    x, (_, keys, values) = draw(3, 4, 16), problem()
    y = functional.pattention(x, keys, values, score=score)
    swapped = functional.pattention(x.transpose(0, 1), keys, values, score=score)
    permuted = functional.pattention(x[[2, 0, 1]], keys, values, score=score)
    torch.testing.assert_close(swapped, y.transpose(0, 1))
    torch.testing.assert_close(permuted, y[[2, 0, 1]])


@pytest.mark.parametrize("score", SCORES)
def test_the_order_of_the_parameter_tokens_does_not_matter(score: str) -> None:
    """Permuting key and value tokens together leaves the output alone; permuting the keys alone does not."""
    x, keys, values = problem()
    order = torch.randperm(32, generator=torch.Generator().manual_seed(0))
    y = functional.pattention(x, keys, values, score=score)
    torch.testing.assert_close(functional.pattention(x, keys[order], values[order], score=score), y)
    assert not torch.allclose(functional.pattention(x, keys[order], values, score=score), y, atol=1e-2)


def test_an_unknown_score_is_refused_with_the_known_ones() -> None:
    """A misspelt score names the four that exist."""
    with pytest.raises(ValueError, match="one of l2_norm_gelu, gelu_l2_norm, softmax, gelu; got 'l2_norm_gleu'"):
        functional.pattention(*problem(), score="l2_norm_gleu")


def test_a_wrong_shape_is_refused_while_testing() -> None:
    """The jaxtyping signatures are checked in this session: keys of another width never reach the product."""
    import jaxtyping

    x, keys, values = problem()
    with pytest.raises(jaxtyping.TypeCheckError, match="in_features"):
        functional.pattention(x[:, :-1], keys, values)
