"""Checkpoints and their tokenizers, from folders, with what does not fit refused."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def load_model(folder: Path) -> "PreTrainedModel":
    """Load a language model for evaluation, on the accelerator if there is one; a graft's folder with its base.

    Raises:
        FileNotFoundError: There is no such folder, or no configuration or no weights in it.
        ValueError: The weights are damaged, or not those that the configuration asks for.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no checkpoint folder {folder}: name a folder with a config.json.")
    import torch
    from safetensors import SafetensorError
    from transformers.utils import logging

    from gnomon.training.grafting import is_graft, load_grafted
    from gnomon.training.preparation import load_checkpoint

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        model = load_grafted(folder) if is_graft(folder) else load_checkpoint(folder)
    except SafetensorError as error:
        raise ValueError(f"the weights of {folder} are damaged ({error}): name another checkpoint.") from error
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval()


def load_tokenizer(folder: Path, model: "PreTrainedModel") -> "PreTrainedTokenizerBase":
    """Load the tokenizer of a folder and check that the model has a row for each of its ids.

    Raises:
        FileNotFoundError: The folder is missing or has no tokenizer.
        ValueError: The tokenizer does not fit the model.
    """
    if folder.is_dir() and not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise FileNotFoundError(f"{folder} has no tokenizer (tokenizer.json): name one with --tokenizer FOLDER.")
    from gnomon.data import tokenizers

    tokenizer = tokenizers.load_tokenizer(folder)
    rows = model.config.vocab_size
    if len(tokenizer) > rows:
        raise ValueError(
            f"the tokenizer {folder} has {len(tokenizer)} ids, but the checkpoint's vocabulary has {rows}: "
            "name the tokenizer that the model was trained with."
        )
    return tokenizer
