"""The linear corner of the library is an old acquaintance: Llama or GPT-NeoX, as transformers writes them."""

import pytest
import torch
import transformers
from torch import Tensor, nn

from gnomon import GnomonConfig, GnomonForCausalLM
from samples import random_ids

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 44,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
ROPE = {"rope_type": "default", "rope_theta": 500.0}


def llama() -> tuple[nn.Module, dict[str, Tensor], GnomonConfig]:
    """transformers' Llama with shared key-value heads, its tensors by our names, and our configuration of it."""
    theirs = shaken(
        transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**SIZES, num_key_value_heads=2, rms_norm_eps=1e-5, rope_parameters=ROPE)
        )
    )
    names = {
        "self_attn.q_proj": "attention.query",
        "self_attn.k_proj": "attention.key",
        "self_attn.v_proj": "attention.value",
        "self_attn.o_proj": "attention.output",
        "mlp.gate_proj": "feed_forward.gate",
        "mlp.up_proj": "feed_forward.up",
        "mlp.down_proj": "feed_forward.down",
        "input_layernorm": "attention_residual.before",
        "post_attention_layernorm": "feed_forward_residual.before",
    }
    ours = GnomonConfig(
        **SIZES, projection="linear", feed_forward="glu", hidden_act="silu", norm="rms", num_key_value_heads=2,
        rope_parameters={**ROPE, "partial_rotary_factor": 1.0},
    )  # fmt: skip
    return theirs, rename(theirs.state_dict(), names), ours


def gpt_neox() -> tuple[nn.Module, dict[str, Tensor], GnomonConfig]:
    """transformers' GPT-NeoX with sequential residuals and biases, its fused projection taken apart by heads."""
    rope = {**ROPE, "partial_rotary_factor": 0.25}
    theirs = shaken(
        transformers.GPTNeoXForCausalLM(
            transformers.GPTNeoXConfig(**SIZES, use_parallel_residual=False, rope_parameters=rope)
        )
    )
    tensors = {}
    for name, tensor in theirs.state_dict().items():
        if "query_key_value" in name:
            fused = tensor.unflatten(0, (4, 3, 8))
            for index, site in enumerate(("query", "key", "value")):
                tensors[name.replace("query_key_value", site)] = fused[:, index].flatten(0, 1)
        else:
            tensors[name] = tensor
    names = {
        "gpt_neox.embed_in": "model.embed_tokens",
        "gpt_neox.final_layer_norm": "model.norm",
        "gpt_neox": "model",
        "embed_out": "lm_head",
        "attention.dense": "attention.output",
        "mlp.dense_h_to_4h": "feed_forward.up",
        "mlp.dense_4h_to_h": "feed_forward.down",
        "input_layernorm": "attention_residual.before",
        "post_attention_layernorm": "feed_forward_residual.before",
    }
    ours = GnomonConfig(**SIZES, projection="linear", use_bias=True, rope_parameters=rope)
    return theirs, rename(tensors, names), ours


def shaken(model: nn.Module) -> nn.Module:
    """The model with noise on every parameter, norms and biases included."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def rename(tensors: dict[str, Tensor], names: dict[str, str]) -> dict[str, Tensor]:
    renamed = {}
    for name, tensor in tensors.items():
        for foreign, ours in names.items():
            name = name.replace(foreign, ours, 1)
        renamed[name] = tensor
    return renamed


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("family", [llama, gpt_neox])
def test_a_linear_model_with_their_weights_is_their_model(family, implementation: str) -> None:
    """Logits, loss and the embedding's gradient equal transformers' own model, left padding included."""
    torch.manual_seed(0)
    theirs, tensors, config = family()
    ours = GnomonForCausalLM(config)
    ours.load_state_dict(tensors, strict=True)
    ids, results = random_ids(3, 9), []
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    for model in (theirs.eval(), ours.eval()):
        model.set_attn_implementation(implementation)
        output = model(input_ids=ids, attention_mask=mask)
        plain = model(input_ids=ids, labels=ids)
        plain.loss.backward()
        results.append((output.logits[mask == 1], plain.loss, model.get_input_embeddings().weight.grad))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
