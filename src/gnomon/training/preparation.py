"""From a recipe to what training needs, in memory: nothing is written while anything can still be refused."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, set_seed
from transformers.utils import is_torch_bf16_gpu_available

from gnomon.models import heads
from gnomon.models.config import GnomonConfig
from gnomon.models.multimodal import GnomonImageTextConfig
from gnomon.training.checkpoints import readable_weights
from gnomon.training.data_options import DataOptions
from gnomon.training.growth import rehearse_growth
from gnomon.training.optimization import steps_per_epoch
from gnomon.training.options import Recipe, TrainingOptions
from gnomon.training.recipe import model_fields
from gnomon.training.records import read_json
from gnomon.training.tasks import TASKS, find_task
from gnomon.training.tasks.task import Collate, Score, Task

ENCODING_KEYS = {"sequence_length", "mask_probability", "spec_augment", "augmentation"}
"""Keys of `data` that say how rows become numbers, not which rows they are."""

COUNTED = {"num_skipped": "skipped_sequences", "num_too_long": "too_long_sequences", "num_truncated": "cut_sequences"}
"""What a data set may have counted while it was encoded, and what the ledger calls it."""


@dataclass(frozen=True)
class StageData:
    """A stage's data, encoded.

    Attributes:
        train: What is trained on.
        validation: What is held out.
        counts: What was left out or cut, of the training side.
    """

    train: Any
    validation: Any
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Preparation:
    """All that a run needs, checked.

    Attributes:
        recipe: What is to be done.
        task: What that kind of training means.
        processor: The run's tokenizer, or what else makes numbers of its data, over all stages.
        stages: Each stage's data; stages with the same data share them.
        model: The model before the first step.
    """

    recipe: Recipe
    task: Task
    processor: Any
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

    def collator(self, stage: int) -> Collate:
        """What makes a batch of a stage's rows; data that change at random bring their own."""
        own = getattr(self.stages[stage].train, "collator", None)
        return self.task.collate(self.processor, self.model) if own is None else own(self.model)

    def evaluator(self, stage: int, *, whole: bool = False) -> Callable[[PreTrainedModel], Score]:
        """What scores a model on a stage's held-out data: on all of them, or on the part that the recipe asks for."""
        data, options = self.stages[stage], self.recipe.stages[stage].training
        return evaluator(data.validation, options, self.task, self.processor, whole=whole)


def prepare(recipe: Recipe) -> Preparation:
    """Load the data, build the tokenizer, encode, and build the model.

    Args:
        recipe: A checked recipe.

    Raises:
        ValueError: The data are empty or shorter than a sequence, the tokenizer does not fit, or this machine
            cannot compute in the precision asked for.
        FileNotFoundError: Data, tokenizer or checkpoint are not there.
    """
    _check_machine(recipe)
    assert recipe.task is not None
    task = find_task(recipe.task)
    sources = [recipe.stage_data(stage) for stage in range(len(recipe.stages))]
    splits = {_key(data): task.load(data) for data in sources}
    first = splits[_key(sources[0])].train
    processor, labels = task.build_processor(recipe, first), task.labels(first)
    if len(labels) == 1:
        raise ValueError(
            f"task {recipe.task} tells classes apart, and the training data have only one, {labels[0]!r}; "
            "add rows of another, or name other data."
        )
    encoded: dict[str, StageData] = {}
    for data in sources:
        if (key := data.model_dump_json()) not in encoded:
            sides = splits[_key(data)]
            train = task.encode(sides.train, processor, data, labels, True)
            validation = task.encode(sides.validation, processor, data, labels, False)
            counts = {name: getattr(train, place) for place, name in COUNTED.items() if hasattr(train, place)}
            encoded[key] = StageData(train, validation, counts)
    model = _model(recipe, task, processor, labels)
    longest = max(data.sequence_length or 0 for data in sources)
    if longest > model.config.max_position_embeddings:
        raise ValueError(
            f"data.sequence_length is {longest}, which must not exceed the model's max_position_embeddings "
            f"{model.config.max_position_embeddings}; lower the one or raise the other."
        )
    rehearse_growth(recipe, model)
    return Preparation(recipe, task, processor, [encoded[data.model_dump_json()] for data in sources], model)


