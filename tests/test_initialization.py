"""Fresh parameters: the standard deviations that the papers and their code give, in the finished model."""

import math

import pytest
import torch

from gnomon import GnomonConfig, GnomonForCausalLM
from gnomon.nn.initialization import INITIALIZATIONS, normal, tokenformer
from gnomon.nn.projections import Pattention
from samples import BASE, LINEAR

WIDE = {**BASE, "vocab_size": 500, "hidden_size": 96, "num_hidden_layers": 3}
"""Large enough for a standard deviation to be measured within 3%."""


def parameters(**changes) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model = GnomonForCausalLM(GnomonConfig(**{**WIDE, **changes}))
    return {name.replace("model.layers.1.", ""): p.detach() for name, p in model.named_parameters()}


def assert_std(tensor: torch.Tensor, expected: float) -> None:
    assert abs(tensor.std().item() / expected - 1.0) < 0.03
    assert abs(tensor.mean().item()) < 4 * expected / math.sqrt(tensor.numel())


def test_tokenformer_keys_have_std_0_02_and_values_two_over_l_root_d() -> None:
    """Keys and embeddings N(0, 0.02), values N(0, 2 / (L sqrt(d))), as standard deviations, at every site."""
    fresh = parameters()
    small = 2 / (3 * math.sqrt(96))
    assert_std(fresh["model.embed_tokens.weight"], 0.02)
    for site in ("attention.query", "attention.key", "attention.value", "attention.output", "feed_forward"):
        assert_std(fresh[f"{site}.key_tokens"], 0.02)
        assert_std(fresh[f"{site}.value_tokens"], small)


def test_normal_weights_have_std_0_02_and_residual_ones_less_by_root_2l() -> None:
    """GPT-2's rule: 0.02 everywhere, 0.02 / sqrt(2 L) where an output joins the residual stream; biases zero."""
    fresh = parameters(projection="linear", use_bias=True)
    small = 0.02 / math.sqrt(6)
    for site in ("attention.query", "attention.key", "attention.value", "feed_forward.up"):
        assert_std(fresh[f"{site}.weight"], 0.02)
        assert fresh[f"{site}.bias"].abs().max() == 0
    for site in ("attention.output", "feed_forward.down"):
        assert_std(fresh[f"{site}.weight"], small)
        assert fresh[f"{site}.bias"].abs().max() == 0
    assert (fresh["attention_residual.before.weight"] == 1).all()
    assert (fresh["attention_residual.before.bias"] == 0).all()


@pytest.mark.parametrize("initialization", INITIALIZATIONS)
@pytest.mark.parametrize("projection", ["linear", "pattention"])
def test_any_rule_can_start_any_projection(initialization: str, projection: str) -> None:
    """Every product of rule and projection gives finite weights that scale with initializer_range where they should."""
    fresh = parameters(initialization=initialization, projection=projection, initializer_range=0.05)
    assert all(tensor.isfinite().all() for tensor in fresh.values())
    assert_std(fresh["model.embed_tokens.weight"], 0.05)


@pytest.mark.parametrize(("layers", "width"), [(12, 768), (24, 1024), (40, 1536)])
def test_the_rules_follow_their_formulas_at_published_sizes(layers: int, width: int) -> None:
    """The rules are functions of depth and width; a gated layer's gate counts as an inner weight."""
    paper, gpt = (rule(num_layers=layers, hidden_size=width) for rule in (tokenformer, normal))
    assert paper("query", "value_tokens", width, width) == 2 / (layers * math.sqrt(width))
    assert paper("output", "weight", width, width) == 2 / (layers * math.sqrt(width))
    assert paper("gate", "weight", width, width) == gpt("gate", "weight", width, width) == 0.02
    assert gpt("feed_forward", "value_tokens", width, width) == 0.02 / math.sqrt(2 * layers)
    assert gpt("feed_forward", "key_tokens", width, width) == 0.02


def test_a_seed_decides_every_parameter() -> None:
    """The same seed gives the same model, bit for bit, and another seed another one."""
    first, again = parameters(), parameters()
    assert all(torch.equal(first[name], again[name]) for name in first)
    torch.manual_seed(1)
    other = GnomonForCausalLM(GnomonConfig(**WIDE)).model.embed_tokens.weight
    assert not torch.equal(first["model.embed_tokens.weight"], other)


def test_no_two_layers_or_sites_start_alike() -> None:
    """Every parameter tensor is drawn on its own."""
    torch.manual_seed(0)
    model = GnomonForCausalLM(GnomonConfig(**WIDE))
    drawn = [p.flatten()[:50] for p in model.parameters() if p.dim() == 2]
    assert len({tuple(values.tolist()) for values in drawn}) == len(drawn)


def test_a_fresh_pattention_keeps_the_variance_of_its_weights_at_any_token_count() -> None:
    """With tau = sqrt(n) the output's size per token is the same at 32 and at 2048 tokens."""
    torch.manual_seed(0)
    x = torch.randn(64, 96)
    sizes = []
    for tokens in (32, 2048):
        layer = Pattention(96, 96, tokens, value_std=1 / math.sqrt(tokens))
        sizes.append(layer(x).square().mean().sqrt().item())
    assert abs(sizes[0] / sizes[1] - 1) < 0.15


def test_untied_heads_start_as_the_embeddings_do() -> None:
    """A head of its own is drawn with the embedding's standard deviation."""
    fresh = parameters(tie_word_embeddings=False)
    assert_std(fresh["lm_head.weight"], 0.02)
    assert not torch.equal(fresh["lm_head.weight"], fresh["model.embed_tokens.weight"])


def test_a_linear_twin_starts_with_the_loss_of_a_uniform_guess() -> None:
    """At the start both kinds of model predict nearly uniformly: the loss is log(vocabulary) within 5%."""
    for fields in ({**WIDE}, {**WIDE, **{k: v for k, v in LINEAR.items() if k not in WIDE}}):
        torch.manual_seed(0)
        model = GnomonForCausalLM(GnomonConfig(**fields)).eval()
        ids = torch.randint(500, (4, 50))
        assert abs(model(input_ids=ids, labels=ids).loss.item() / math.log(500) - 1) < 0.05
