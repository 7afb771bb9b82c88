"""The fast path of Pattention against the equations and against finite differences, in every precision."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from gnomon.nn import functional, kernels
from gnomon.nn.functional import SCORES, default_score_scale
from gnomon.nn.kernels import FUSED_SCORES, FusedPattention

DOUBLE = torch.float64


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = DOUBLE) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE).to(dtype)


def problem(*lead: int, width: int = 5, tokens: int = 7, out: int = 3, dtype: torch.dtype = DOUBLE, tau: float = 2.5):
    """x, keys, values and tau, all of which want gradients."""
    shapes = ((*lead, width), (tokens, width), (tokens, out))
    leaves = [draw(*shape, seed=seed, dtype=dtype) for seed, shape in enumerate(shapes)]
    scale = torch.tensor([tau], dtype=torch.promote_types(dtype, torch.float32))
    return [leaf.requires_grad_() for leaf in (*leaves, scale)]


def run(path, leaves, score: str):
    x, keys, values, tau = leaves
    return path(x, keys, values, score=score, score_scale=None if score == "gelu" else tau)


def gradients(path, leaves, score: str, cotangent: torch.Tensor):
    y = run(path, leaves, score)
    return y, torch.autograd.grad(y, leaves, cotangent, allow_unused=True)


def assert_same(found, expected, **tolerance) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, **tolerance)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(DOUBLE, 1e-10), (torch.float32, 2e-5)])
@pytest.mark.parametrize("lead", [(), (1,), (11,), (2, 3, 4)])
def test_outputs_and_gradients_equal_the_equations(score: str, dtype: torch.dtype, tolerance: float, lead) -> None:
    """Output, input, key, value and tau gradients agree to rounding for any number of leading axes."""
    leaves, cotangent = problem(*lead, dtype=dtype), draw(*lead, 3, seed=9, dtype=dtype)
    found, ours = gradients(kernels.pattention, leaves, score, cotangent)
    expected, theirs = gradients(functional.pattention, leaves, score, cotangent)
    assert_same((found, *ours), (expected, *theirs), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("score", FUSED_SCORES)
def test_outputs_and_gradients_equal_a_loop_over_rows_and_tokens(score: str) -> None:
    """The hand-written gradient, tau's included, is that of the naive formula."""
    leaves, cotangent = problem(4), draw(4, 3, seed=9)
    expected = reference.pattention(*leaves[:3], score, leaves[3])
    theirs = torch.autograd.grad(expected, leaves, cotangent)
    found, ours = gradients(kernels.pattention, leaves, score, cotangent)
    assert_same((found, *ours), (expected, *theirs), rtol=1e-7, atol=1e-7)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    score=st.sampled_from(FUSED_SCORES),
    lead=st.lists(st.integers(0, 3), max_size=3),
    sizes=st.tuples(st.integers(1, 6), st.integers(1, 9), st.integers(1, 5)),
    tau=st.floats(0.05, 100.0),
    wanted=st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_any_shape_and_any_choice_of_gradients_equals_the_equations(score, lead, sizes, tau, wanted) -> None:
    """Empty batches, single tokens and frozen tensors included, each gradient that is asked for is right."""
    width, tokens, out = sizes
    leaves = problem(*lead, width=width, tokens=tokens, out=out, tau=tau)
    for leaf, want in zip(leaves, wanted, strict=True):
        leaf.requires_grad_(want)
    found, expected = (run(path, leaves, score) for path in (kernels.pattention, functional.pattention))
    asked = [leaf for leaf in leaves if leaf.requires_grad]
    assert found.requires_grad == bool(asked)
    if asked:
        cotangent = draw(*found.shape, seed=9)
        ours, theirs = (torch.autograd.grad(y, asked, cotangent) for y in (found, expected))
        assert_same(ours, theirs, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("score", FUSED_SCORES)
def test_first_and_second_derivatives_equal_finite_differences(score: str) -> None:
    """gradcheck and gradgradcheck pass in float64, also for a learned tau."""
    leaves = problem(3, width=3, tokens=4, out=2)
    assert torch.autograd.gradcheck(lambda *t: FusedPattention.apply(*t, score, 1e-3), leaves)
    assert torch.autograd.gradgradcheck(lambda *t: FusedPattention.apply(*t, score, 1e-3), leaves)


@pytest.mark.parametrize("score", FUSED_SCORES)
@pytest.mark.parametrize("create_graph", [False, True])
def test_a_layer_applied_twice_has_the_gradient_of_both_uses(score: str, create_graph: bool) -> None:
    """Where an input depends on the same tokens through an earlier use, no path is counted twice."""

    def twice(path):
        leaves = problem(4, width=5, out=5)
        y = path(run(path, leaves, score), *leaves[1:3], score=score, score_scale=leaves[3])
        grads = torch.autograd.grad(y.square().sum(), leaves, create_graph=create_graph)
        return [g.detach() for g in grads]

    assert_same(twice(kernels.pattention), twice(functional.pattention), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("score", FUSED_SCORES)
def test_a_gradient_penalty_equals_that_of_the_equations(score: str) -> None:
    """The gradient of a squared gradient agrees, as a penalty on input gradients needs it."""

    def penalty(path):
        leaves = problem(4)
        (grad,) = torch.autograd.grad(run(path, leaves, score).square().sum(), leaves[0], create_graph=True)
        return torch.autograd.grad(grad.square().sum(), leaves)

    assert_same(penalty(kernels.pattention), penalty(functional.pattention), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("score", SCORES)
def test_bfloat16_is_within_its_rounding_of_float32(score: str) -> None:
    """In bfloat16 outputs and gradients stay within 2% of float32, in norm: a few roundings of 2^-9 each."""
    tau = default_score_scale(score, 33) or 1.0
    wide = problem(40, width=24, tokens=33, out=17, dtype=torch.float32, tau=tau)
    wide = [t.detach().bfloat16().float().requires_grad_() for t in wide[:3]] + wide[3:]
    narrow = [t.detach().bfloat16().requires_grad_() for t in wide[:3]] + [wide[3].detach().requires_grad_()]
    cotangent = draw(40, 17, seed=9, dtype=torch.bfloat16)
    found, ours = gradients(kernels.pattention, narrow, score, cotangent)
    expected, theirs = gradients(kernels.pattention, wide, score, cotangent.float())
    assert found.dtype == torch.bfloat16
    for grad, leaf in zip(ours, narrow, strict=True):
        assert grad is None or grad.dtype == leaf.dtype
    for low, high in [(found, expected), *zip(ours[:3], theirs[:3], strict=True)]:
        assert (low.float() - high).norm() < 0.02 * high.norm()
    if score != "gelu":  # one number that sums the rows' contributions of both signs
        assert abs(ours[3] - theirs[3]) < 0.03 * theirs[3].abs() + 0.03


@pytest.mark.parametrize("score", SCORES)
def test_autocast_computes_in_bfloat16_and_keeps_float32_gradients(score: str) -> None:
    """Under autocast float32 parameters give bfloat16 outputs near float32's, and float32 gradients."""
    leaves, cotangent = problem(40, width=24, tokens=33, out=17, dtype=torch.float32), draw(40, 17, seed=9)
    expected, theirs = gradients(kernels.pattention, leaves, score, cotangent.float())
    with torch.autocast("cpu", torch.bfloat16):
        y = run(kernels.pattention, leaves, score)
    ours = torch.autograd.grad(y, leaves[:3], cotangent.bfloat16())
    assert y.dtype == torch.bfloat16
    for low, high in [(y, expected), *zip(ours, theirs[:3], strict=True)]:
        assert (low.float() - high).norm() < 0.02 * high.norm()
    assert {grad.dtype for grad in ours} == {torch.float32}


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("zero", ["x", "keys", "values"])
def test_all_zero_tensors_give_finite_outputs_and_the_equations_gradients(score: str, zero: str) -> None:
    """At all-zero inputs, keys or values the fast path is finite and equal to the equations."""
    leaves = problem(4, dtype=torch.float32)
    with torch.no_grad():
        leaves[("x", "keys", "values").index(zero)].zero_()
    cotangent = draw(4, 3, seed=9, dtype=torch.float32)
    found, ours = gradients(kernels.pattention, leaves, score, cotangent)
    expected, theirs = gradients(functional.pattention, leaves, score, cotangent)
    assert all(grad is None or grad.isfinite().all() for grad in ours)
    assert_same((found, *ours), (expected, *theirs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("score", FUSED_SCORES)
def test_function_transforms_go_through_the_equations(score: str) -> None:
    """torch.func's vmap and grad see the same function as a loop over the batch."""
    x, keys, values, tau = (t.detach() for t in problem(6))

    def loss(row):
        return kernels.pattention(row, keys, values, score=score, score_scale=tau).square().sum()

    each = torch.stack([torch.func.grad(loss)(row) for row in x])
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss))(x), each)
    leaf = x.clone().requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(loss(leaf), leaf)[0], each)


@pytest.mark.parametrize("score", FUSED_SCORES)
def test_neither_inputs_nor_tokens_are_overwritten(score: str) -> None:
    """The in-place passes touch only the kernel's own scores: arguments and upstream gradients keep their values."""
    leaves, cotangent = problem(4), draw(4, 3, seed=9)
    before = [t.detach().clone() for t in (*leaves, cotangent)]
    y = run(kernels.pattention, leaves, score)
    first = torch.autograd.grad(y, leaves, cotangent, retain_graph=True)
    second = torch.autograd.grad(y, leaves, cotangent)
    assert_same([t.detach() for t in (*leaves, cotangent)], before, rtol=0, atol=0)
    assert_same(first, second, rtol=0, atol=0)
