"""`Pattention` as a stand-in for a linear layer, and its score scale, which no cast may round."""

import copy
import io
import math
import pickle

import pytest
import torch
from torch import nn

import reference
from gnomon.nn import Linear, Pattention, build_projection
from gnomon.nn.functional import SCORES
from gnomon.nn.initialization import normal
from gnomon.nn.projections import Embedding

RULE = normal(num_layers=2, hidden_size=32)
EXACT = math.sqrt(2140)
"""46.2601: bfloat16 would make it 46.25."""

CASTS = {
    "bfloat16": lambda m: m.bfloat16(),
    "half": lambda m: m.half(),
    "to(bfloat16)": lambda m: m.to(torch.bfloat16),
    "to(float16, cpu)": lambda m: m.to("cpu", torch.float16),
    "there and back": lambda m: m.bfloat16().float().half().float(),
    "twice": lambda m: m.half().bfloat16(),
    "inside a parent": lambda m: nn.Sequential(nn.Sequential(m)).bfloat16()[0][0],
}


def layer(**arguments) -> Pattention:
    torch.manual_seed(0)
    return Pattention(8, 6, **{"num_tokens": 2140, "key_std": 1.0, "value_std": 1.0, **arguments})


def tau(scale: float) -> torch.Tensor:
    return torch.tensor([scale], dtype=torch.float32)


@pytest.mark.parametrize("score", SCORES)
def test_the_module_equals_the_naive_formula(score: str) -> None:
    """Outputs and gradients of a fresh layer are those of the loop over rows and tokens."""
    module = layer(num_tokens=7, score=score)
    x = torch.randn(2, 3, 8, requires_grad=True)
    leaves = (x, module.key_tokens, module.value_tokens)
    found, expected = module(x), reference.pattention(*leaves, score)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    for ours, naive in zip(
        torch.autograd.grad(found.sum(), leaves), torch.autograd.grad(expected.sum(), leaves), strict=True
    ):
        torch.testing.assert_close(ours, naive, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("learn", [False, True])
@pytest.mark.parametrize("cast", CASTS)
def test_the_score_scale_stays_float32_under_every_narrowing_cast(cast: str, learn: bool) -> None:
    """After any chain of casts to half precision tau is the same float32 number, a buffer or a parameter as before."""
    module = CASTS[cast](layer(learn_score_scale=learn))
    assert module.score_scale.dtype == torch.float32
    assert torch.equal(module.score_scale.detach(), tau(EXACT))
    assert isinstance(module.score_scale, nn.Parameter) == learn
    assert "score_scale" in module.state_dict()


@pytest.mark.parametrize("learn", [False, True])
def test_double_widens_the_score_scale_and_keeps_its_value(learn: bool) -> None:
    """tau is never narrower than float32 but follows the module to float64, and back from there to float32."""
    module = layer(learn_score_scale=learn).double()
    assert module.score_scale.dtype == torch.float64
    assert torch.equal(module.score_scale.detach(), tau(EXACT).double())
    assert torch.equal(module.bfloat16().score_scale.detach(), tau(EXACT))


def test_a_learned_score_scale_keeps_its_identity_and_a_fitting_gradient_through_a_cast() -> None:
    """An optimizer made before `.bfloat16()` still steps tau after it: same object, gradient of tau's dtype."""
    module = layer(num_tokens=4, learn_score_scale=True)
    optimizer, before = torch.optim.SGD(module.parameters(), lr=0.1), module.score_scale
    module(torch.randn(3, 8)).sum().backward()
    module.bfloat16()
    assert module.score_scale is before
    assert before.grad.dtype == before.dtype == torch.float32
    optimizer.step()
    assert before.item() != 2.0


def test_bfloat16_forward_and_backward_use_the_exact_score_scale() -> None:
    """A layer cast to bfloat16 computes in bfloat16 within 2% of float32, and so do its gradients."""
    module, x = layer(num_tokens=40), torch.randn(16, 8).bfloat16()
    low = copy.deepcopy(module).bfloat16()
    high = copy.deepcopy(low).float()
    low(x).sum().backward()
    high(x.float()).sum().backward()
    assert low(x).dtype == low.key_tokens.grad.dtype == torch.bfloat16
    for narrow, wide in ((low(x), high(x.float())), (low.key_tokens.grad, high.key_tokens.grad)):
        assert (narrow.float() - wide).norm() < 0.02 * wide.norm()


@pytest.mark.parametrize("score", SCORES)
def test_deepcopy_pickle_and_state_dicts_keep_everything(score: str) -> None:
    """A copy, a pickle and a state dict written to a file and read back compute the same, a held tau included."""
    module = layer(num_tokens=5, score=score, score_scale=None if score == "gelu" else 3.7).bfloat16()
    x = torch.randn(3, 8).bfloat16()
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    restored = layer(num_tokens=5, score=score).bfloat16()
    restored.load_state_dict(torch.load(file, weights_only=True))
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), restored):
        assert torch.equal(other(x), module(x))
        assert other.score_scale is None if score == "gelu" else torch.equal(other.score_scale, tau(3.7))


