"""Growth of every placement and topology through the one call: exact where it can be, and honest where it cannot."""

from typing import Any

import pytest
import torch

import gnomon
from gnomon import GnomonConfig
from gnomon.growth.report import probe_outputs
from samples import LINEAR, PLACED, POSITIONED, TINY

PAIR = {"num_hidden_layers": None, "encoder_layers": 2, "decoder_layers": 3, "decoder_start_token_id": 1}
HEADS = {
    "decoder": (gnomon.GnomonForCausalLM, {}),
    "encoder": (gnomon.GnomonForMaskedLM, {}),
    "pair": (gnomon.GnomonForSeq2SeqLM, PAIR),
    "classifier": (gnomon.GnomonForSequenceClassification, {"is_decoder": False, "num_labels": 3}),
}
PLACEMENTS = {"pre, tokens": TINY, "pre, linear": LINEAR, **PLACED}
OUTER = ("post", "deep")
"""Placements that norm the sum, so that a new block cannot be the identity."""


def build(head: str, fields: dict[str, Any]):
    cls, more = HEADS[head]
    torch.manual_seed(0)
    model = cls(GnomonConfig(**{**fields, **more})).double().eval()
    for name, parameter in model.named_parameters():
        if not name.endswith("score_scale"):
            parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def assert_grows(model, tmp_path, *, exact: bool | None, **arguments: Any) -> Any:
    """The report's flag and gap agree with the model, which trains on and comes back from disk as it is."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    probe = model.random_inputs()
    probe_outputs(model, probe)
    model(**probe)[0].square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    before = probe_outputs(model, probe)
    report = gnomon.grow(model, optimizer=optimizer, seed=0, **arguments)
    after = probe_outputs(model, probe)
    gap = ((after - before).norm() / before.norm()).item()
    assert report.gap_relative == pytest.approx(gap, rel=1e-6, abs=1e-15)
    if exact is not None:
        assert report.exact == exact
    assert (gap <= 1e-12) == report.exact
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, dtype=torch.float64).eval()
    torch.testing.assert_close(probe_outputs(loaded, probe), after, rtol=1e-6, atol=1e-6)  # tau is float32 on disk
    model(**probe)[0].square().mean().backward()
    optimizer.step()
    assert not torch.equal(probe_outputs(model, probe), after)
    return report


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(
    "variant", [name for name, fields in PLACEMENTS.items() if fields["hidden_size"] and "linear" not in name]
)
@pytest.mark.parametrize("init", ["exact", "replicate"])
def test_parameter_tokens_grow_exactly_everywhere(head: str, variant: str, init: str, tmp_path) -> None:
    """In self-attention, cross-attention and feed-forward alike, whatever the placement; both sides of a pair."""
    model = build(head, PLACEMENTS[variant])
    report = assert_grows(
        model,
        tmp_path,
        exact=True,
        init=init,
        num_attention_tokens=32,
        num_output_tokens=40,
        num_feed_forward_tokens=96,
    )
    sites = 5 * 2 if head != "pair" else 5 * 2 + 9 * 3
    assert len(report.parts) == sites
    assert model.config.num_attention_tokens == 32


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("variant", PLACEMENTS)
def test_new_layers_are_the_identity_unless_the_sum_is_normed(head: str, variant: str, tmp_path) -> None:
    """Exact for every placement whose norms stand on the branch; post-norm and DeepNorm say that they are not."""
    model = build(head, PLACEMENTS[variant])
    depths = {"encoder_layers": 3, "decoder_layers": 4} if head == "pair" else {"num_hidden_layers": 3}
    report = assert_grows(model, tmp_path, exact=not variant.startswith(OUTER), **depths)
    assert len(report.parts) == (2 if head == "pair" else 1)
    assert model.config.num_hidden_layers == (7 if head == "pair" else 3)


def test_deepnorm_s_alpha_is_held_when_layers_come() -> None:
    """The old blocks keep the factor that they were trained with, on both sides and in the config."""
    model = build("decoder", {**LINEAR, "norm_placement": "deep"})
    gnomon.grow(model, num_hidden_layers=5, seed=0)
    assert model.config.residual_scale == pytest.approx(4**0.25)
    assert {layer.feed_forward_residual.scale for layer in model.model.layers} == {model.config.residual_scale}
    pair = build("pair", {**LINEAR, "norm_placement": "deep"})
    held = [stack.layers[0].attention_residual.scale for stack in (pair.model.encoder, pair.model.decoder)]
    gnomon.grow(pair, decoder_layers=5, seed=0)
    assert pair.config.residual_scale == held
    assert (len(pair.model.encoder.layers), len(pair.model.decoder.layers)) == (2, 5)


WIDTHS = {
    "feed-forward": {"intermediate_size": 160},
    "feed-forward by half": {"intermediate_size": 120},
    "heads": {"num_attention_heads": 8},
    "hidden size": {"hidden_size": 64},
}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("variant", [name for name in PLACEMENTS if "linear" in name])
def test_widths_grow_in_every_placement_with_an_honest_flag(head: str, width: str, variant: str, tmp_path) -> None:
    """Whole factors are exact everywhere; part of an axis under an inner norm is not, and says so."""
    under_inner_norm = width == "feed-forward by half" and variant.startswith(("sub", "normformer"))
    assert_grows(build(head, PLACEMENTS[variant]), tmp_path, exact=not under_inner_norm, **WIDTHS[width])


@pytest.mark.parametrize("variant", ["learned positions", "relative bias"])
@pytest.mark.parametrize("width", ["heads", "hidden size"])
def test_learned_positions_grow_with_the_model(variant: str, width: str, tmp_path) -> None:
    """The position table widens as the embeddings do; new heads begin without a relative bias."""
    assert_grows(build("decoder", POSITIONED[variant]), tmp_path, exact=True, **WIDTHS[width])


@pytest.mark.parametrize(
    ("positions", "sizes", "said"),
    [
        ("alibi", {"num_attention_heads": 8, "num_key_value_heads": 8}, "alibi follow from num_attention_heads"),
        ("xpos", {"head_dim": 12}, "xpos follow from head_dim"),
        ("sinusoidal", {"hidden_size": 64}, "sinusoidal follow from hidden_size"),
    ],
)
def test_widths_that_positions_are_made_from_are_refused(positions: str, sizes: dict, said: str) -> None:
    """Growing them would change every position, so the rule is named and the model left alone."""
    model = build("decoder", {**LINEAR, "positions": positions})
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ValueError, match=said):
        gnomon.grow(model, **sizes)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("head", "depths", "said"),
    [
        ("decoder", {"encoder_layers": 4}, "encoder_layers is no depth of this model; it has num_hidden_layers"),
        ("pair", {"num_hidden_layers": 9}, "it has encoder_layers and decoder_layers"),
        ("pair", {"decoder_layers": 3}, "has 3 layers and cannot grow to 3"),
        ("pair", {"encoder_layers": 3, "decoder_layers": 4, "layers": [0]}, "places in one stack"),
    ],
)
def test_depths_of_another_topology_are_refused(head: str, depths: dict, said: str) -> None:
    """A single stack has one depth, a pair has two."""
    with pytest.raises(ValueError, match=said):
        gnomon.grow(build(head, LINEAR), **depths)
