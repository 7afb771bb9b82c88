"""torchscale's layout: the reference code's numbers through our models in every topology and placement, and back."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedTokenizerFast

import gnomon
from conversions import convert, write_tokenizer
from gnomon.convert import from_torchscale, to_torchscale
from gnomon.convert.torchscale import config_to_torchscale, layout
from samples import build, golden, parameters_of, random_ids

TOPOLOGIES = {"decoder": "GnomonForCausalLM", "encoder": "GnomonForMaskedLM", "encdec": "GnomonForSeq2SeqLM"}
FILES = [
    *(f"{topology}_{norms}" for topology in TOPOLOGIES for norms in ("subln", "deepnorm", "preln", "postln")),
    "decoder_subln_xpos",
    "decoder_subln_relative_bias",
]
DECODER = {"decoder_embed_dim": 16, "decoder_attention_heads": 2, "decoder_ffn_embed_dim": 24, "decoder_layers": 2}
LINEAR = {
    "vocab_size": 64,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 20,
    "projection": "linear",
    "use_bias": True,
    "positions": "none",
}
PAIR = {**LINEAR, "num_hidden_layers": None, "encoder_layers": 1, "decoder_layers": 3}


def checkpoint(name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the keyword arguments of a golden file."""
    tensors, config = golden(f"torchscale_{name}")
    return parameters_of(tensors), config["torchscale"]


def run(model: Any, tensors: dict[str, Tensor], topology: str) -> tuple[Any, Tensor]:
    """The output of a model on a golden batch, and which positions the reference's loss is over."""
    if topology == "decoder":
        return model(tensors["input_ids"], labels=tensors["input_ids"]), torch.ones_like(tensors["input_ids"]).bool()
    if topology == "encoder":
        kept = ~tensors["padding_mask"].bool()
        labels = tensors["labels"].masked_fill(~kept, -100)
        return model(tensors["input_ids"], attention_mask=kept.long(), labels=labels), kept
    output = model(tensors["src"], decoder_input_ids=tensors["tgt"], labels=tensors["labels"])
    return output, torch.ones_like(tensors["tgt"]).bool()


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", FILES)
def test_logits_loss_and_gradients_equal_the_reference_codes(name: str, implementation: str) -> None:
    """Logits within 1e-5, loss within 3e-6, every gradient within 1e-4 (1.7e-6, 1.4e-6 and 1e-7 measured)."""
    (tensors, config), topology = golden(f"torchscale_{name}"), name.split("_")[0]
    model = from_torchscale(*checkpoint(name))
    assert type(model).__name__ == TOPOLOGIES[topology]
    model.set_attn_implementation(implementation)
    output, kept = run(model, tensors, topology)
    output.loss.backward()
    torch.testing.assert_close(output.logits[kept], tensors["logits"][kept], rtol=0, atol=1e-5)
    assert abs(output.loss.item() - config["loss"]) < 3e-6
    # one tensor stands for all names of a tied table, so that its gradient is their sum, in the reference as here
    gradients = layout(model.config, has_head=True).write(model, {n: p.grad for n, p in model.named_parameters()})
    expected = {key.removeprefix("grad."): value for key, value in tensors.items() if key.startswith("grad.")}
    assert gradients.keys() == expected.keys()
    for key, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[key], rtol=0, atol=1e-4)
        if expected[key].norm() > 1e-5:  # the keys' biases have none: softmax does not see them
            assert (gradient - expected[key]).norm() < 1e-5 * expected[key].norm()


@pytest.mark.parametrize("name", FILES)
def test_the_way_back_is_bit_equal_in_memory_and_through_files(name: str, tmp_path: Path) -> None:
    """Every tensor of the file returns, shared tables under each name and xPos' scales too, and so do the settings."""
    tensors, settings = checkpoint(name)
    model = from_torchscale(tensors, settings)
    save_file(tensors, tmp_path / "theirs.safetensors")
    (tmp_path / "theirs.json").write_text(json.dumps(settings))
    convert("torchscale", tmp_path / "theirs.safetensors", tmp_path / "ours", "--config", tmp_path / "theirs.json")
    convert(tmp_path / "ours", tmp_path / "back", "--to", "torchscale")
    written = json.loads((tmp_path / "back" / "config.yml").read_text())
    for returned, said in (
        (to_torchscale(model), config_to_torchscale(model.config)),
        (load_file(tmp_path / "back" / "model.safetensors"), written),
    ):
        assert returned.keys() == tensors.keys()
        assert all(torch.equal(returned[key], tensors[key]) for key in tensors)
        assert settings.items() <= said.items()
    batch, topology = golden(f"torchscale_{name}")[0], name.split("_")[0]
    loaded = getattr(gnomon, TOPOLOGIES[topology]).from_pretrained(tmp_path / "ours")
    with torch.no_grad():
        assert torch.equal(*(run(each, batch, topology)[0].logits for each in (model, loaded)))


