"""Fresh parameters: the standard deviations that the papers and their code give, in the finished model."""

import math

import pytest
import torch

from gnomon import GnomonConfig, GnomonForCausalLM, GnomonForMaskedLM, GnomonForSeq2SeqLM
from gnomon.nn.initialization import INITIALIZATIONS, deepnet_scales, magneto_gains, normal, tokenformer
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
    """Every product of rule and projection gives finite weights; initializer_range is the base of the simple rules."""
    placement = {"magneto": "sub", "deepnet": "deep"}.get(initialization, "pre")
    fresh = parameters(
        initialization=initialization, projection=projection, initializer_range=0.05, norm_placement=placement
    )
    assert all(tensor.isfinite().all() for tensor in fresh.values())
    assert_std(fresh["model.embed_tokens.weight"], 0.05 if placement == "pre" else 96**-0.5)


@pytest.mark.parametrize(("layers", "gamma"), [(12, 1.7827), (24, 1.9675), (48, 2.1364), (72, 2.2293)])
def test_magneto_s_gains_of_one_stack_are_the_paper_s(layers: int, gamma: float) -> None:
    """sqrt(log 2L), for an encoder as for a decoder; a side that is not there has none."""
    assert magneto_gains(layers, 0) == (pytest.approx(gamma, abs=5e-5), 1.0)
    assert magneto_gains(0, layers) == (1.0, pytest.approx(gamma, abs=5e-5))


@pytest.mark.parametrize(("encoder", "decoder", "gains"), [(6, 6, (1.5473, 1.7001)), (18, 18, (2.1829, 1.9972))])
def test_magneto_s_gains_of_a_pair_are_the_paper_s(encoder: int, decoder: int, gains: tuple) -> None:
    """sqrt(1/3 log 3M log 2N) for the encoder and sqrt(log 3M) for the decoder."""
    assert magneto_gains(encoder, decoder) == pytest.approx(gains, abs=5e-5)


def test_deepnet_s_scales_are_the_paper_s() -> None:
    """alpha and beta of both sides for one stack and for a pair, and torchscale's 1.15 in place of 0.87."""
    one = deepnet_scales(0, 12)[1]
    assert (one.alpha, one.beta) == pytest.approx((24**0.25, 96**-0.25))
    encoder, decoder = deepnet_scales(6, 3)
    depth = (6**4 * 3) ** (1 / 16)
    assert (encoder.alpha, encoder.beta) == pytest.approx((0.81 * depth, 0.87 / depth))
    assert (decoder.alpha, decoder.beta) == pytest.approx((9**0.25, 36**-0.25))
    assert deepnet_scales(6, 3, encoder_factor=1.15)[0].beta == pytest.approx(1.15 / depth)


ARCHITECTURES = {
    "encoder": (GnomonForMaskedLM, {"num_hidden_layers": 12}, "model.layers.1.", "encoder"),
    "decoder": (GnomonForCausalLM, {"num_hidden_layers": 24}, "model.layers.1.", "decoder"),
    "pair's encoder": (GnomonForSeq2SeqLM, {"encoder_layers": 6, "decoder_layers": 4}, "model.encoder.layers.1.", "e"),
    "pair's decoder": (GnomonForSeq2SeqLM, {"encoder_layers": 6, "decoder_layers": 4}, "model.decoder.layers.1.", "d"),
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("placement", ["sub", "deep"])
def test_measured_stds_are_xavier_s_times_the_gain(architecture: str, placement: str) -> None:
    """Feed-forward, value and output have the gain, query and key do not; cross-attention only DeepNet's; biases 0."""
    cls, depth, prefix, _ = ARCHITECTURES[architecture]
    fields = {**LINEAR, "hidden_size": 96, "intermediate_size": 200, "num_hidden_layers": None, **depth}
    torch.manual_seed(0)
    model = cls(GnomonConfig(**{**fields, "norm_placement": placement, "use_bias": True}))
    named = {name.removeprefix(prefix): p.detach() for name, p in model.named_parameters() if name.startswith(prefix)}
    is_decoder = "decoder" in architecture
    sides = (depth.get("encoder_layers", 0), depth.get("decoder_layers", 0))
    layers = depth.get("num_hidden_layers")
    sides = sides if layers is None else (0, layers) if is_decoder else (layers, 0)
    gain = magneto_gains(*sides)[is_decoder] if placement == "sub" else deepnet_scales(*sides)[is_decoder].beta
    square, wide = math.sqrt(2 / 192), math.sqrt(2 / 296)
    for site, std in (("query", square), ("key", square), ("value", gain * square), ("output", gain * square)):
        assert_std(named[f"attention.{site}.weight"], std)
        if "cross_attention.query.weight" in named:
            assert_std(named[f"cross_attention.{site}.weight"], square if placement == "sub" else std)
    for site in ("up", "down"):
        assert_std(named[f"feed_forward.{site}.weight"], gain * wide)
    assert not any(tensor.any() for name, tensor in named.items() if name.endswith(".bias"))
    layer = model.get_submodule(prefix.rstrip("."))
    assert layer.feed_forward.up.gain == pytest.approx(gain), "the gain sits on the layer"
    assert layer.attention.query.gain == 1.0


def test_torchscale_s_flavor_starts_from_torch_s_own_layers_and_scales_biases() -> None:
    """Uniform within gain / sqrt(fan in), biases too, for sub and deep alike; query and key without gain."""
    for placement, gain in (("sub", magneto_gains(0, 2)[1]), ("deep", deepnet_scales(0, 2)[1].beta)):
        torch.manual_seed(0)
        fields = {**LINEAR, "hidden_size": 96, "intermediate_size": 200, "use_bias": True}
        config = GnomonConfig(**fields, norm_placement=placement, initialization_flavor="torchscale")
        layer = GnomonForCausalLM(config).model.layers[0]
        for module, factor, fan_in in (
            (layer.attention.query, 1.0, 96),
            (layer.attention.value, gain, 96),
            (layer.feed_forward.up, gain, 96),
            (layer.feed_forward.down, gain, 200),
        ):
            bound = factor / math.sqrt(fan_in)
            for tensor in (module.weight, module.bias):
                assert tensor.abs().max() <= bound
                assert tensor.abs().max() > 0.9 * bound
            assert_std(module.weight.detach(), bound / math.sqrt(3))


def test_pattention_under_sub_ln_has_the_gain_on_its_values() -> None:
    """Value tokens of the gained sites are Xavier's times gamma; key tokens of the attention are Xavier's."""
    fields = {**WIDE, "num_attention_tokens": 80, "num_output_tokens": 80, "num_feed_forward_tokens": 160}
    torch.manual_seed(0)
    layer = GnomonForCausalLM(GnomonConfig(**fields, norm_placement="sub")).model.layers[1]
    gamma = math.sqrt(math.log(6))
    for site in ("query", "key", "value", "output"):
        module = getattr(layer.attention, site)
        gain = gamma if site in ("value", "output") else 1.0
        assert_std(module.key_tokens.detach(), math.sqrt(2 / 176))
        assert_std(module.value_tokens.detach(), gain * math.sqrt(2 / 176))
        assert module.gain == pytest.approx(gain)
    assert_std(layer.feed_forward.value_tokens.detach(), gamma * math.sqrt(2 / 256))


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
