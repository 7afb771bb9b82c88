"""Wider models: exact where that is possible, by three methods, with the optimizer."""

from pathlib import Path

import pytest
import torch

from gnomon import GnomonConfig, GnomonForCausalLM
from gnomon.growth.width import grow_width

MODELS = {
    "layer norm": {},
    "gated, biases, untied": {"feed_forward": "glu", "use_bias": True, "tie_word_embeddings": False},
    "rms norm": {"norm": "rms"},
    "grouped queries": {"num_key_value_heads": 2},
    "pattention": {"projection": "pattention"},
}
WIDTHS = {
    "feed-forward": {"intermediate_size": 192},
    "heads": {"num_attention_heads": 8},
    "key-value heads": {"num_attention_heads": 8, "num_key_value_heads": 4},
    "head size": {"head_dim": 12},
    "hidden size": {"hidden_size": 64},
    "odd hidden size": {"hidden_size": 40},
    "everything": {"intermediate_size": 256, "hidden_size": 64, "num_attention_heads": 8},
}
REFUSED = {
    ("pattention", "feed-forward"),
    ("pattention", "everything"),
    *((model, "odd hidden size") for model in MODELS if model != "rms norm"),
}
IDS = torch.randint(64, (2, 9), generator=torch.Generator().manual_seed(0))


def build(**fields: object) -> GnomonForCausalLM:
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = GnomonForCausalLM(GnomonConfig(**{**sizes, "projection": "linear", **fields})).double()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def step(model: GnomonForCausalLM, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(input_ids=IDS, labels=IDS).loss.backward()
    optimizer.step()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", MODELS)
def test_every_width_grows_exactly_or_is_refused(kind: str, width: str, tmp_path: Path) -> None:
    """Method `exact` moves the logits by at most 1e-12, trains on, and loads from disk; the rest is refused."""
    model = build(**MODELS[kind])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step(model, optimizer)
    before = model(input_ids=IDS).logits.detach()
    if (kind, width) in REFUSED:
        with pytest.raises(ValueError, match=r"whole factors|num_feed_forward_tokens"):
            grow_width(model, optimizer=optimizer, **WIDTHS[width])
        return
    report = grow_width(model, optimizer=optimizer, seed=0, **WIDTHS[width])
    assert report.exact
    after = model(input_ids=IDS).logits.detach()
    assert float((after - before).norm() / before.norm()) < 1e-12
    assert report.parameters_after > report.parameters_before
    step(model, optimizer)
    model.save_pretrained(tmp_path)
    loaded = GnomonForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    torch.testing.assert_close(loaded(input_ids=IDS).logits, model(input_ids=IDS).logits, rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", ["net2net", "hypercloning"])
@pytest.mark.parametrize("width", ["feed-forward", "heads", "hidden size", "everything"])
def test_the_baselines_preserve_the_function_too(width: str, method: str) -> None:
    """Net2Net and HyperCloning copy units and divide what reads them, so that the logits stay."""
    sizes = {"intermediate_size": 256} if (width, method) == ("feed-forward", "hypercloning") else WIDTHS[width]
    report = grow_width(build(), method=method, seed=0, **sizes)
    assert report.exact
    assert report.gap_relative < 1e-12


def test_copies_learn_apart_only_where_they_are_read_apart() -> None:
    """With offsets the copied units' gradients differ at once; without, copies get equal gradients and stay copies."""
    alike = {}
    for offset_std in (0.0, 1.0):
        model = build()
        width = model.model.layers[0].feed_forward.up.out_features
        grow_width(model, method="hypercloning", seed=0, offset_std=offset_std, intermediate_size=2 * width)
        model(input_ids=IDS, labels=IDS).loss.backward()
        first, second = model.model.layers[0].feed_forward.up.weight.grad.chunk(2)
        alike[offset_std] = float(torch.nn.functional.cosine_similarity(first, second).mean())
    assert alike[0.0] == pytest.approx(1.0)
    assert alike[1.0] < 0.9


def test_padding_the_hidden_size_under_layer_norm_would_not_be_exact() -> None:
    """The refusal of odd hidden sizes under LayerNorm has a reason: the padded vector has another mean and variance."""
    x = torch.randn(4, 32, dtype=torch.float64)
    padded = torch.nn.functional.layer_norm(torch.nn.functional.pad(x, (0, 8)), (40,))[:, :32]
    plain = torch.nn.functional.layer_norm(x, (32,))
    ratio = padded / plain
    assert float((ratio - ratio.mean()).abs().max()) > 1e-3


@pytest.mark.parametrize(
    ("sizes", "options", "said"),
    [
        ({"intermediate_size": 64}, {}, "larger"),
        ({"intermediate_size": 128}, {}, "nothing grows"),
        ({"width": 64}, {}, "widths are"),
        ({"intermediate_size": 192}, {"method": "copy"}, "exact, net2net"),
        ({"intermediate_size": 192}, {"method": "hypercloning"}, "whole factors"),
        ({"num_attention_heads": 6, "num_key_value_heads": 4}, {}, "key-value heads"),
        ({"head_dim": 12}, {"method": "net2net"}, "exact alone"),
    ],
)
def test_a_width_that_cannot_be_is_refused(sizes: dict, options: dict, said: str) -> None:
    """One sentence, and the model is as it was."""
    model = build()
    before = model(input_ids=IDS).logits
    with pytest.raises(ValueError, match=said):
        grow_width(model, **options, **sizes)
    assert torch.equal(model(input_ids=IDS).logits, before)