@pytest.mark.parametrize(
    ("cls", "fields"),
    [
        ("GnomonForMaskedLM", {"positions": "relative_bias", "norm_placement": "sub"}),
        ("GnomonForMaskedLM", {"positions": "xpos", "final_norm": "none", "hidden_act": "silu", "norm_eps": 1e-3}),
        ("GnomonModel", {"is_decoder": False, "norm_placement": "sub", "scale_embedding": True}),
        ("GnomonModel", {"is_decoder": True, "norm_placement": "deep", "hidden_dropout": 0.1}),
        ("GnomonForCausalLM", {"tie_word_embeddings": False, "norm_placement": "deep", "hidden_act": "relu"}),
        ("GnomonForSeq2SeqLM", {**PAIR, "tie_word_embeddings": False, "positions": "xpos", "norm_placement": "sub"}),
        ("GnomonEncoderDecoderModel", {**PAIR, "positions": "learned", "position_offset": 2, "norm_placement": "deep"}),
    ],
)
def test_every_form_that_both_have_survives_the_round_trip(cls: str, fields: dict[str, Any], tmp_path: Path) -> None:
    """Written through files and read again, a model has its class, its configuration and its bits."""
    relative = {"relative_attention_bidirectional": True} if fields.get("positions") == "relative_bias" else {}
    model = build(getattr(gnomon, cls), {**LINEAR, **fields, **relative})
    model.save_pretrained(tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "theirs", "--to", "torchscale")
    convert("torchscale", tmp_path / "theirs", tmp_path / "again")
    before, again = (getattr(gnomon, cls).from_pretrained(tmp_path / folder) for folder in ("ours", "again"))
    assert again.config == before.config
    state = again.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_deep_norm_weights_read_as_post_norm_compute_something_else(topology: str) -> None:
    """Both have the same tensors; alpha alone tells them apart, and the golden logits see it."""
    tensors, settings = checkpoint(f"{topology}_deepnorm")
    batch = golden(f"torchscale_{topology}_deepnorm")[0]
    with torch.no_grad():
        output, kept = run(from_torchscale(tensors, {**settings, "deepnorm": False}), batch, topology)
    assert (output.logits[kept] - batch["logits"][kept]).abs().max() > 0.1


def test_a_table_of_a_partly_shared_pair_is_kept_apart() -> None:
    """Without share_all_embeddings the three tables are read and written as three, whichever of them are alike."""
    model = build(gnomon.GnomonForSeq2SeqLM, {**PAIR, "tie_word_embeddings": False, "norm_placement": "sub"})
    tensors, settings = to_torchscale(model), config_to_torchscale(model.config)
    tensors["decoder.output_projection.weight"] = tensors["decoder.embed_tokens.weight"].clone()
    again = from_torchscale(tensors, {**settings, "share_decoder_input_output_embed": True})
    assert torch.equal(again.lm_head.weight, again.model.decoder.embed_tokens.weight)
    assert not torch.equal(again.model.encoder.embed_tokens.weight, again.model.decoder.embed_tokens.weight)
    back = to_torchscale(again)
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())


def test_absent_keys_have_torchscales_defaults_and_fairseqs_prefix_is_taken_off() -> None:
    """A deep norm encoder by one key alone, Sub-LN by none, and a decoder whose names all begin with decoder."""
    tensors, settings = checkpoint("encoder_deepnorm")
    short = {key: value for key, value in settings.items() if key not in ("subln", "encoder_normalize_before")}
    assert from_torchscale(tensors, short).config == from_torchscale(tensors, settings).config
    tensors, settings = checkpoint("decoder_subln")
    short = {key: value for key, value in settings.items() if key not in ("subln", "deepnorm", "vocab_size")}
    prefixed = {f"decoder.{name}": tensor for name, tensor in tensors.items()}
    assert from_torchscale(prefixed, short).config == from_torchscale(tensors, settings).config


def test_a_file_that_names_a_shared_table_once_is_read() -> None:
    """Formats without shared memory drop the copies, and any one of the names will do."""
    for name, kept in (("decoder_preln", "embed_tokens.weight"), ("encdec_preln", "decoder.embed_tokens.weight")):
        tensors, settings = checkpoint(name)
        tables = [key for key in tensors if key.endswith(("embed_tokens.weight", "output_projection.weight"))]
        short = {key: value for key, value in tensors.items() if key == kept or key not in tables}
        assert len(short) == len(tensors) - len(tables) + 1
        back = to_torchscale(from_torchscale(short, settings))
        assert all(torch.equal(back[key], tensors[key]) for key in tensors)


