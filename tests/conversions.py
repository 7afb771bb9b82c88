"""`gnomon convert` in this very process, and what its tests compare."""

from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel


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
