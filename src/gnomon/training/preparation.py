"""From a recipe to what training needs, in memory: nothing is written while anything can still be refused."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, set_seed
from transformers.utils import is_torch_bf16_gpu_available

from gnomon.data.packing import PackedText, collate, pack
from gnomon.data.text import load_text
from gnomon.data.tokenizers import build_tokenizer, load_tokenizer
from gnomon.evaluation.language_model import LanguageModelScore, Windows, evaluate_language_model
from gnomon.models.config import GnomonConfig
from gnomon.models.text import GnomonForCausalLM
from gnomon.training.growth import rehearse_growth
from gnomon.training.optimization import steps_per_epoch
from gnomon.training.options import DataOptions, Recipe, TrainingOptions
from gnomon.training.recipe import model_fields


@dataclass(frozen=True)
class StageData:
    """A stage's text as ids.

    Attributes:
        train: What is trained on.
        validation: What is held out.
    """

    train: PackedText
    validation: PackedText


@dataclass(frozen=True)
class Preparation:
    """All that a run needs, checked.

    Attributes:
        recipe: What is to be done.
        tokenizer: The run's, over all stages.
        stages: Each stage's data; stages with the same data share them.
        model: The model before the first step.
    """

    recipe: Recipe
    tokenizer: PreTrainedTokenizerBase
    stages: list[StageData]
    model: PreTrainedModel

    def max_steps(self, stage: int) -> int:
        """The steps of a stage, however the recipe counts them."""
        options = self.recipe.stages[stage].training
        if options.max_steps is not None:
            return options.max_steps
        assert options.epochs is not None
        return max(1, round(options.epochs * steps_per_epoch(len(self.stages[stage].train), options)))

    def schedule(self, stage: int) -> dict[str, int]:
        """Where a stage stands in the schedule that it shares with its neighbors (see `StagePlan`)."""
        stages, first, last = self.recipe.stages, stage, stage
        while first > 0 and stages[first].training.continue_schedule:
            first -= 1
        while last + 1 < len(stages) and stages[last + 1].training.continue_schedule:
            last += 1
        return {
            "schedule_before": sum(map(self.max_steps, range(first, stage))),
            "schedule_steps": sum(map(self.max_steps, range(first, last + 1))),
        }

    def collator(self) -> Callable[[list[Any]], dict[str, torch.Tensor]]:
        """What makes a batch of rows."""
        return partial(collate, pad_token_id=self.tokenizer.pad_token_id or 0)


def prepare(recipe: Recipe) -> Preparation:
    """Load text, build the tokenizer, pack, and build the model.

    Args:
        recipe: A checked recipe.

    Raises:
        ValueError: The text is empty or shorter than a sequence, the tokenizer does not fit, or this machine
            cannot compute in the precision asked for.
        FileNotFoundError: Text, tokenizer or checkpoint are not there.
    """
    _check_machine(recipe)
    sources = [recipe.stage_data(stage) for stage in range(len(recipe.stages))]
    texts = {_key(data): load_text(**data.model_dump(exclude={"sequence_length"})) for data in sources}
    tokenizer = _tokenizer(recipe, texts[_key(sources[0])].train)
    packed: dict[tuple[str, int], StageData] = {}
    for data in sources:
        text, length = texts[_key(data)], data.sequence_length
        if (_key(data), length) not in packed:
            packed[_key(data), length] = StageData(
                pack(text.train, tokenizer, length), pack(text.validation, tokenizer, length, allow_short=True)
            )
    model = _model(recipe, tokenizer)
    longest = max(data.sequence_length for data in sources)
    if longest > model.config.max_position_embeddings:
        raise ValueError(
            f"data.sequence_length is {longest}, which must not exceed the model's max_position_embeddings "
            f"{model.config.max_position_embeddings}; lower the one or raise the other."
        )
    rehearse_growth(recipe, model)
    return Preparation(recipe, tokenizer, [packed[_key(data), data.sequence_length] for data in sources], model)


def load_checkpoint(folder: Path) -> PreTrainedModel:
    """Load a gnomon checkpoint for training, in float32, and refuse one that lacks a tensor.

    Raises:
        FileNotFoundError: The folder holds no configuration or no weights.
        ValueError: The tensors are not those of the model.
    """
    for needed, pattern in (("config.json", "config.json"), ("weights (model.safetensors)", "*.safetensors")):
        if not any(folder.glob(pattern)):
            raise FileNotFoundError(
                f"the checkpoint {folder} has no {needed}; name a folder that a run or save_pretrained has written."
            )
    model: PreTrainedModel
    model, report = GnomonForCausalLM.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True, output_loading_info=True
    )
    for problem, names in (("lacks", report["missing_keys"]), ("has an unknown", report["unexpected_keys"])):
        if names:
            raise ValueError(
                f"the checkpoint {folder} {problem} tensor {sorted(names)[0]} ({len(names)} such); "
                "it is damaged or of another model: name another one."
            )
    return model


def evaluator(windows: PackedText, options: TrainingOptions) -> Callable[[PreTrainedModel], LanguageModelScore]:
    """What scores a model on held-out text during training, on all of it or on the part that is asked for."""
    held_out: Windows = windows
    if options.evaluation_sequences is not None and options.evaluation_sequences < len(windows):
        held_out = _EvenWindows(windows, options.evaluation_sequences)
    return partial(_score, windows=held_out, batch_size=options.evaluation_batch_size or options.batch_size)


def evaluate_whole(model: PreTrainedModel, windows: PackedText, options: TrainingOptions) -> LanguageModelScore:
    """Score a model on all the held-out text."""
    return _score(model, windows=windows, batch_size=options.evaluation_batch_size or options.batch_size)


def _score(model: PreTrainedModel, *, windows: Windows, batch_size: int) -> LanguageModelScore:
    return evaluate_language_model(model, windows, batch_size=batch_size)


class _EvenWindows:
    """Some windows of a text, evenly spread; their bytes and characters are the whole's in proportion.

    Args:
        windows: All of them.
        count: How many are taken.
    """

    def __init__(self, windows: PackedText, count: int) -> None:
        self.windows, self.count = windows, count
        share = count / len(windows)
        self.num_bytes = max(1, round(windows.num_bytes * share))
        self.num_characters = max(1, round(windows.num_characters * share))
        self.num_unknown = round(windows.num_unknown * share)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int, /) -> dict[str, torch.Tensor]:
        return self.windows[index * len(self.windows) // self.count]


def _key(data: DataOptions) -> str:
    """What tells one text from another, whatever it is cut into."""
    return data.model_dump_json(exclude={"sequence_length"})


def _check_machine(recipe: Recipe) -> None:
    """Refuse what this machine or this version cannot do."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError(
            f"a run takes one process, but the launcher has started {os.environ['WORLD_SIZE']}; "
            "start `gnomon train` without torchrun."
        )
    accelerated = torch.cuda.is_available() or torch.backends.mps.is_available()
    for number, stage in enumerate(recipe.stages):
        if stage.training.precision == "bfloat16" and accelerated and not is_torch_bf16_gpu_available():
            raise ValueError(
                f"stages.{number}.training.precision is bfloat16, which this machine's accelerator cannot compute in; "
                "choose float32."
            )
        if stage.training.precision == "float16" and not torch.cuda.is_available():
            raise ValueError(
                f"stages.{number}.training.precision is float16, which needs a CUDA device, and there is none; "
                "choose bfloat16 or float32."
            )


