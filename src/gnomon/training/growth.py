"""Growth between two stages: how the optimizer and the rules for rows go along."""

from copy import deepcopy
from dataclasses import asdict
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
from gnomon.training.growth_state import GrowthState
from gnomon.training.optimization import decayed_parameters
from gnomon.training.options import GrowthOptions, Recipe
from gnomon.training.records import write_json

OPTIMIZER_FILE = "optimizer.pt"
"""Where a checkpoint keeps the optimizer's state."""


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
    moving = options.score_scale in ("anneal", "share")  # during the stage; growth itself holds tau
    _check_shares(model, options)
    report = grow(
        model,
        init=options.init,
        score_scale="hold" if moving else options.score_scale,
        layers=options.layers,
        optimizer=optimizer,
        seed=seed,
        offset_std=options.offset_std,
        tower=options.tower,
        **options.sizes(),
    )
    state = GrowthState(anneal_steps=options.anneal_steps or 0, share_every=options.share_every or 0)
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
        if moving and module.score_scale is not None:
            tau, target = float(module.score_scale), default_score_scale(module.score, module.num_tokens)
            if options.score_scale == "anneal":
                state.score_scales[name] = [tau, float(target or 0.0)]
            else:
                state.shares[name] = [tau, old]
        for part in PARTS:
            kept = optimizer.state.get(getattr(module, part), {})
            count = float(kept["step"]) if "step" in kept else None
            copied = options.init == "replicate"  # copies bring their moments and their count with them
            rule = RowRule(
                old,
                options.old_rate,
                options.new_rate,
                count if options.correct_new_rows and not copied else None,
                options.new_warmup_steps,
                count or 0.0,
            )
            if rule.born or rule.old_rate != 1.0 or rule.new_rate != 1.0 or rule.warmup_steps:
                state.rows[f"{name}.{part}"] = asdict(rule)
    return report, state


def grow_before_training(trainer: Any, options: GrowthOptions, checkpoint: Path | None, report: Path) -> GrowthReport:
    """Grow the model of a stage that is about to begin, with the optimizer of the stage before.

    Args:
        trainer: Of the stage; its optimizer is made here, before growth, so that its groups and state fit.
        options: Of the growth.
        checkpoint: The last of the stage before, whose optimizer state goes along; None for a fresh start.
        report: Where the report is written.

    Returns:
        The report.
    """
    optimizer = trainer.create_optimizer()
    if checkpoint is not None and options.carries_optimizer:
        carried = load_optimizer(checkpoint, trainer.model)
        if carried is not None:
            # the groups stay this stage's own: its learning rate, decay and betas
            optimizer.load_state_dict({**optimizer.state_dict(), "state": carried.state_dict()["state"]})
    seed = trainer.plan.seed + trainer.plan.index
    grown, state = grow_for_stage(trainer.model, optimizer, options, seed=seed)
    trainer.progress.growth = state.to_dict()
    write_json(report, grown.to_dict())
    return grown


def load_optimizer(folder: Path, model: PreTrainedModel) -> torch.optim.Optimizer | None:
    """The optimizer that a training checkpoint holds, its groups as the trainer makes them.

    Args:
        folder: Of the checkpoint.
        model: Loaded from it.

    Returns:
        AdamW with its state, or None where there is none.

    Raises:
        ValueError: The state is not of this model.
    """
    if not (folder / OPTIMIZER_FILE).is_file():
        return None
    decayed = set(decayed_parameters(model))
    named = list(model.named_parameters())
    groups = [{"params": [p for n, p in named if (n in decayed) is wanted]} for wanted in (True, False)]
    optimizer = torch.optim.AdamW(groups)
    saved = torch.load(folder / OPTIMIZER_FILE, map_location="cpu", weights_only=True)
    try:
        optimizer.load_state_dict(saved)
        for name, parameter in named:
            for key, value in optimizer.state.get(parameter, {}).items():
                if value.numel() > 1 and value.shape != parameter.shape:
                    raise ValueError(
                        f"{key} of {name} has shape {tuple(value.shape)}, the parameter {tuple(parameter.shape)}"
                    )
    except ValueError as error:
        raise ValueError(
            f"{folder / OPTIMIZER_FILE} is not of this model ({error}); remove it to go on without"
        ) from None
    return optimizer


def rehearse_growth(recipe: Recipe, model: PreTrainedModel) -> None:
    """Grow a copy of the model through all stages, so that an impossible growth is refused before anything is written.

    Args:
        recipe: The whole recipe.
        model: Before the first stage.

    Raises:
        ValueError: Naming the stage and what cannot be.
    """
    copy, first = None, recipe.stages[0].growth
    if first is not None and first.carries_optimizer and "checkpoint" in recipe.model:
        load_optimizer(Path(recipe.model["checkpoint"]), model)
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


def _check_shares(model: PreTrainedModel, options: GrowthOptions) -> None:
    """Refuse to follow a share of a norm that the scores do not have.

    Raises:
        ValueError: With the score and the remedy.
    """
    others = {module.score for _, _, module in pattentions(model)} - {"l2_norm_gelu", "gelu_l2_norm"}
    if options.score_scale == "share" and others:
        raise ValueError(
            "score_scale: share follows the new tokens' share of ||A||^2, which only the L2 scores have; this model's "
            f"is {sorted(others)[0]}, so choose another score_scale"
        )
