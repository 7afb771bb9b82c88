"""A GGUF file, which the package gguf writes here, is a base for grafts like any checkpoint."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf

import gnomon
from gnomon.growth.report import gap, probe_outputs
from gnomon.training.grafting import load_base, load_base_tokenizer, load_grafted
from test_graft import batch_for, build, moved, probe_for

gguf = pytest.importorskip("gguf")

WORDS = ["<unk>", "<s>", "</s>", *(f"\u2581w{index}" for index in range(47))]
WHOLE = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    **{
        f"self_attn.{site}_proj": f"attn_{theirs}"
        for site, theirs in zip("qkvo", ("q", "k", "v", "output"), strict=True)
    },
    **{f"mlp.{unit}_proj": f"ffn_{unit}" for unit in ("gate", "up", "down")},
}
"""transformers' name -> llama.cpp's."""


def write_gguf(path: Path, model: Any) -> None:
    """Write a Llama as llama.cpp's converter does: halves of a head's query and key dimensions interleaved."""
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_tokenizer_model("llama")
    writer.add_token_list(WORDS)
    writer.add_token_scores([0.0] * len(WORDS))
    writer.add_token_types([1] * len(WORDS))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, tensor in model.state_dict().items():
        site, numbers = name.removesuffix(".weight"), tensor.numpy()
        theirs = WHOLE.get(site)
        if theirs is None:
            layer, site = site.removeprefix("model.layers.").split(".", 1)
            theirs = f"blk.{layer}.{LAYER[site]}"
        if theirs.endswith(("attn_q", "attn_k")):
            heads = config.num_attention_heads if theirs.endswith("q") else config.num_key_value_heads
            numbers = numbers.reshape(heads, 2, -1, numbers.shape[1]).swapaxes(1, 2).reshape(numbers.shape)
        writer.add_tensor(f"{theirs}.weight", np.ascontiguousarray(numbers))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def base(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, build("LlamaForCausalLM"))
    return path


def test_a_gguf_file_is_read_as_the_model_that_it_was_written_from(base: Path) -> None:
    """The same logits bit for bit, and its tokenizer."""
    model, original = load_base(base), build("LlamaForCausalLM")
    batch = probe_for(original)
    assert torch.equal(probe_outputs(model, batch), probe_outputs(original, batch))
    assert load_base_tokenizer(base).convert_tokens_to_ids(WORDS) == list(range(50))


@pytest.mark.parametrize("sizes", [{"num_tokens": 6}, {"num_neurons": 10}], ids=["tokens", "neurons"])
def test_a_graft_on_a_gguf_file_is_exact_learns_and_is_found_again(base: Path, sizes: dict[str, int]) -> None:
    """Nothing moves at first, the loss falls, and the adapter's folder leads back to the file that it was made for."""
    model = load_base(base)
    batch = batch_for(model)
    before = probe_outputs(model, batch)
    assert gnomon.graft(model, **sizes, seed=0).exact
    assert gap(before, probe_outputs(model, batch))[0] <= 5e-6
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=2e-2)
    losses = []
    for _ in range(20):
        losses.append(model(**batch).loss)
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < 0.9 * losses[0]
    gnomon.save_graft(model, base.parent / "adapter")
    assert torch.equal(probe_outputs(load_grafted(base.parent / "adapter"), batch), probe_outputs(model, batch))


def test_a_graft_merged_into_a_gguf_files_model_is_a_plain_checkpoint(base: Path) -> None:
    """The folder says nothing of a quantization, and transformers loads it with no name missing or left over."""
    model = load_base(base)
    batch = probe_for(model)
    gnomon.graft(model, num_neurons=10)
    wanted = probe_outputs(moved(model), batch)
    assert gnomon.merge_graft(model).exact
    model.save_pretrained(base.parent / "merged")
    loaded, report = hf.LlamaForCausalLM.from_pretrained(base.parent / "merged", output_loading_info=True)
    assert not any(report.values())
    assert gap(wanted, probe_outputs(loaded, batch))[0] <= 5e-6
