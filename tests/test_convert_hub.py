"""Models of transformers in and out through saved folders: GPT-NeoX, GPT-2, Llama, BitNet, Kosmos-2's text decoder."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoTokenizer,
    BitNetConfig,
    GenerationConfig,
    Kosmos2Config,
    Kosmos2ForConditionalGeneration,
    Kosmos2TextConfig,
    PreTrainedTokenizerFast,
)

from conversions import (
    BASE,
    GPT2,
    KOSMOS2,
    MODELS,
    SPECIAL,
    build,
    convert,
    gap,
    ids_for,
    load,
    logits,
    write_tokenizer,
)
from gnomon.convert import FORMATS, from_bitnet, from_gpt2, from_gpt_neox, from_kosmos2, to_gpt_neox
from samples import language_model


@pytest.fixture(scope="module", params=MODELS, ids=str)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any, Path]:
    """A format, transformers' model, and a folder with it (`theirs`) and with its conversion (`ours`)."""
    form, cls, config = MODELS[request.param]
    folder = tmp_path_factory.mktemp("hub")
    theirs = build(cls, config)
    theirs.save_pretrained(folder / "theirs")
    convert(form, folder / "theirs", folder / "ours")
    return form, theirs, folder


def test_logits_equal_transformers(case: tuple[str, Any, Path]) -> None:
    """Saved by transformers, converted on the command line, loaded here: relative L2 below 1e-5 (1e-6 measured)."""
    _, theirs, folder = case
    ours, ids = load(folder / "ours"), ids_for(theirs, 2, 13)
    assert gap(logits(ours, ids), logits(theirs, ids)) < 1e-6
    assert gap(logits(build(type(theirs), theirs.config, seed=1), ids), logits(theirs, ids)) > 0.1


def test_generation_with_a_cache_and_left_padding_equals_transformers(case: tuple[str, Any, Path]) -> None:
    """Greedy continuations with our cache are the ids that transformers finds without one: positions go on alike."""
    _, theirs, folder = case
    ids, padding = ids_for(theirs, 2, 9), theirs.config.pad_token_id or 0
    mask = torch.ones_like(ids)
    ids[0, :4], mask[0, :4] = padding, 0
    options = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "pad_token_id": padding}
    expected = theirs.generate(ids, attention_mask=mask, use_cache=False, **options)
    assert torch.equal(load(folder / "ours").generate(ids, attention_mask=mask, **options), expected)
    assert gap(logits(theirs, ids)[0, -1], logits(theirs, ids, attention_mask=mask)[0, -1]) > 0.01


def test_the_way_back_is_bit_equal_and_loads_in_transformers(case: tuple[str, Any, Path], tmp_path: Path) -> None:
    """Every tensor returns to the last bit under a name that transformers loads; the configuration says the same."""
    form, theirs, folder = case
    convert(folder / "ours", tmp_path / "back", "--to", form)
    again, report = type(theirs).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    state = again.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in theirs.state_dict().items())
    assert AutoConfig.from_pretrained(tmp_path / "back").model_type == theirs.config.model_type
    ids = ids_for(theirs, 1, 9)
    assert gap(logits(again, ids), logits(theirs, ids)) < 1e-6
    convert(form, tmp_path / "back", tmp_path / "again")
    assert load(tmp_path / "again").config == load(folder / "ours").config


@pytest.mark.parametrize("name", ["pythia", "gpt2"])
def test_the_tokenizer_and_the_generation_settings_go_along_both_ways(tmp_path: Path, name: str) -> None:
    """The folder's tokenizer is OUT's, its ids bound generation, and --to takes both back."""
    form, cls, config = MODELS[name]
    model = build(cls, config)
    model.generation_config = GenerationConfig(temperature=0.7, do_sample=True, **SPECIAL)
    model.save_pretrained(tmp_path / "theirs")
    words = PreTrainedTokenizerFast(tokenizer_file=str(write_tokenizer(tmp_path)), eos_token="<|endoftext|>")
    words.save_pretrained(tmp_path / "theirs")
    convert(form, tmp_path / "theirs", tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "back", "--to", form)
    for folder in ("ours", "back"):
        assert AutoTokenizer.from_pretrained(tmp_path / folder).get_vocab() == words.get_vocab()
        generation = GenerationConfig.from_pretrained(tmp_path / folder)
        assert (generation.temperature, generation.do_sample) == (0.7, True)
        assert generation.suppress_tokens == list(range(40, 64))


def test_released_pythia_and_gpt2_files_are_read_as_they_are(tmp_path: Path) -> None:
    """Masks and rotary buffers are passed over, absent prefixes are added, older names and config keys understood."""
    theirs = build(*MODELS["pythia"][1:])
    tensors = {n.replace("lm_head", "embed_out"): t for n, t in theirs.state_dict().items()}
    tensors["gpt_neox.layers.0.attention.rotary_emb.inv_freq"] = torch.ones(1)
    tensors["gpt_neox.layers.1.attention.bias"] = torch.ones(1, 1, 8, 8, dtype=torch.bool)
    tensors["gpt_neox.layers.1.attention.masked_bias"] = torch.tensor(-1e9)
    settings = {**BASE, "model_type": "gpt_neox", "rotary_pct": 0.25, "rotary_emb_base": 10000}
    ids = ids_for(theirs, 2, 9)
    assert gap(logits(from_gpt_neox(tensors, settings), ids), logits(theirs, ids)) < 1e-6
    theirs = build(*MODELS["gpt2"][1:])
    tensors = {n.removeprefix("transformer."): t for n, t in theirs.state_dict().items() if n != "lm_head.weight"}
    tensors["h.0.attn.bias"] = torch.ones(1, 1, 48, 48)
    assert gap(logits(from_gpt2(tensors, {**GPT2, "model_type": "gpt2"}), ids), logits(theirs, ids)) < 1e-6


