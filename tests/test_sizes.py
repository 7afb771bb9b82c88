"""What follows from what in a configuration, without torch."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon.models.sizes import DEFAULTS, SITES, check_tokens, compact, layer_tokens, resolve

COUNTS = st.one_of(
    st.integers(1, 9),
    st.fixed_dictionaries({site: st.integers(1, 9) for site in ("query", "key", "value")}),
)


def test_unset_fields_follow_from_the_width_and_the_projection() -> None:
    """TokenFormer: d tokens in attention, 4 d in the feed-forward, plain block norms, an affine final norm."""
    full = resolve({"hidden_size": 64, "num_attention_heads": 4})
    expected = {
        "num_key_value_heads": 4,
        "head_dim": 16,
        "feed_forward": "pattention",
        "num_attention_tokens": 64,
        "num_output_tokens": 64,
        "num_feed_forward_tokens": 256,
        "intermediate_size": None,
        "norm": "layer_plain",
        "final_norm": "layer",
        "initialization": "tokenformer",
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
    }
    assert {name: full[name] for name in expected} == expected


def test_a_linear_model_has_no_token_fields() -> None:
    """linear: an MLP of width 4 d, affine norms, GPT-2's initialization, and no count of tokens anywhere."""
    full = resolve({"hidden_size": 64, "num_attention_heads": 4, "projection": "linear"})
    assert (full["feed_forward"], full["intermediate_size"], full["norm"]) == ("mlp", 256, "layer")
    assert full["initialization"] == "normal"
    assert full["num_attention_tokens"] is full["num_output_tokens"] is full["num_feed_forward_tokens"] is None
    assert layer_tokens(full, 0) == dict.fromkeys(SITES, 0)


@pytest.mark.parametrize(("norm", "final"), [("layer", "layer"), ("layer_plain", "layer"), ("rms", "rms")])
def test_the_final_norm_follows_the_blocks_but_always_has_parameters(norm: str, final: str) -> None:
    """Only parameter-free block norms are not repeated at the end."""
    assert resolve({"norm": norm})["final_norm"] == final


def test_resolving_twice_changes_nothing_and_the_input_is_left_alone() -> None:
    """A resolved configuration is a fixed point; foreign keys are kept; the given mapping is not touched."""
    fields = {"hidden_size": 64, "rope_parameters": {"rope_theta": 5.0}, "architectures": ["X"]}
    once = resolve(fields)
    assert resolve(once) == once
    assert once["architectures"] == ["X"]
    assert fields == {"hidden_size": 64, "rope_parameters": {"rope_theta": 5.0}, "architectures": ["X"]}
    assert DEFAULTS["rope_parameters"] is None


def test_each_layer_and_site_reads_its_own_count() -> None:
    """Counts, mappings and lists with one entry a layer are read at their place."""
    fields = resolve(
        {
            "num_hidden_layers": 2,
            "num_attention_tokens": [16, {"query": 5, "key": 7, "value": 11}],
            "num_output_tokens": 9,
            "num_feed_forward_tokens": [48, 31],
        }
    )
    assert layer_tokens(fields, 0) == {"query": 16, "key": 16, "value": 16, "output": 9, "feed_forward": 48}
    assert layer_tokens(fields, 1) == {"query": 5, "key": 7, "value": 11, "output": 9, "feed_forward": 31}


@settings(deadline=None, derandomize=True)
@given(st.lists(COUNTS, min_size=1, max_size=4))
def test_the_shortest_form_says_the_same(counts: list) -> None:
    """Compacting a list of counts loses no layer and no site, and is never longer than needed."""
    short = compact(counts)
    check_tokens("num_attention_tokens", short, len(counts))
    fields = resolve({"num_hidden_layers": len(counts), "num_attention_tokens": counts})
    shorter = {**fields, "num_attention_tokens": short}
    for layer in range(len(counts)):
        assert layer_tokens(shorter, layer) == layer_tokens(fields, layer)
    flat = {tuple(layer_tokens(fields, layer)[s] for s in ("query", "key", "value")) for layer in range(len(counts))}
    assert isinstance(short, list) == (len(flat) > 1)
    if len(flat) == 1 and len(set(next(iter(flat)))) == 1:
        assert isinstance(short, int)


def test_sizes_and_presets_import_no_torch() -> None:
    """`gnomon info` reads both without paying for torch."""
    code = (
        "import sys; from gnomon.models.presets import preset_fields; from gnomon.models.sizes import resolve;"
        "resolve(preset_fields('tokenformer-150m')); sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
