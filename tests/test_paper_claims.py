"""What the TokenFormer paper, its code and its author say, as far as a few seconds can show it."""

import itertools
import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from gnomon import GnomonConfig
from gnomon.models.presets import PRESETS
from gnomon.models.sizes import resolve
from gnomon.nn import Pattention, functional
from samples import BASE, TINY, language_model, random_ids

GROWTH = [name for name in PRESETS if name.startswith("tokenformer-growth-")]


def draw(*shape: int, seed: int = 0, size: float = 1.0) -> torch.Tensor:
    return size * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def counted(model, length: int) -> dict[str, int]:
    """Floating point operations of a forward pass, by kind of product."""
    model.set_attn_implementation("eager")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=random_ids(1, length), use_cache=False)
    return {str(operation).split(".")[-1]: flops for operation, flops in counter.get_flop_counts()["Global"].items()}


def test_token_token_attention_costs_the_same_however_many_parameter_tokens() -> None:
    """Ten times the tokens multiply the projections' products and leave those among tokens, and the cache, alone."""
    small = language_model()
    large = language_model(**{name: 10 * count for name, count in TINY.items() if name.endswith("_tokens")})
    found = [counted(model, 24) for model in (small, large)]
    attention = 4 * BASE["num_hidden_layers"] * BASE["hidden_size"] * 24**2
    for flops in found:
        assert attention <= flops["bmm"] < 1.05 * attention  # and the rotary angles
    assert found[0]["bmm"] == found[1]["bmm"]
    assert found[1]["mm"] > 5 * found[0]["mm"]
    caches = [model(input_ids=random_ids(1, 24)).cache.layers[0].keys.shape for model in (small, large)]
    assert caches[0] == caches[1]


def test_the_growth_chain_keeps_every_size_but_its_token_counts() -> None:
    """From 124M to 1.4B only the parameter tokens change: width, depth, heads and positions stay."""
    chain = [resolve(PRESETS[name]) for name in GROWTH]
    assert len(chain) == 4
    changed = {key for fields in chain for key in fields if fields[key] != chain[0][key]}
    assert changed == {"num_attention_tokens", "num_output_tokens", "num_feed_forward_tokens"}
    ratios = [math.sqrt(b["num_attention_tokens"] / a["num_attention_tokens"]) for a, b in itertools.pairwise(chain)]
    assert [round(ratio, 2) for ratio in ratios] == [1.93, 1.51, 1.33]


def test_a_released_layout_has_no_biases_and_no_norm_parameters_in_its_blocks() -> None:
    """10 L + 3 tensors: two tables of tokens at five sites a layer, the embeddings, and the final norm's pair."""
    names = [name for name, _ in language_model().named_parameters()]
    assert len(names) == 10 * 2 + 3
    assert not [name for name in names if "bias" in name and name != "model.norm.bias"]


def test_the_gradient_of_the_score_is_the_papers() -> None:
    """dS_i/dA_j = f'(Z_i) (1/sqrt(n)) (1/||A||) (n 1[i=j] - Z_i Z_j), with f the GELU and Z the scores before it."""
    n, scores = 9, draw(9)
    z = scores * math.sqrt(n) / scores.norm()
    slope = 0.5 * (1 + torch.erf(z / math.sqrt(2))) + z * torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    expected = slope[:, None] / math.sqrt(n) / scores.norm() * (n * torch.eye(n, dtype=torch.float64) - z[:, None] * z)
    found = torch.autograd.functional.jacobian(lambda a: functional.l2_norm_gelu(a, math.sqrt(n)), scores)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("tokens", [16, 256])
def test_without_its_factor_the_softmax_loses_its_variance(tokens: int) -> None:
    """The author's reason for the factor n: softmax weights have size 1/n without it, and about 1 with it."""
    scores = draw(50, tokens)
    plain = functional.softmax(scores, 1.0).square().mean().sqrt()
    scaled = functional.softmax(scores, float(tokens)).square().mean().sqrt()
    assert plain < 3 / tokens
    assert 0.5 < scaled < 3


def test_large_scores_starve_the_softmax_of_gradient_and_not_the_l2_score() -> None:
    """Scores a hundred times larger leave most softmax rows without a gradient; the L2 score is blind to size."""

    def sensitivity(score: str, size: float) -> float:
        """How much a typical row's weights move when its scores change by a fixed share of their size."""
        scores = draw(20, 32, size=size).requires_grad_()
        tau = functional.default_score_scale(score, 32)
        weights = functional.SCORES[score](scores, tau)
        (gradient,) = torch.autograd.grad((weights * draw(20, 32, seed=1)).sum(), scores)
        return (gradient.norm(dim=-1).median() * size).item()

    assert sensitivity("softmax", 100.0) < 0.01 * sensitivity("softmax", 1.0)
    assert sensitivity("l2_norm_gelu", 100.0) == pytest.approx(sensitivity("l2_norm_gelu", 1.0), rel=1e-6)


def test_a_held_score_scale_makes_zero_key_growth_exact_in_a_whole_model() -> None:
    """TF eq. 26-31: zero keys change no logit while tau is held; with tau = sqrt(new n) they change it by far."""
    ids, changes = random_ids(2, 9), []
    for hold in (True, False):
        model = language_model()
        with torch.no_grad():
            before = model(input_ids=ids).logits
            for module in model.modules():
                if isinstance(module, Pattention):
                    keys, values = module.key_tokens, module.value_tokens
                    keys.data = torch.cat((keys, torch.zeros(8, keys.shape[1])))
                    values.data = torch.cat((values, torch.randn(8, values.shape[1])))
                    if not hold:
                        module.score_scale.fill_(math.sqrt(module.num_tokens))
            changes.append(((model(input_ids=ids).logits - before).norm() / before.norm()).item())
    assert changes[0] < 1e-5
    assert changes[1] > 0.05


def test_the_layer_is_blind_to_the_scale_of_its_keys_and_so_is_a_whole_model() -> None:
    """Multiplying every key token of a model by 7 changes no logit; multiplying the value tokens does."""
    ids, model = random_ids(2, 9), language_model()
    with torch.no_grad():
        before = model(input_ids=ids).logits
        for name, factor, same in (("key_tokens", 7.0, True), ("value_tokens", 1.1, False)):
            for module in model.modules():
                if isinstance(module, Pattention):
                    getattr(module, name).mul_(factor)
            change = (model(input_ids=ids).logits - before).norm() / before.norm()
            assert change < 1e-4 if same else change > 1e-2


def test_nearly_the_whole_head_is_free_of_positions() -> None:
    """A quarter of each head's dimensions turns, as in the released models: 16 of 64."""
    config = GnomonConfig(**PRESETS["tokenformer-150m"])
    assert (config.rotary_size, config.head_dim) == (16, 64)