def _tokenizer(recipe: Recipe, documents: dict[str, str]) -> PreTrainedTokenizerBase:
    """The recipe's tokenizer, or the checkpoint's own; both are compared where there are both."""
    checkpoint = recipe.model.get("checkpoint")
    own = Path(checkpoint) if checkpoint and (Path(checkpoint) / "tokenizer.json").is_file() else None
    if recipe.tokenizer is None:
        if own is None:
            raise FileNotFoundError(
                f"the checkpoint {checkpoint} has no tokenizer.json; name its tokenizer in the recipe, for example "
                "tokenizer: {kind: byte}."
            )
        return load_tokenizer(own)
    tokenizer = build_tokenizer(recipe.tokenizer.model_dump(exclude_none=True), documents)
    if own is not None and load_tokenizer(own).get_vocab() != tokenizer.get_vocab():
        raise ValueError(
            f"the recipe's tokenizer has other ids than the one that the checkpoint {checkpoint} was trained with; "
            "remove tokenizer from the recipe."
        )
    return tokenizer


def _model(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """The model before the first step; its weights depend on the seed and on nothing else."""
    model: PreTrainedModel
    if "checkpoint" in recipe.model:
        model = load_checkpoint(Path(recipe.model["checkpoint"]))
    else:
        special = {
            name: getattr(tokenizer, name)
            for name in ("bos_token_id", "eos_token_id", "pad_token_id")
            if getattr(tokenizer, name) is not None
        }
        fields = model_fields(recipe.model) | {"vocab_size": len(tokenizer)} | special
        named = {name: value for name, value in recipe.model.items() if name != "preset"}
        config = GnomonConfig(**fields | named)
        set_seed(recipe.seed)
        model = GnomonForCausalLM(config)
    if len(tokenizer) > model.config.vocab_size:
        raise ValueError(
            f"the tokenizer has {len(tokenizer)} ids, but the model's vocabulary has {model.config.vocab_size}; "
            "take the tokenizer that the model was trained with, or remove model.vocab_size."
        )
    return model