def test_half_precision_returns_bit_equal(tmp_path: Path) -> None:
    """A bfloat16 file keeps its numbers and its dtype through the command line, xPos' buffers included."""
    tensors, settings = checkpoint("decoder_subln_xpos")
    half = {name: tensor.bfloat16() for name, tensor in tensors.items()}
    (tmp_path / "theirs").mkdir()
    torch.save(half, tmp_path / "theirs" / "checkpoint.pt")
    (tmp_path / "theirs" / "config.yml").write_text(json.dumps(settings))
    convert("torchscale", tmp_path / "theirs", tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "back", "--to", "torchscale")
    back = load_file(tmp_path / "back" / "model.safetensors")
    assert back.keys() == half.keys()
    assert all(back[name].dtype == torch.bfloat16 and torch.equal(back[name], half[name]) for name in half)


def test_an_encoder_takes_a_tokenizer_along_and_generates_nothing(tmp_path: Path) -> None:
    """The tokenizer's special ids reach the encoder's configuration; a bound for generation is refused."""
    tensors, settings = checkpoint("encoder_subln")
    save_file(tensors, tmp_path / "theirs.safetensors")
    (tmp_path / "config.yml").write_text(json.dumps(settings))
    words = PreTrainedTokenizerFast(tokenizer_file=str(write_tokenizer(tmp_path)), eos_token="<|endoftext|>")
    words.save_pretrained(tmp_path / "words")
    source, options = tmp_path / "theirs.safetensors", ("--tokenizer", tmp_path / "words")
    convert("torchscale", source, tmp_path / "ours", *options)
    assert gnomon.GnomonForMaskedLM.from_pretrained(tmp_path / "ours").config.eos_token_id == words.eos_token_id == 0
    with pytest.raises(ValueError, match="GnomonForMaskedLM does not: leave it out"):
        convert("torchscale", source, tmp_path / "more", *options, "--token-ids", 40)
    assert not (tmp_path / "more").exists()


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("decoder_deepnorm", {"decoder_normalize_before": True}, "pre-norm decoder by alpha, which is no DeepNorm"),
        ("decoder_postln", {"subln": True}, "puts inner norms into a post-norm decoder"),
        ("decoder_subln", {"droput": 0.1}, "unknown key 'droput' in the torchscale configuration; did you mean 'drop"),
        (
            "decoder_subln",
            {"encoder_layers": 2},
            "of either the encoder or the decoder .* got those of encoder and dec",
        ),
        ("decoder_subln", {"moe_freq": 2}, "moe_freq must be 0 to be converted, since here .* experts; got 2"),
        ("decoder_subln", {"multiway": True}, "multiway must be False"),
        ("decoder_subln", {"layernorm_embedding": True}, "layernorm_embedding must be False"),
        ("decoder_subln", {"segment_length": "[64]"}, "segment_length must be None"),
        ("decoder_subln", {"flash_attention": True}, "passes over padding masks"),
        ("decoder_subln", {"activation_dropout": 0.1}, "activation_dropout must be 0.0"),
        ("decoder_subln", {"activation_fn": "tanh"}, "activation_fn must be one of gelu, relu, swish; got 'tanh'"),
        ("decoder_subln", {"xpos_rel_pos": True}, "one position scheme .* got learned and xpos"),
        ("decoder_subln", {"decoder_layers": 3}, "decoder_layers is 3 in the configuration, but .* have 2 layers"),
        ("decoder_subln", {"decoder_embed_dim": 64}, "decoder_embed_dim is 64 in the configuration, but 32 in the"),
        ("decoder_subln", {"subln": False}, "leaves no place for, the first layers.0.ffn.ffn_lay"),
        ("decoder_subln", {"no_output_layer": True}, "leaves no place for, the first output_projection.weight"),
        ("decoder_subln_xpos", {"xpos_rel_pos": False}, "xpos_rel_pos must be True for weights with layers.0"),
        ("decoder_subln_xpos", {"decoder_attention_heads": 8}, "makes heads of 4 dimensions, but .* is of heads of 8"),
        ("decoder_subln_relative_bias", {"max_rel_pos": 0}, "self_attn_relative_position.relative_attention_bias"),
        ("encdec_subln", {"decoder_layers": 4}, "decoder_layers is 4 in the configuration, but .* have 3 layers"),
        ("encdec_subln", {"encoder_layers": 4}, "encoder_layers is 4 in the configuration, but .* have 2 layers"),
        ("encdec_subln", {"decoder_embed_dim": 16}, "encoder_embed_dim and decoder_embed_dim must be .* got 32 and 16"),
        ("encdec_subln", {"encoder_attention_heads": 8}, "attention_heads must be the same .* got 8 and 4"),
        ("encdec_preln", {"decoder_normalize_before": False}, "decoder_normalize_before must be the same"),
        ("encdec_preln", {"normalize_output": False}, "normalize_output of an encoder-decoder must be True"),
        ("encdec_subln", {"rel_pos_buckets": 8, "max_rel_pos": 16}, "one position scheme .* learned and relative_bias"),
    ],
)
def test_a_configuration_that_asks_for_something_else_is_refused(
    name: str, changes: dict[str, Any], message: str
) -> None:
    """One sentence names the key, what it must be and what it is; nothing is passed over without a word."""
    tensors, settings = checkpoint(name)
    with pytest.raises(ValueError, match=message):
        from_torchscale(tensors, {**settings, **changes})


