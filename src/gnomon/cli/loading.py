"""Checkpoints and their tokenizers, from folders, with what does not fit refused."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def load_model(folder: Path, *, is_any: bool = False) -> "PreTrainedModel":
    """Load a language model for evaluation, on the accelerator if there is one; a graft's folder with its base.

    Args:
        folder: The checkpoint's.
        is_any: Take another model of transformers as well, such as one that a graft was merged into.

    Raises:
        FileNotFoundError: There is no such folder, or no configuration or no weights in it.
        ValueError: The weights are damaged, or not those that the configuration asks for.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no checkpoint folder {folder}: name a folder with a config.json.")
    import torch
    from transformers.utils import logging

    from gnomon.training.grafting import is_graft, load_base, load_grafted
    from gnomon.training.preparation import load_checkpoint

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    if is_graft(folder):
        model = load_grafted(folder)
    else:
        model = load_base(folder).float() if is_any and _is_foreign(folder) else load_checkpoint(folder)
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval()


def _is_foreign(folder: Path) -> bool:
    """Whether a checkpoint is of a class of transformers itself."""
    import transformers

    from gnomon.training.records import read_json

    path = folder / "config.json"
    names = (read_json(path).get("architectures") or [""]) if path.is_file() else [""]
    return hasattr(transformers, names[0])


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
