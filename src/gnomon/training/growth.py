"""Growth between two stages: what a recipe may say of it, and how the optimiser and the rules for rows go along."""

from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch.optim import Optimizer
from transformers import PreTrainedModel

from gnomon.growth.api import grow
from gnomon.growth.report import GrowthReport
from gnomon.growth.rows import RowRule, RowUpdates
from gnomon.growth.sites import PARTS, pattentions
from gnomon.nn.functional import default_score_scale
from gnomon.training.options import Options

Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Size = Annotated[int, Field(gt=0)]

SIZES = (
    "num_attention_tokens",
    "num_output_tokens",
    "num_feed_forward_tokens",
    "num_hidden_layers",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_size",
)


class GrowthOptions(Options):
    """How the model grows before a stage: config fields with their values after growth, and how it is done."""

    num_attention_tokens: Size | dict[str, int] | list[Any] | None = Field(None, description="Of query, key, value.")
    num_output_tokens: Size | list[int] | None = Field(None, description="Of the output projection.")
    num_feed_forward_tokens: Size | list[int] | None = Field(None, description="Of the feed-forward layer.")
    num_hidden_layers: Size | None = Field(None, description="Layers; the new ones start as the identity.")
    intermediate_size: Size | None = Field(None, description="Width of a linear feed-forward layer.")
    num_attention_heads: Size | None = Field(None, description="Heads.")
    num_key_value_heads: Size | None = Field(None, description="Key-value heads.")
    head_dim: Size | None = Field(None, description="Width of a head.")
    hidden_size: Size | None = Field(None, description="Width of the residual stream.")
    layers: list[int] | None = Field(None, description="The layers whose tokens grow; null: all.")
    init: Literal["exact", "replicate", "random", "reference", "net2net", "hypercloning"] = Field(
        "exact", description="How the new parameters start."
    )
    score_scale: Literal["hold", "count", "anneal"] | None = Field(
        None, description="What becomes of tau: held, set by the new count, or led there over anneal_steps."
    )
    anneal_steps: Size | None = Field(None, description="Steps of score_scale: anneal.")
    offset_std: Rate = Field(1.0, description="Size of replicate's offsets, over the values' standard deviation.")
    optimizer: Literal["carry", "fresh"] = Field("carry", description="Whether the optimiser's state goes along.")
    correct_new_rows: bool = Field(True, description="Correct Adam's bias of new rows by their own step count.")
    old_rate: Rate = Field(1.0, description="Factor on the old rows' updates; 0 freezes them.")
    new_rate: Rate = Field(1.0, description="Factor on the new rows' updates.")
    noise: Rate = Field(0.0, description="Standard deviation of noise added to the old tokens.")

    @model_validator(mode="after")
    def _something_grows(self) -> Self:
        """At least one size, and a length for an annealing that is asked for."""
        if not self.sizes():
            raise ValueError(f"names no size; give at least one of {', '.join(SIZES)}")
        if (self.score_scale == "anneal") != (self.anneal_steps is not None):
            raise ValueError("needs anneal_steps and score_scale: anneal together; give both or neither")
        return self

    def sizes(self) -> dict[str, Any]:
        """The config fields that grow."""
        return {name: getattr(self, name) for name in SIZES if getattr(self, name) is not None}


@dataclass
class GrowthState:
    """What outlasts the growth itself and so is part of every checkpoint of the stage.

    Attributes:
        rows: Rules for rows by parameter, as `RowUpdates.state_dict` gives them.
        anneal_steps: Steps over which tau is led to its target.
        score_scales: Name of a Pattention -> tau before and after.
    """

    rows: dict[str, Any] = field(default_factory=dict)
    anneal_steps: int = 0
    score_scales: dict[str, list[float]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for JSON."""
        return asdict(self)

    def score_scale_at(self, name: str, step: int) -> float:
        """tau of a Pattention in a step counted from 0, led linearly from its old to its new value."""
        before, after = self.score_scales[name]
        return before + (after - before) * min(step / self.anneal_steps, 1.0)


def grow_for_stage(
    model: PreTrainedModel, optimizer: Optimizer, options: GrowthOptions, *, seed: int
) -> tuple[GrowthReport, GrowthState]:
    """Grow a model as a recipe says, its optimiser with it.

    Args:
        model: Before the stage.
        optimizer: Its own, with the state of the stage before.
        options: Of the growth.
        seed: Of everything random in it.

    Returns:
        The report, and what has to be kept up during the stage.

    Raises:
        ValueError: With the rule, the value and the remedy; the model is then unchanged.
    """
    before = {name: module.num_tokens for name, _, module in pattentions(model)}
    anneal = options.score_scale == "anneal"
    report = grow(
        model,
        init=options.init,
        score_scale="hold" if anneal else options.score_scale,
        layers=options.layers,
        optimizer=optimizer,
        seed=seed,
        offset_std=options.offset_std,
        **options.sizes(),
    )
    state = GrowthState(anneal_steps=options.anneal_steps or 0)
    fresh = options.optimizer == "fresh" or options.init == "reference"
    if fresh:
        optimizer.state.clear()
    generator = torch.Generator().manual_seed(seed + 1)
    for name, _, module in pattentions(model):
        old = before.get(name, 0)
        if options.noise:
            for part in PARTS:
                rows = getattr(module, part).data[:old]
                rows += options.noise * torch.randn(rows.shape, generator=generator).to(rows)
        if module.num_tokens == old:
            continue
        if anneal and module.score_scale is not None:
            target = default_score_scale(module.score, module.num_tokens)
            state.score_scales[name] = [float(module.score_scale), float(target or 0.0)]
        for part in PARTS:
            kept = optimizer.state.get(getattr(module, part), {})
            born = float(kept["step"]) if options.correct_new_rows and "step" in kept else None
            copied = options.init == "replicate"  # copies bring their moments and their count with them
            rule = RowRule(old, options.old_rate, options.new_rate, None if copied else born)
            if rule.born or rule.old_rate != 1.0 or rule.new_rate != 1.0:
                state.rows[f"{name}.{part}"] = asdict(rule)
    return report, state


def keep_rules(optimizer: Optimizer, model: PreTrainedModel, state: GrowthState) -> RowUpdates | None:
    """Put the rules for rows into force, after a growth or after a reload.

    Args:
        optimizer: Of the model.
        model: After growth.
        state: From `grow_for_stage` or from a checkpoint.

    Returns:
        What applies them, or None where there are none.
    """
    if not state.rows:
        return None
    updates = RowUpdates(optimizer)
    updates.load_state_dict(state.rows, model)
    return updates


def set_score_scales(model: PreTrainedModel, state: GrowthState, step: int) -> None:
    """Lead every tau that is being annealed to where it belongs in this step.

    Args:
        model: After growth.
        state: Of the growth.
        step: Of the stage, from 0.
    """
    for name, _, module in pattentions(model):
        if name in state.score_scales and module.score_scale is not None:
            module.score_scale.data.fill_(state.score_scale_at(name, step))
