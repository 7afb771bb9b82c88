"""What a recipe may say: its keys, their types, ranges, meanings and defaults."""

import math
import os
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from gnomon.training.data_options import (
    Count,
    DataOptions,
    Decay,
    Fraction,
    Options,
    PositiveInt,
    PositiveNumber,
    TokenizerOptions,
)
from gnomon.training.tasks import TASKS

Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]
GROWING = (
    "num_attention_tokens",
    "num_output_tokens",
    "num_feed_forward_tokens",
    "num_hidden_layers",
    "encoder_layers",
    "decoder_layers",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_size",
)
"""Config fields that a growth may set."""


class GenerationOptions(Options):
    """How the trained model writes, in evaluations and for whoever loads it."""

    num_beams: PositiveInt = Field(1, description="Beams of the search; 1 is greedy.")
    length_penalty: float = Field(1.0, description="Above 1 favors longer results of a beam search.")
    max_new_tokens: PositiveInt | None = Field(None, description="The longest result; null: as the data's longest.")


class TrainingOptions(Options):
    """One stage's optimization. A step is one change of the weights."""

    max_steps: PositiveInt | None = Field(None, description="Steps of the stage.")
    epochs: PositiveNumber | None = Field(None, description="Passes over the data, instead of max_steps.")
    learning_rate: PositiveNumber = Field(6e-4, description="The schedule's peak.")
    batch_size: PositiveInt = Field(32, description="Sequences in one forward pass.")
    gradient_accumulation_steps: PositiveInt = Field(
        1, description="Forward passes in one step; a step sees batch_size times as many sequences."
    )
    warmup_steps: Count | None = Field(None, description="Steps of linear rise; unset, 1% of the stage.")
    schedule: Literal["cosine", "linear", "constant"] = Field(
        "cosine", description="The learning rate's course after the warm-up."
    )
    continue_schedule: bool = Field(
        False, description="Go on with the schedule of the stage before; written as schedule: continue."
    )
    minimum_learning_rate_ratio: Fraction = Field(0.0, description="Where the course ends, over the peak.")
    layer_learning_rate_decay: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="Factor on the rate of each layer against the next one's, for fine-tuning."
    )
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        0.1, description="Decoupled decay of everything but norms, biases and score scales."
    )
    beta1: Decay = Field(0.9, description="AdamW's decay of the mean of the gradients.")
    beta2: Decay = Field(0.95, description="AdamW's decay of the mean of their squares.")
    epsilon: PositiveNumber = Field(1e-8, description="AdamW's addition to the denominator.")
    max_grad_norm: PositiveNumber | None = Field(
        1.0, description="Longer gradients are scaled down to this norm; null: never."
    )
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="Share of the target's weight that all answers get alike."
    )
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="Of the products; weights and moments stay in float32."
    )
    gradient_checkpointing: bool = Field(False, description="Compute activations twice instead of keeping.")
    evaluate_every: PositiveInt | None = Field(None, description="Steps between evaluations; null: at the end.")
    evaluation_sequences: PositiveInt | None = Field(
        None, description="Held-out sequences an evaluation reads; null: all. The last one always reads all."
    )
    evaluation_batch_size: PositiveInt | None = Field(None, description="Null: batch_size.")
    save_every: PositiveInt | None = Field(None, description="Steps between checkpoints; null: at the end.")
    keep_checkpoints: PositiveInt = Field(2, description="Checkpoints of a stage that stay on disk.")
    log_every: PositiveInt = Field(10, description="Steps between the rows of metrics.jsonl.")
    workers: Count = Field(0, description="Processes that prepare batches; 0: none but the run's own.")
    divergence_steps: Count = Field(
        50, description="Steps in a row that a loss may stay above its start before the run stops; 0: any."
    )

    @field_validator("workers")
    @classmethod
    def _enough_processors(cls, workers: int) -> int:
        """Far more workers than the machine has processors would only fill its memory."""
        most = max(8, 2 * (os.cpu_count() or 1))
        if workers > most:
            raise ValueError(f"is {workers}, and this machine's processors have use for {most} at most; lower it")
        return workers

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        """Exactly one of `max_steps` and `epochs`, and a warm-up that ends before the stage."""
        if (self.max_steps is None) == (self.epochs is None):
            state = "names neither max_steps nor epochs" if self.epochs is None else "has both max_steps and epochs"
            raise ValueError(f"{state}; keep exactly one, for example max_steps: 1000")
        if self.max_steps is not None and self.warmup_steps is not None and self.warmup_steps >= self.max_steps:
            raise ValueError(
                f"has warmup_steps {self.warmup_steps}, which must be below max_steps {self.max_steps}; "
                "lower warmup_steps"
            )
        return self

    def resolved_warmup_steps(self, max_steps: int) -> int:
        """The warm-up's length in a stage of so many steps: 1% where the recipe is silent, below 10 steps none."""
        if self.warmup_steps is None:
            return math.ceil(max_steps / 100) if max_steps >= 10 else 0
        return min(self.warmup_steps, max_steps - 1)


