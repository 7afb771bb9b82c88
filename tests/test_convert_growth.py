"""What people have grows: converted models of transformers, made larger, and written back larger."""

from pathlib import Path

import pytest

import gnomon
from conversions import MODELS, build, convert, gap, ids_for, load, logits


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("pythia", {"num_hidden_layers": 5}),
        ("pythia", {"intermediate_size": 160}),
        ("pythia", {"hidden_size": 64, "num_attention_heads": 8}),
        ("serial gpt-neox", {"hidden_size": 96, "num_attention_heads": 12, "intermediate_size": 100}),
        ("gpt2", {"intermediate_size": 160}),
        ("gpt2", {"hidden_size": 64, "num_attention_heads": 8}),
        ("llama", {"num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 100}),
        ("bitnet", {"num_hidden_layers": 3}),
        ("kosmos-2", {"num_hidden_layers": 3}),
    ],
    ids=str,
)
def test_what_was_converted_grows_exactly_and_goes_back_larger(
    name: str, sizes: dict[str, int], tmp_path: Path
) -> None:
    """The float64 gap is below 1e-12, and transformers loads the larger folder and computes what it did before."""
    form, cls, config = MODELS[name]
    theirs = build(cls, config)
    theirs.save_pretrained(tmp_path / "theirs")
    convert(form, tmp_path / "theirs", tmp_path / "ours")
    model, ids = load(tmp_path / "ours").double(), ids_for(theirs, 2, 9)
    before = logits(model, ids)
    report = gnomon.grow(model, seed=0, **sizes)
    assert report.exact
    assert report.gap_relative < 1e-12
    assert report.parameters_after > report.parameters_before
    assert gap(logits(model, ids), before) < 1e-12
    model.float().save_pretrained(tmp_path / "grown")
    convert(tmp_path / "grown", tmp_path / "back", "--to", form)
    larger = cls.from_pretrained(tmp_path / "back")
    assert larger.num_parameters() == report.parameters_after
    assert gap(logits(larger, ids), logits(theirs, ids)) < 1e-6


@pytest.mark.parametrize("sizes", [{"num_attention_heads": 6}, {"head_dim": 16}])
def test_a_pythia_gets_heads_that_its_own_layout_cannot_say(sizes: dict[str, int], tmp_path: Path) -> None:
    """More heads than fill the width, or wider ones, grow exactly; only the way back is refused, by head_dim."""
    form, cls, config = MODELS["pythia"]
    build(cls, config).save_pretrained(tmp_path / "theirs")
    convert(form, tmp_path / "theirs", tmp_path / "ours")
    model = load(tmp_path / "ours").double()
    assert gnomon.grow(model, seed=0, **sizes).gap_relative < 1e-12
    model.save_pretrained(tmp_path / "grown")
    with pytest.raises(ValueError, match="the GPT-NeoX layout needs head_dim"):
        convert(tmp_path / "grown", tmp_path / "back", "--to", form)
