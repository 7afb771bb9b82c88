"""Checkpoints and their tokenizers, from folders, with what does not fit refused."""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def load_model(folder: Path) -> "PreTrainedModel":
    """Load a language model from a folder, for evaluation, on the accelerator if there is one.

    Raises:
        FileNotFoundError: There is no such folder, or no configuration or no weights in it.
        ValueError: The weights of some parameters are missing or have other shapes.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no checkpoint folder {folder}: name a folder with a config.json.")
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} has no config.json, so it is no checkpoint: name a run's model/ folder.")
    if not any(folder.glob("*.safetensors")):
        raise FileNotFoundError(
            f"the checkpoint {folder} has no weights (model.safetensors): save it again, or name another."
        )
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    importlib.import_module("gnomon.models.text")  # makes its models known to AutoModelForCausalLM

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, local_files_only=True)
    for problem, names in (("lacks", report["missing_keys"]), ("has an unknown", report["unexpected_keys"])):
        if names:
            first = sorted(names)[0]
            raise ValueError(
                f"the checkpoint {folder} {problem} {first} ({len(names)} such): it is damaged or foreign."
            )
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval()


def load_tokenizer(folder: Path, model: "PreTrainedModel") -> "PreTrainedTokenizerBase":
    """Load the tokenizer of a folder and check that the model has a row for each of its ids.

    Raises:
        FileNotFoundError: The folder has no tokenizer.
        ValueError: The tokenizer does not fit the model.
    """
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise FileNotFoundError(f"{folder} has no tokenizer (tokenizer.json): name one with --tokenizer FOLDER.")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    rows = model.config.vocab_size
    if len(tokenizer) > rows:
        raise ValueError(
            f"the tokenizer {folder} has {len(tokenizer)} ids, but the checkpoint's vocabulary has {rows}: "
            "name the tokenizer that the model was trained with."
        )
    return tokenizer
