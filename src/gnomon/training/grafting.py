"""Bases to graft, read from disk as they are, and a graft's training on text with everything else frozen."""

import pickle
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.utils.data import Dataset
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer_callback import PrinterCallback

from gnomon.data.packing import PackedText, collate
from gnomon.growth.graft_files import CONFIG_FILE, load_graft, read_graft
from gnomon.models.config import GnomonConfig
from gnomon.training.checkpoints import readable_weights

GGUF = ".gguf"


def load_base(path: Path) -> PreTrainedModel:
    """Load any model of transformers from disk, in the dtype that it is stored in.

    Args:
        path: a checkpoint's folder, or a GGUF file, whose weights are taken out of their quantization.

    Returns:
        The model, of the class that its config names.

    Raises:
        FileNotFoundError: there is no checkpoint.
        ValueError: it is one of gnomon's own, lacks a tensor, or cannot be read.
    """
    local = {"local_files_only": True, "trust_remote_code": False}
    if path.suffix == GGUF and path.is_file():
        model = _plain(_from_gguf(AutoModelForCausalLM, path))
        model.config.name_or_path = str(path)  # the file itself, which a graft's folder will name as its base
        return model
    if not (path / "config.json").is_file():
        raise FileNotFoundError(f"there is no checkpoint {path}: name a folder with a config.json, or a .gguf file")
    config = AutoConfig.from_pretrained(path, **local)
    if isinstance(config, GnomonConfig):
        raise ValueError(
            f"{path} is a checkpoint of gnomon, which has a growth of its own that needs nothing beside its layers: "
            "use gnomon grow"
        )
    names = config.architectures or ["AutoModel"]
    architecture = getattr(transformers, names[0], transformers.AutoModel)
    try:
        with readable_weights(path):
            model, report = architecture.from_pretrained(path, dtype="auto", output_loading_info=True, **local)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"the weights of {path} hold more than tensors, and reading the rest could run code: nothing in them was "
            "run; take a checkpoint with .safetensors files, or a .bin of tensors alone"
        ) from error
    if report["missing_keys"]:
        raise ValueError(
            f"the checkpoint {path} lacks the tensor {sorted(report['missing_keys'])[0]} "
            f"({len(report['missing_keys'])} such); it is damaged or of another model: name another one"
        )
    return model


def load_base_tokenizer(path: Path) -> PreTrainedTokenizerBase | None:
    """The tokenizer that lies with a base, if there is one.

    Args:
        path: as of `load_base`.

    Returns:
        The tokenizer, or None.
    """
    if path.suffix == GGUF:
        return _from_gguf(AutoTokenizer, path)
    if not any((path / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        return None
    return AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)


def is_graft(folder: Path) -> bool:
    """Whether a folder holds a graft and no model.

    Args:
        folder: any.

    Returns:
        The answer.
    """
    return (folder / CONFIG_FILE).is_file()


def load_grafted(folder: Path) -> PreTrainedModel:
    """Load a graft onto the base that it was made for, which is looked for where it was.

    Args:
        folder: a graft's.

    Returns:
        The grafted model.

    Raises:
        FileNotFoundError: the graft or its base is not there.
        ValueError: they do not fit.
    """
    base, _, _ = read_graft(folder)
    model = load_base(Path(base["name_or_path"]))
    load_graft(model, folder)
    return model


def train_graft(
    model: PreTrainedModel,
    rows: Dataset[Any],
    *,
    steps: int,
    learning_rate: float = 2e-3,
    batch_size: int = 8,
    seed: int = 0,
    pad_token_id: int = 0,
    progress: Callable[[int, float], None] | None = None,
) -> list[float]:
    """Train what is trainable in a model, AdamW without weight decay under a cosine schedule.

    A tenth of the steps warms the rate up; gradients are clipped at norm 1.

    Args:
        model: grafted; it is trained in its own dtype, in place.
        rows: with `input_ids` and `labels`.
        steps: of the optimizer.
        learning_rate: the highest one.
        batch_size: rows of a step.
        seed: of the order of the rows.
        pad_token_id: what fills shorter rows.
        progress: told the step and its loss.

    Returns:
        The loss of every step, in nats per predicted token.

    Raises:
        ValueError: nothing in the model is trainable.
    """
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError("nothing in the model is trainable; call gnomon.graft before training")
    losses = _Losses(progress)
    with tempfile.TemporaryDirectory(prefix="gnomon-graft-") as scratch:
        arguments = TrainingArguments(
            output_dir=scratch,
            max_steps=steps,
            per_device_train_batch_size=batch_size,
            learning_rate=learning_rate,
            lr_scheduler_type="cosine",
            warmup_steps=-(-steps // 10),
            weight_decay=0.0,
            adam_beta2=0.95,
            seed=seed,
            logging_steps=1,
            logging_nan_inf_filter=False,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            dataloader_pin_memory=torch.cuda.is_available(),
        )
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=rows,
            data_collator=partial(collate, pad_token_id=pad_token_id),
            callbacks=[losses],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    model.eval()
    return losses.values


class SpreadWindows:
    """Some windows of a packed text, evenly spread over it; their bytes and characters are the whole's in proportion.

    Args:
        windows: all of them.
        count: how many are taken, if there are as many.
    """

    def __init__(self, windows: PackedText, count: int) -> None:
        self.windows, self.count = windows, min(count, len(windows))
        share = self.count / len(windows)
        self.num_bytes = max(1, round(windows.num_bytes * share))
        self.num_characters = max(1, round(windows.num_characters * share))
        self.num_unknown = round(windows.num_unknown * share)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int, /) -> dict[str, torch.Tensor]:
        return self.windows[index * len(self.windows) // self.count]


class _Losses(TrainerCallback):
    """Keeps the loss of every step and passes it on."""

    def __init__(self, progress: Callable[[int, float], None] | None) -> None:
        self.progress = progress
        self.values: list[float] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Take note of a step."""
        if "loss" in logs:
            self.values.append(float(logs["loss"]))
            if self.progress is not None:
                self.progress(state.global_step, self.values[-1])


def _from_gguf(kind: Any, path: Path) -> Any:
    """Read a model or a tokenizer out of a GGUF file."""
    try:
        return kind.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
    except ImportError as error:
        raise ValueError(f"reading {path.name} needs the package gguf: pip install 'gnomon[gguf]'") from error


def _plain(model: PreTrainedModel) -> PreTrainedModel:
    """The same model without the mark of a quantization that its weights no longer have, so that it can be saved."""
    fields = model.config.to_dict()
    fields.pop("quantization_config", None)
    config = type(model.config).from_dict(fields)
    plain = type(model)(config).to(model.dtype)
    plain.load_state_dict(model.state_dict())
    plain.generation_config = model.generation_config
    return plain.eval()