def load_checkpoint(folder: Path, head: str | None = None, **config_fields: Any) -> PreTrainedModel:
    """Load a gnomon checkpoint for training, in float32, and refuse one that lacks a tensor.

    Args:
        folder: What a run or `save_pretrained` has written.
        head: The public name of the class to load it into; its own if None. With another head than its own the
            backbone must be whole, and what the new head has besides starts afresh.
        config_fields: Configuration fields that change, such as the labels of a new head.

    Raises:
        FileNotFoundError: The folder holds no configuration or no weights.
        ValueError: The weights are damaged or not those of the model, or the head is not gnomon's.
    """
    for needed, pattern in (("config.json", "config.json"), ("weights (model.safetensors)", "*.safetensors")):
        if not any(folder.glob(pattern)):
            raise FileNotFoundError(
                f"the checkpoint {folder} has no {needed}; name a folder that a run or save_pretrained has written."
            )
    own = (read_json(folder / "config.json").get("architectures") or ["GnomonForCausalLM"])[0]
    wanted = head or own
    if wanted not in heads.HEADS:
        raise ValueError(f"the checkpoint {folder} holds a {wanted}, which is no model of gnomon; name another one.")
    head_class = heads.HEADS[wanted]
    model: PreTrainedModel
    with readable_weights(folder):
        model, report = head_class.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, output_loading_info=True, **config_fields
        )
    backbone = f"{head_class.base_model_prefix}."
    for problem, names in (("lacks", report["missing_keys"]), ("has an unknown", report["unexpected_keys"])):
        if wanted != own:
            names = [name for name in names if name.startswith(backbone)]
        if names:
            raise ValueError(
                f"the checkpoint {folder} {problem} tensor {sorted(names)[0]} ({len(names)} such); "
                "it is damaged or of another model: name another one."
            )
    return model


def evaluator(
    rows: Any, options: TrainingOptions, task: Task | None = None, processor: Any = None, *, whole: bool = False
) -> Callable[[PreTrainedModel], Score]:
    """What scores a model during training.

    Args:
        rows: Held-out data, encoded for an evaluation.
        options: Say how many of them are read, and how many at once.
        task: What they are for; language modeling if None.
        processor: Their tokenizer, say.
        whole: Read all of them, whatever the options say.
    """
    task, count = task or find_task("language-modeling"), options.evaluation_sequences
    if not whole and count is not None and count < len(rows):
        rows = task.part(rows, count)
    batch_size = options.evaluation_batch_size or options.batch_size
    return partial(_score, task=task, rows=rows, processor=processor, batch_size=batch_size)


def _score(model: PreTrainedModel, *, task: Task, rows: Any, processor: Any, batch_size: int) -> Score:
    return task.evaluate(model, rows, processor, batch_size)


def _key(data: DataOptions) -> str:
    """What tells one set of data from another, however it is encoded."""
    return data.model_dump_json(exclude=ENCODING_KEYS)


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


def _model(recipe: Recipe, task: Task, processor: Any, labels: Sequence[str]) -> PreTrainedModel:
    """The model before the first step; its weights depend on the seed and on nothing else."""
    assert recipe.task is not None
    head = TASKS[recipe.task].head
    classes: dict[str, Any] = {}
    if labels:
        numbered = dict(enumerate(labels))
        classes = {"id2label": numbered, "label2id": {name: number for number, name in numbered.items()}}
    model: PreTrainedModel
    set_seed(recipe.seed)
    if "checkpoint" in recipe.model:
        model = load_checkpoint(Path(recipe.model["checkpoint"]), head, **classes)
    else:
        fields = {
            name: value for name, value in model_fields(recipe.model).items() if name != "num_labels" or not labels
        }
        ids = _special_ids(recipe, task, processor)
        named = {name: value for name, value in recipe.model.items() if name != "preset"}
        if "vision_config" in fields:
            text = {**ids, **fields.get("text_config", {})}
            model = heads.HEADS[head](GnomonImageTextConfig(**{**fields, "text_config": text}))
        else:
            model = heads.HEADS[head](GnomonConfig(**fields | ids | named, **classes))
    if (TASKS[recipe.task].uses_tokenizer or task.makes_ids) and len(processor) > model.config.vocab_size:
        raise ValueError(
            f"the tokenizer has {len(processor)} ids, but the model's vocabulary has {model.config.vocab_size}; "
            "take the tokenizer that the model was trained with, or remove model.vocab_size."
        )
    if recipe.generation is not None:
        model.generation_config.update(**recipe.generation.model_dump(exclude_none=True))
    task.finish_model(model, recipe)
    return model


def _special_ids(recipe: Recipe, task: Task, tokenizer: Any) -> dict[str, int]:
    """The size of the vocabulary and the ids of its marks, as the configuration names them."""
    assert recipe.task is not None
    if not (TASKS[recipe.task].uses_tokenizer or task.makes_ids):
        return {}
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    ids = {name: getattr(tokenizer, name) for name in names if getattr(tokenizer, name) is not None}
    start = ids.get("bos_token_id", ids.get("eos_token_id"))
    if model_fields(recipe.model).get("decoder_layers") and start is not None:
        ids["decoder_start_token_id"] = start
    return {"vocab_size": len(tokenizer)} | ids
