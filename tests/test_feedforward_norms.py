"""Feed-forward layers, norms and the residual block, each against its formula written out."""

import pytest
import torch
from torch import nn

import reference
from gnomon.nn import FeedForward, GatedFeedForward, Pattention, Residual, build_feed_forward, build_norm
from gnomon.nn.feedforward import ACTIVATIONS
from gnomon.nn.initialization import tokenformer
from gnomon.nn.norms import NORMS

RULE = tokenformer(num_layers=2, hidden_size=6)
FORMULAS = {
    "gelu": reference.gelu,
    "gelu_tanh": lambda x: 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))),
    "relu": lambda x: x * (x > 0),
    "relu2": lambda x: x * x * (x > 0),
    "silu": lambda x: x / (1 + torch.exp(-x)),
}


def layer(kind: str, **arguments):
    torch.manual_seed(0)
    built = build_feed_forward(kind, 6, **{"intermediate_size": 11, "activation": "gelu", "rule": RULE, **arguments})
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.normal_()
    return built


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", ["mlp", "glu"])
def test_a_linear_feed_forward_is_its_formula(kind: str, bias: bool, activation: str) -> None:
    """W_down phi(W_up x), gated W_down (phi(W_gate x) * W_up x), with biases where asked."""
    module, x = layer(kind, bias=bias, activation=activation), torch.randn(2, 3, 6)

    def affine(linear: nn.Linear, y: torch.Tensor) -> torch.Tensor:
        assert (linear.bias is not None) == bias
        return y @ linear.weight.T + (linear.bias if bias else 0.0)

    phi = FORMULAS[activation]
    hidden = phi(affine(module.gate, x)) * affine(module.up, x) if kind == "glu" else phi(affine(module.up, x))
    torch.testing.assert_close(module(x), affine(module.down, hidden), rtol=1e-4, atol=1e-4)


def test_a_pattention_feed_forward_is_one_pattention() -> None:
    """No second layer stands behind it: the layer is a single Pattention from the width to the width."""
    module = layer("pattention", num_tokens=13, score="gelu_l2_norm")
    assert type(module) is Pattention
    x = torch.randn(4, 6)
    expected = reference.pattention(x, module.key_tokens, module.value_tokens, "gelu_l2_norm")
    torch.testing.assert_close(module(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("kind", "cls"), [("mlp", FeedForward), ("glu", GatedFeedForward)])
def test_the_inner_norm_stands_before_the_second_projection(kind: str, cls: type) -> None:
    """With an inner LayerNorm the hidden units have zero mean before W_down sees them."""
    module = layer(kind, inner_norm=nn.LayerNorm(11, elementwise_affine=False))
    assert type(module) is cls
    seen = []
    module.down.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    module(torch.randn(4, 6))
    torch.testing.assert_close(seen[0].mean(-1), torch.zeros(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(seen[0].var(-1, unbiased=False), torch.ones(4), atol=1e-2, rtol=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "moe"}, "feed_forward must be mlp, glu or pattention; got 'moe'"),
        (
            {"kind": "mlp", "activation": "tanh"},
            "hidden_act must be one of gelu, gelu_tanh, relu, relu2, silu; got 'tanh'",
        ),
        ({"kind": "glu", "intermediate_size": None}, "feed_forward glu needs an intermediate_size"),
    ],
)
def test_what_cannot_be_built_is_refused_with_the_choices(arguments: dict, message: str) -> None:
    """Unknown kinds and activations, and a missing hidden width, raise a ValueError that says what there is."""
    with pytest.raises(ValueError, match=message):
        layer(**arguments)


@pytest.mark.parametrize("kind", [kind for kind in NORMS if kind != "none"])
def test_every_norm_is_its_formula(kind: str) -> None:
    """layer and layer_plain remove mean and variance, rms divides by the root mean square; eps joins the variance."""
    norm, x = build_norm(kind, 6, eps=0.1), torch.randn(4, 6)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.normal_()
    if kind == "rms":
        expected = x / torch.sqrt((x * x).mean(-1, keepdim=True) + 0.1) * norm.weight
    else:
        expected = reference.layer_norm(x, *norm.parameters(), eps=0.1)
    torch.testing.assert_close(norm(x), expected, rtol=1e-5, atol=1e-5)


def test_norms_have_the_parameters_that_their_names_promise() -> None:
    """layer: weight and bias; layer_plain: nothing; rms: a weight; none is the identity."""
    found = {kind: [name for name, _ in build_norm(kind, 6).named_parameters()] for kind in NORMS}
    assert found == {"layer": ["weight", "bias"], "layer_plain": [], "rms": ["weight"], "none": []}
    x = torch.randn(4, 6)
    assert torch.equal(build_norm("none", 6)(x), x)


def test_an_unknown_norm_is_refused() -> None:
    """The error names the norms that exist."""
    with pytest.raises(ValueError, match="norm must be one of layer, layer_plain, rms, none; got 'batch'"):
        build_norm("batch", 6)


def test_the_residual_is_outer_of_alpha_x_plus_after_of_y() -> None:
    """x' = outer(alpha x + after(y)); with nothing given it is x + y."""
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    after, outer = nn.Linear(6, 6), nn.Linear(6, 6)
    torch.testing.assert_close(Residual()(x, y), x + y)
    full = Residual(before=nn.Tanh(), after=after, outer=outer, scale=1.7)
    torch.testing.assert_close(full(x, y), outer(1.7 * x + after(y)))
    torch.testing.assert_close(full.before(x), torch.tanh(x))


def test_residual_dropout_acts_on_the_sublayer_in_training_alone() -> None:
    """Dropout removes parts of y, never of the stream x, and nothing in evaluation."""
    torch.manual_seed(0)
    residual, x, y = Residual(dropout=0.5), torch.full((400, 6), 3.0), torch.ones(400, 6)
    assert torch.equal(residual.eval()(x, y), x + y)
    trained = residual.train()(x, y)
    assert set(trained.unique().tolist()) == {3.0, 5.0}
    assert abs((trained == 3.0).float().mean() - 0.5) < 0.05
