"""Growth between two stages: how the optimizer and the rules for rows go along, and what outlasts it."""

from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer
from transformers import PreTrainedModel

from gnomon.growth.api import grow
from gnomon.growth.report import GrowthReport
from gnomon.growth.rows import RowRule, RowUpdates
from gnomon.growth.sites import PARTS, pattentions
from gnomon.nn.functional import default_score_scale
from gnomon.training.options import GrowthOptions, Recipe
from gnomon.training.records import write_json


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
    """Grow a model as a recipe says, its optimizer with it.

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


def grow_before_training(trainer: Any, options: GrowthOptions, checkpoint: Path | None, report: Path) -> None:
    """Grow the model of a stage that is about to begin, with the optimizer of the stage before.

    Args:
        trainer: Of the stage; its optimizer is made here, before growth, so that its groups and state fit.
        options: Of the growth.
        checkpoint: The last of the stage before, whose optimizer state goes along; None for a fresh start.
        report: Where the report is written.
    """
    optimizer = trainer.create_optimizer()
    if checkpoint is not None and options.optimizer == "carry" and options.init != "reference":
        saved = torch.load(checkpoint / "optimizer.pt", map_location="cpu", weights_only=True)
        # the groups stay this stage's own: its learning rate, decay and betas
        optimizer.load_state_dict({**optimizer.state_dict(), "state": saved["state"]})
    seed = trainer.plan.seed + trainer.plan.index
    grown, state = grow_for_stage(trainer.model, optimizer, options, seed=seed)
    trainer.progress.growth = state.to_dict()
    write_json(report, grown.to_dict())


def rehearse_growth(recipe: Recipe, model: PreTrainedModel) -> None:
    """Grow a copy of the model through all stages, so that an impossible growth is refused before anything is written.

    Args:
        recipe: The whole recipe.
        model: Before the first stage.

    Raises:
        ValueError: Naming the stage and what cannot be.
    """
    copy = None
    for number, stage in enumerate(recipe.stages):
        if stage.growth is None:
            continue
        copy = deepcopy(model) if copy is None else copy
        try:
            grow_for_stage(copy, torch.optim.SGD(copy.parameters()), stage.growth, seed=recipe.seed + number)
        except ValueError as error:
            raise ValueError(f"stages.{number}.growth: {error}") from None


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