class GrowthOptions(Options):
    """How the model grows before a stage: config fields with their values after growth, and how it is done."""

    num_attention_tokens: PositiveInt | dict[str, int] | list[Any] | None = Field(
        None, description="Of query, key, value."
    )
    num_output_tokens: PositiveInt | list[int] | None = Field(None, description="Of the output projection.")
    num_feed_forward_tokens: PositiveInt | list[int] | None = Field(None, description="Of the feed-forward layer.")
    num_hidden_layers: PositiveInt | None = Field(None, description="Layers; the new ones start as the identity.")
    encoder_layers: PositiveInt | None = Field(None, description="The same of an encoder-decoder's encoder.")
    decoder_layers: PositiveInt | None = Field(None, description="The same of its decoder.")
    intermediate_size: PositiveInt | None = Field(None, description="Width of a linear feed-forward layer.")
    num_attention_heads: PositiveInt | None = Field(None, description="Heads.")
    num_key_value_heads: PositiveInt | None = Field(None, description="Key-value heads.")
    head_dim: PositiveInt | None = Field(None, description="Width of a head.")
    hidden_size: PositiveInt | None = Field(None, description="Width of the residual stream.")
    tower: Literal["text", "vision"] | None = Field(None, description="Which of a model's two towers grows.")
    layers: list[int] | None = Field(None, description="The layers whose tokens grow; null: all.")
    init: Literal["exact", "replicate", "random", "reference", "net2net", "hypercloning"] = Field(
        "exact", description="How the new parameters start."
    )
    score_scale: Literal["hold", "count", "anneal", "share"] | None = Field(
        None,
        description="What becomes of tau: held, set by the new count, led there over anneal_steps, or following the "
        "new tokens' share of the scores' squared norm.",
    )
    anneal_steps: PositiveInt | None = Field(None, description="Steps of score_scale: anneal.")
    share_every: PositiveInt | None = Field(None, description="Steps between measurements of score_scale: share.")
    offset_std: Rate = Field(1.0, description="Size of replicate's offsets, over the values' standard deviation.")
    optimizer: Literal["carry", "fresh"] = Field("carry", description="Whether the optimizer's state goes along.")
    correct_new_rows: bool = Field(True, description="Correct Adam's bias of new rows by their own step count.")
    old_rate: Rate = Field(1.0, description="Factor on the old rows' updates; 0 freezes them.")
    new_rate: Rate = Field(1.0, description="Factor on the new rows' updates.")
    new_warmup_steps: Count = Field(0, description="Steps over which that factor rises from zero.")
    noise: Rate = Field(0.0, description="Standard deviation of noise added to the old tokens.")

    @model_validator(mode="after")
    def _something_grows(self) -> Self:
        """At least one size, and a length for an annealing that is asked for."""
        if not self.sizes():
            raise ValueError(f"names no size; give at least one of {', '.join(GROWING)}")
        for rule, needed in (("anneal", "anneal_steps"), ("share", "share_every")):
            if (self.score_scale == rule) != (getattr(self, needed) is not None):
                raise ValueError(f"needs {needed} and score_scale: {rule} together; give both or neither")
        return self

    @property
    def carries_optimizer(self) -> bool:
        """Whether the optimizer's state goes along; the official growth drops it."""
        return self.optimizer == "carry" and self.init != "reference"

    def sizes(self) -> dict[str, Any]:
        """The config fields that grow."""
        return {name: getattr(self, name) for name in GROWING if getattr(self, name) is not None}