def test_weights_that_do_not_fit_are_refused() -> None:
    """A missing table, position tables of two lengths, a relative bias of a pair, a key of the wrong type."""
    tensors, settings = checkpoint("encdec_subln")
    bare = {name: tensor for name, tensor in tensors.items() if not name.endswith("embed_tokens.weight")}
    with pytest.raises(ValueError, match=r"needs the table encoder.embed_tokens.weight"):
        from_torchscale(bare, settings)
    long = {**tensors, "decoder.embed_positions.weight": torch.zeros(50, 32)}
    with pytest.raises(ValueError, match=r"encoder.embed_positions.weight has 40 rows and decoder.* 50"):
        from_torchscale(long, settings)
    plain = {name: tensor for name, tensor in tensors.items() if "embed_positions" not in name}
    with pytest.raises(ValueError, match="rel_pos_buckets must be 0 for an encoder-decoder"):
        from_torchscale(plain, {**settings, "rel_pos_buckets": 8, "max_rel_pos": 16})
    with pytest.raises(TypeError, match="subln of the torchscale configuration is of type bool; got 'false'"):
        from_torchscale(tensors, {**settings, "subln": "false"})
    untied = {**tensors, "decoder.output_projection.weight": torch.zeros(64, 32)}
    with pytest.raises(ValueError, match=r"two different tensors for encoder.embed_tokens.weight"):
        from_torchscale(untied, settings)


@pytest.mark.parametrize(
    ("cls", "fields", "message"),
    [
        ("GnomonForCausalLM", {"norm_placement": "peri"}, "needs norm_placement pre or post or deep or sub; .* peri"),
        ("GnomonForCausalLM", {"use_bias": False}, "needs use_bias True"),
        ("GnomonForCausalLM", {"positions": "alibi"}, "needs positions learned or xpos or none or relative_bias"),
        ("GnomonForCausalLM", {"positions": "learned"}, "needs position_offset 2; this model has 0"),
        ("GnomonForCausalLM", {"positions": "relative_bias"}, "relative_attention_bidirectional True; .* None"),
        ("GnomonForCausalLM", {"final_norm": "none"}, "needs final_norm layer"),
        ("GnomonForCausalLM", {"hidden_act": "relu2"}, "needs hidden_act gelu or relu or silu"),
        ("GnomonForCausalLM", {"num_key_value_heads": 1}, "needs num_key_value_heads 2"),
        ("GnomonForCausalLM", {"norm_placement": "deep", "residual_scale": 1.2}, r"1\.41421; .* residual_scale 1\.2"),
        ("GnomonForSeq2SeqLM", {**PAIR, "positions": "relative_bias"}, "needs positions learned or xpos or none;"),
        ("GnomonForSequenceClassification", {"is_decoder": False}, "got GnomonForSequenceClassification"),
    ],
)
def test_a_model_that_torchscale_has_no_words_for_is_refused(cls: str, fields: dict[str, Any], message: str) -> None:
    """The message names the field, what the layout needs and what the model has."""
    model = build(getattr(gnomon, cls), {**LINEAR, **fields})
    with pytest.raises(ValueError, match=message):
        to_torchscale(model)


def test_a_converted_decoder_generates_as_it_computes() -> None:
    """Greedy ids with a cache are those of full passes: positions, rotations and the relative bias go on."""
    for name in ("decoder_subln", "decoder_subln_xpos", "decoder_subln_relative_bias"):
        model, ids = from_torchscale(*checkpoint(name)), random_ids(2, 5)
        options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
        found = model.generate(ids, **options)
        for _ in range(6):
            with torch.no_grad():
                ids = torch.cat((ids, model(ids).logits[:, -1:].argmax(-1)), dim=1)
        assert torch.equal(found, ids)