def test_a_module_on_the_meta_device_becomes_real_with_its_score_scale() -> None:
    """Built without memory, given memory and reset, a layer has the tau that its token count asks for."""
    with torch.device("meta"):
        module = layer()
    module = module.bfloat16().to_empty(device="cpu")
    module.reset_parameters()
    assert torch.equal(module.score_scale, tau(EXACT))
    assert module.key_tokens.isfinite().all()


def test_the_default_score_scale_follows_the_score() -> None:
    """tau starts at sqrt(n), for softmax at n, and gelu has none."""
    found = {score: layer(num_tokens=9, score=score).score_scale for score in SCORES}
    assert [None if scale is None else scale.item() for scale in found.values()] == [3.0, 3.0, 9.0, None]


@pytest.mark.parametrize("build", [nn.Linear, Linear, lambda i, o: Pattention(i, o, num_tokens=11)])
def test_a_projection_takes_any_leading_axes(build) -> None:
    """Linear layers and Pattention agree in what they accept: no batch axis, several, or an empty one."""
    module = build(8, 6)
    for lead in ((), (3,), (0,), (2, 0, 4), (2, 3, 4)):
        assert module(torch.randn(*lead, 8)).shape == (*lead, 6)


def test_the_batch_comes_first_and_only_the_last_axis_is_touched() -> None:
    """P(x^T) = P(x)^T over the leading axes, and permuting the batch permutes the output."""
    module, x = layer(num_tokens=11), torch.randn(3, 4, 8)
    torch.testing.assert_close(module(x.transpose(0, 1)), module(x).transpose(0, 1))
    torch.testing.assert_close(module(x[[2, 0, 1]]), module(x)[[2, 0, 1]])


def test_the_factory_builds_what_it_is_asked_for() -> None:
    """`linear` and `pattention` come with the standard deviations that the rule gives to their site."""
    linear = build_projection("linear", 8, 6, site="down", rule=RULE, bias=True)
    tokens = build_projection("pattention", 8, 6, site="feed_forward", rule=RULE, num_tokens=5, score="softmax")
    assert linear.std == tokens.value_std == 0.02 / math.sqrt(4)
    assert linear.bias.abs().sum() == 0
    assert (tokens.key_std, tokens.score, tokens.num_tokens) == (0.02, "softmax", 5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"score": "l1"}, "score must be one of"),
        ({"num_tokens": 0}, "num_tokens of a Pattention must be at least 1; got 0"),
        ({"score": "gelu", "score_scale": 2.0}, "has no score scale"),
        ({"score": "gelu", "learn_score_scale": True}, "has no score scale"),
        ({"score_scale": 0.0}, "score_scale must be above 0 and finite; got 0.0"),
        ({"score_scale": -1.0}, "score_scale must be above 0"),
        ({"score_scale": math.nan}, "score_scale must be above 0"),
    ],
)
def test_what_cannot_be_built_is_refused_with_the_rule(arguments: dict, message: str) -> None:
    """Unknown scores, empty layers and senseless score scales raise a ValueError that names the rule."""
    with pytest.raises(ValueError, match=message):
        layer(**arguments)


def test_an_unknown_projection_is_refused() -> None:
    """The factory names the two kinds that there are."""
    with pytest.raises(ValueError, match="projection must be linear or pattention; got 'conv'"):
        build_projection("conv", 8, 6, site="query", rule=RULE)


def test_embeddings_start_with_their_standard_deviation() -> None:
    """An embedding table is drawn with the std it was given, its padding row zero."""
    table = Embedding(5000, 16, padding_idx=3, std=0.5).weight
    assert abs(table.std().item() - 0.5) < 0.01
    assert table[3].abs().sum() == 0