class StageOptions(Options):
    """One stage: growth if it names one, then training over its own data or the recipe's."""

    growth: GrowthOptions | None = Field(None, description="How the model grows before the stage.")
    data: DataOptions | None = Field(None, description="The stage's data, where they are not the recipe's.")
    training: TrainingOptions

    @model_validator(mode="after")
    def _anneals_in_time(self) -> Self:
        """An annealing that would still be on its way at the stage's end is refused."""
        steps, anneal = self.training.max_steps, self.growth and self.growth.anneal_steps
        if steps is not None and anneal is not None and anneal > steps:
            raise ValueError(f"has growth.anneal_steps {anneal}, beyond training.max_steps {steps}; lower anneal_steps")
        return self


class Recipe(Options):
    """A whole recipe: what is trained, on what, and how.

    >>> Recipe(
    ...     model={"preset": "tokenformer-tiny"},
    ...     data=DataOptions(name="shakespeare", sequence_length=64),
    ...     stages=[StageOptions(training=TrainingOptions(max_steps=9))],
    ... ).stages[0].training.learning_rate
    0.0006
    """

    model: dict[str, Any] = Field(
        description="{preset: NAME} with any configuration fields to change, or fields alone, or {checkpoint: DIR}."
    )
    task: Literal[*TASKS] | None = Field(  # type: ignore[valid-type]
        None, description="What is learned; null: what the model is for."
    )
    tokenizer: TokenizerOptions | None = Field(None, description="Unset: the checkpoint's own.")
    data: DataOptions
    generation: GenerationOptions | None = Field(None, description="How the model writes, where it does.")
    seed: Annotated[int, Field(ge=0, lt=2**31)] = Field(0, description="Of weights, data order and dropout.")
    stages: list[StageOptions] = Field(min_length=1, description="Run one after another.")

    @model_validator(mode="after")
    def _carries_like_rates(self) -> Self:
        """An optimizer's state goes along with a growth where all layers have one rate."""
        grows = any(stage.growth is not None and stage.growth.carries_optimizer for stage in self.stages)
        decays = [stage.training.layer_learning_rate_decay for stage in self.stages]
        if grows and min(decays) < 1.0:
            raise ValueError(
                f"has layer_learning_rate_decay {min(decays)} and a growth that carries the optimizer, whose groups "
                "would not fit; set growth.optimizer to fresh, or leave the decay at 1"
            )
        return self

    @model_validator(mode="after")
    def _begins_its_own_schedule(self) -> Self:
        """The first stage has no schedule before it to go on with."""
        if self.stages[0].training.continue_schedule:
            raise ValueError("has stages.0.training.continue_schedule true, but no stage before it; remove it")
        return self

    def stage_data(self, stage: int) -> DataOptions:
        """The data of a stage: its own, or the recipe's."""
        return self.stages[stage].data or self.data

    def to_dict(self) -> dict[str, Any]:
        """The recipe with every default written out, as plain mappings and lists."""
        return {
            "model": self.model,
            "task": self.task,
            "tokenizer": self.tokenizer and self.tokenizer.model_dump(exclude_none=True),
            "data": self.data.model_dump(exclude_none=True),
            **({"generation": self.generation.model_dump(exclude_none=True)} if self.generation else {}),
            "seed": self.seed,
            "stages": [
                ({"growth": stage.growth.model_dump(exclude_none=True)} if stage.growth else {})
                | ({"data": stage.data.model_dump(exclude_none=True)} if stage.data else {})
                | {"training": stage.training.model_dump()}
                for stage in self.stages
            ],
        }