def test_the_text_decoder_is_taken_out_of_a_whole_kosmos_2(tmp_path: Path) -> None:
    """From a checkpoint that also sees images: the text decoder's logits, and nothing of the rest."""
    vision = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 8,
        "patch_size": 4,
    }
    config = Kosmos2Config(text_config=KOSMOS2, vision_config=vision, latent_query_num=2)
    whole = build(Kosmos2ForConditionalGeneration, config)
    whole.save_pretrained(tmp_path / "theirs")
    convert("kosmos-2", tmp_path / "theirs", tmp_path / "ours")
    ids = ids_for(whole, 2, 9)
    assert gap(logits(load(tmp_path / "ours"), ids), logits(whole.text_model, ids)) < 1e-6


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("bitnet", {"quantization_config": {"quant_method": "bitnet"}}, r"asks for quantization \(bitnet\)"),
        ("bitnet", {"attention_bias": True}, "attention_bias False alone; this one has True"),
        ("bitnet", {"num_hidden_layers": 3}, "num_hidden_layers is 3 in the configuration, but the .* have 2 layers"),
        ("pythia", {"attention_bias": False}, "attention_bias True alone"),
        ("pythia", {"model_type": "llama"}, "of a llama model, not of GPT-NeoX"),
        ("pythia", {"hidden_act": "tanh"}, "hidden_act must be one of gelu, .* got 'tanh'"),
        ("pythia", {"intermediate_size": 96}, "intermediate_size is 96 in the configuration, but 80 in the GPT-NeoX"),
        ("pythia", {"hidden_size": 64}, "hidden_size is 64 in the configuration, but 32 in the GPT-NeoX"),
        ("pythia", {"tie_word_embeddings": True}, "two different tensors for gpt_neox.embed_in.weight"),
        (
            "pythia",
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
            "rope_parameters takes rope_theta",
        ),
        ("llama", {"mlp_bias": True}, "mlp_bias False alone; this one has True"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx False alone"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention False alone"),
        ("gpt2", {"n_positions": 50}, r"wpe.weight has shape \(48, 32\), but the configuration makes it \(50, 32\)"),
        ("gpt2", {"embd_pdrop": 0.2}, "embd_pdrop 0.2 and resid_pdrop 0.1"),
        ("kosmos-2", {"add_cross_attention": True}, "add_cross_attention False alone"),
        ("kosmos-2", {"ffn_dim": 81}, "ffn_dim is 81 in the configuration, but 80 in the Kosmos-2"),
    ],
)
def test_a_configuration_that_cannot_be_converted_is_refused(
    case_folders: dict[str, Path], tmp_path: Path, name: str, changes: dict[str, Any], message: str
) -> None:
    """The key, its value and both numbers where there are two; nothing is written."""
    source = case_folders[name]
    settings = json.loads((source / "config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=message):
        convert(MODELS[name][0], source, tmp_path / "ours", "--config", tmp_path / "config.json")
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


@pytest.fixture(scope="module")
def case_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A saved folder of one model of each format."""
    folder = tmp_path_factory.mktemp("saved")
    names = ("pythia", "gpt2", "llama", "bitnet", "kosmos-2")
    for name in names:
        build(*MODELS[name][1:]).save_pretrained(folder / name)
    return {name: folder / name for name in names}


def test_packed_ternary_weights_are_refused(case_folders: dict[str, Path], tmp_path: Path) -> None:
    """uint8 weights with a scale, as BitNet's packed release stores them, are named and refused."""
    tensors = load_file(case_folders["bitnet"] / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    packed = {**tensors, name: torch.zeros(20, 32, dtype=torch.uint8)}
    with pytest.raises(ValueError, match=r"up_proj\.weight_scale belongs to packed ternary weights"):
        from_bitnet({**packed, f"{name}_scale": torch.ones(1)}, BitNetConfig(**BASE).to_dict())
    save_file({**tensors, name: tensors[name].to(torch.int8)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=f"{name} holds int8 numbers"):
        convert(
            *("bitnet", tmp_path / "model.safetensors", tmp_path / "ours"),
            *("--config", case_folders["bitnet"] / "config.json"),
        )


def test_what_a_layout_cannot_say_is_not_written(tmp_path: Path) -> None:
    """A model of another form is refused by the field that differs, for every format."""
    model = language_model("linear")
    with pytest.raises(ValueError, match="the GPT-NeoX layout needs use_bias True; this model has False"):
        to_gpt_neox(model)
    model.save_pretrained(tmp_path / "ours")
    for form in FORMATS:
        with pytest.raises(ValueError, match="layout"):
            convert(tmp_path / "ours", tmp_path / "back", "--to", form)
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]
    kosmos = from_kosmos2(build(*MODELS["kosmos-2"][1:]).state_dict(), Kosmos2TextConfig(**KOSMOS2).to_dict())
    kosmos.config.position_offset = 7
    kosmos.save_pretrained(tmp_path / "moved")
    with pytest.raises(ValueError, match=r"counts positions from pad_token_id \+ 1; .* position_offset 7"):
        convert(tmp_path / "moved", tmp_path / "back", "--to", "kosmos-2")
