"""The published sizes: parameters counted on the meta device, and a Transformer of the same size for each."""

import functools

import pytest
import torch

import gnomon
from gnomon.models.presets import PRESETS, TOKENFORMERS, preset, preset_fields, presets
from gnomon.nn.projections import Pattention

EXACT = {
    "150m": 151_881_216,
    "450m": 454_166_528,
    "900m": 903_252_480,
    "1.5b": 1_587_219_456,
    "owt2-354m": 353_503_232,
    "owt2-757m": 756_156_416,
}
MILLIONS = {"growth-124m": 123.6, "growth-354m": 354.2, "growth-757m": 753.8, "growth-1.4b": 1309.7}

# facts of the papers' tables: layers, width, tokens of attention and of the feed-forward, heads
ROWS = {
    "150m": (12, 768, 768, 3072, 12),
    "450m": (24, 1024, 1024, 4096, 16),
    "900m": (32, 1280, 1280, 5120, 16),
    "1.5b": (40, 1536, 1536, 6144, 16),
    "growth-124m": (12, 768, 576, 2304, 12),
    "growth-354m": (12, 768, 2140, 8560, 12),
    "growth-757m": (12, 768, 4850, 19400, 12),
    "growth-1.4b": (12, 768, 8620, 34480, 12),
    "owt2-354m": (24, 1024, 768, 3072, 16),
    "owt2-757m": (24, 1024, 1792, 7168, 16),
}


@functools.cache
def parameters(name: str) -> int:
    """Counted once a tensor, so that a tied head is not counted twice."""
    with torch.device("meta"):
        model = gnomon.GnomonForCausalLM(preset(name))
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("size", EXACT)
def test_released_sizes_allocate_the_published_number_of_parameters(size: str) -> None:
    """To the last parameter, with the tied table of 50,304 rows."""
    assert parameters(f"tokenformer-{size}") == EXACT[size]


@pytest.mark.parametrize("size", MILLIONS)
def test_the_growth_chain_has_the_published_millions(size: str) -> None:
    """The four models of the growth experiment round to the published figures."""
    assert round(parameters(f"tokenformer-{size}") / 1e6, 1) == MILLIONS[size]


@pytest.mark.parametrize("size", ROWS)
def test_presets_are_the_rows_of_the_papers_tables(size: str) -> None:
    """Layers, width, token counts and heads are the published ones, with a quarter of each head rotated."""
    layers, width, attention, feed_forward, heads = ROWS[size]
    config = preset(f"tokenformer-{size}")
    assert (config.num_hidden_layers, config.hidden_size, config.num_attention_heads) == (layers, width, heads)
    assert config.num_attention_tokens == config.num_output_tokens == attention
    assert config.num_feed_forward_tokens == feed_forward
    assert (config.score, config.vocab_size, config.norm, config.final_norm) == (
        "l2_norm_gelu", 50304, "layer_plain", "layer",
    )  # fmt: skip
    assert config.rope_parameters["partial_rotary_factor"] == 0.25
    assert config.tie_word_embeddings


@pytest.mark.parametrize("size", TOKENFORMERS)
def test_every_twin_is_a_transformer_of_the_same_size(size: str) -> None:
    """Linear, pre-norm, no parameter token, equal depth and heads, and within 1% of the TokenFormer's parameters."""
    twin, original = preset(f"transformer-{size}"), preset(f"tokenformer-{size}")
    assert (twin.projection, twin.feed_forward, twin.norm_placement) == ("linear", "mlp", "pre")
    assert twin.num_hidden_layers == original.num_hidden_layers
    assert twin.num_attention_heads == original.num_attention_heads
    assert twin.vocab_size == original.vocab_size
    assert abs(parameters(f"transformer-{size}") / parameters(f"tokenformer-{size}") - 1) < 0.01
    with torch.device("meta"):
        modules = gnomon.GnomonForCausalLM(twin).modules()
        assert not any(isinstance(module, Pattention) for module in modules)


@pytest.mark.parametrize("name", PRESETS)
def test_twins_have_ordinary_shapes(name: str) -> None:
    """Whole heads that can rotate, and a feed-forward between one and eight times the width."""
    config = preset(name)
    assert config.hidden_size == config.head_dim * config.num_attention_heads
    assert config.positions != "rotary" or config.rotary_size % 2 == 0
    if config.feed_forward == "mlp":
        assert config.hidden_size <= config.intermediate_size <= 8 * config.hidden_size


def test_tiny_presets_run_on_a_laptop() -> None:
    """The demos' models have about a million parameters and take a step."""
    for name in ("tokenformer-tiny", "transformer-tiny"):
        model = gnomon.GnomonForCausalLM(preset(name))
        ids = torch.arange(20)[None]
        assert 5e5 < parameters(name) < 2e6
        assert model(input_ids=ids, labels=ids).loss.isfinite()


def test_public_names_list_and_make_the_presets() -> None:
    """gnomon.presets() names them all, gnomon.preset(name) makes a new config each time."""
    assert gnomon.presets() == presets() == list(PRESETS)
    assert gnomon.preset("tokenformer-tiny") == preset("tokenformer-tiny")
    assert gnomon.preset("tokenformer-tiny") is not gnomon.preset("tokenformer-tiny")


def test_changing_a_presets_fields_does_not_change_the_table() -> None:
    """preset_fields gives a copy."""
    preset_fields("tokenformer-tiny")["hidden_size"] = 1
    assert preset("tokenformer-tiny").hidden_size == 128


def test_an_unknown_preset_is_refused_with_the_known_ones() -> None:
    """The error lists what there is."""
    with pytest.raises(ValueError, match=r"unknown preset 'tokenformer-151m'; there are tokenformer-150m, "):
        preset("tokenformer-151m")
