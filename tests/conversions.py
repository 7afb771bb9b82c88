"""`gnomon convert` in this very process, tiny models of transformers to convert, and what the tests compare."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    BitNetConfig,
    BitNetForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    Kosmos2TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)
from transformers.models.kosmos2.modeling_kosmos2 import Kosmos2TextForCausalLM

from samples import random_ids

SPECIAL = {"bos_token_id": 0, "eos_token_id": 0}
BASE = {
    **SPECIAL,
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 80,
    "max_position_embeddings": 48,
}
GPT2 = {**SPECIAL, "vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 48}
KOSMOS2 = {
    **SPECIAL,
    "vocab_size": 64,
    "embed_dim": 32,
    "layers": 2,
    "attention_heads": 4,
    "ffn_dim": 80,
    "max_position_embeddings": 48,
}

MODELS: dict[str, tuple[str, type[PreTrainedModel], Any]] = {
    "pythia": ("gpt-neox", GPTNeoXForCausalLM, GPTNeoXConfig(**BASE)),
    "serial gpt-neox": (
        "gpt-neox",
        GPTNeoXForCausalLM,
        GPTNeoXConfig(
            **BASE,
            use_parallel_residual=False,
            tie_word_embeddings=True,
            hidden_act="gelu_fast",
            rope_parameters={"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0},
        ),
    ),
    "gpt2": ("gpt2", GPT2LMHeadModel, GPT2Config(**GPT2)),
    "untied gpt2": ("gpt2", GPT2LMHeadModel, GPT2Config(**GPT2, n_inner=48, tie_word_embeddings=False)),
    "llama": ("llama", LlamaForCausalLM, LlamaConfig(**BASE, num_key_value_heads=2, tie_word_embeddings=True)),
    "bitnet": ("bitnet", BitNetForCausalLM, BitNetConfig(**BASE, num_key_value_heads=2, tie_word_embeddings=True)),
    "untied bitnet": ("bitnet", BitNetForCausalLM, BitNetConfig(**BASE, num_key_value_heads=1, hidden_act="silu")),
    "kosmos-2": ("kosmos-2", Kosmos2TextForCausalLM, Kosmos2TextConfig(**KOSMOS2)),
    "unscaled kosmos-2": (
        "kosmos-2",
        Kosmos2TextForCausalLM,
        Kosmos2TextConfig(**KOSMOS2, scale_embedding=False, pad_token_id=4, activation_function="gelu_new"),
    ),
}
"""Name -> format, transformers' class, a tiny configuration."""


def convert(*arguments: object) -> None:
    """Run the command as its parser sees it; errors come as they are raised."""
    from gnomon.cli.main import app

    app(["convert", *map(str, arguments)], prog_name="gnomon", standalone_mode=False)


def load(folder: Path) -> PreTrainedModel:
    """A converted checkpoint, loaded as a user loads it."""
    from gnomon import GnomonForCausalLM

    return GnomonForCausalLM.from_pretrained(folder)


@torch.no_grad()
def logits(model: PreTrainedModel, ids: Tensor, **inputs: Tensor) -> Tensor:
    """Logits in evaluation mode."""
    return model.eval()(input_ids=ids, **inputs).logits


def gap(found: Tensor, expected: Tensor) -> float:
    """The relative L2 distance."""
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def write_tokenizer(folder: Path, num_ids: int = 40) -> Path:
    """A tokenizer file of single letters whose id 0 ends a document, as GPT-NeoX's does."""
    from tokenizers import Tokenizer, models

    words = {"<|endoftext|>": 0} | {chr(0x100 + n): n for n in range(1, num_ids)}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(folder / "20B_tokenizer.json"))
    return folder / "20B_tokenizer.json"


def build(cls: type[PreTrainedModel], config: Any, seed: int = 0) -> PreTrainedModel:
    """A random model whose every part matters: large weights, biases and norm gains away from their first values."""
    torch.manual_seed(seed)
    model = cls(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3 + (parameter.dim() == 1) * 0.7)
    return model


def ids_for(model: PreTrainedModel, *shape: int) -> Tensor:
    """Ids without those that a model reads as padding."""
    return random_ids(*shape).clamp(min=5)
