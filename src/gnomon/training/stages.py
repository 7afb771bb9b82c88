"""A run: the recipe's stages one after another, each one Trainer run, each one row of the ledger."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnomon.analysis.flops import count_parameters, training_flops
from gnomon.training import folder as folders
from gnomon.training.callbacks import MetricsWriter, Observer, ProgressDisplay, TensorBoardWriter, without_bars
from gnomon.training.checkpoints import clear_leftovers, newest_complete, publish, read_progress, step_of
from gnomon.training.folder import RunFolder
from gnomon.training.growth import grow_before_training
from gnomon.training.interrupts import Interrupt, catch_interrupts
from gnomon.training.options import Recipe
from gnomon.training.preparation import Preparation, load_checkpoint, prepare
from gnomon.training.progress import DivergenceError, Progress, StagePlan
from gnomon.training.records import read_rows, write_rows
from gnomon.training.tasks.task import Score
from gnomon.training.trainer import StageTrainer


@dataclass(frozen=True)
class RunResult:
    """What a run has come to.

    Attributes:
        output: Its folder.
        ledger: A row for every stage that has ended.
        interrupted: The signal that stopped it, or None when all stages are done.
    """

    output: Path
    ledger: list[dict[str, Any]]
    interrupted: int | None

    @property
    def resume_command(self) -> str:
        """What continues the run."""
        return RunFolder(self.output).resume_command()

    def to_dict(self) -> dict[str, Any]:
        """The result, for JSON."""
        return {"output": str(self.output), "ledger": self.ledger, "interrupted": self.interrupted}


def run(
    recipe: Recipe, output: Path | str, *, resume: bool = False, progress: bool = True, title: str = ""
) -> RunResult:
    """Train as a recipe says.

    Everything is loaded and checked before the folder appears. An interrupted or killed run continues from its
    newest whole checkpoint, and on the CPU ends in the same weights, bit by bit, as one that never stopped.

    Args:
        recipe: A checked recipe.
        output: The run's folder.
        resume: Continue the run in the folder; a finished one is left as it is.
        progress: Show progress on standard error.
        title: What the progress display calls the run.

    Returns:
        The folder and its ledger; after SIGINT or SIGTERM with the signal's number.

    Raises:
        FileExistsError: The folder exists, or another process is at work in it.
        FileNotFoundError: There is nothing to resume, or text, tokenizer or checkpoint are missing.
        ValueError: Something in the recipe does not fit.
        DivergenceError: The loss is no number, or stayed above its start; the ledger says so.
    """
    output = Path(output)
    if resume:
        folders.reopen(output, recipe)
    else:
        folders.refuse_existing(output)
    prepared = prepare(recipe)
    folder = RunFolder(output) if resume else folders.create(output, recipe)
    with folders.locked(output), without_bars(), catch_interrupts() as interrupt:
        clear_leftovers(output)
        ledger = [row for row in read_rows(folder.ledger) if row["status"] == "finished"]
        write_rows(folder.ledger, ledger)
        if resume and len(ledger) < len(recipe.stages):
            folders.record_continuation(folder, recipe.seed)
        for index in range(len(ledger), len(recipe.stages)):
            display = ProgressDisplay(f"{title} stage {index}".strip(), prepared.task.unit) if progress else None
            row = None if interrupt else _run_stage(folder, prepared, index, ledger, interrupt, display)
            if row is None:
                return RunResult(output, ledger, interrupt.signal)
            ledger.append(row)
            write_rows(folder.ledger, ledger)
    return RunResult(output, ledger, interrupt.signal)


def _run_stage(
    folder: RunFolder,
    prepared: Preparation,
    index: int,
    ledger: list[dict[str, Any]],
    interrupt: Interrupt,
    display: ProgressDisplay | None,
) -> dict[str, Any] | None:
    """Train one stage from where it stands to its end; None when a signal stops it on the way."""
    stage_folder, options = folder.stage(index), prepared.recipe.stages[index].training
    clear_leftovers(stage_folder)
    checkpoint = newest_complete(stage_folder)
    previous = ledger[-1] if ledger else {}
    if checkpoint is not None:
        model = load_checkpoint(checkpoint)
        standing = Progress(**read_progress(checkpoint))
    else:
        model = load_checkpoint(folder.model) if ledger else prepared.model
        standing = Progress()
        if ledger and prepared.stages[index].validation is prepared.stages[index - 1].validation:
            standing.best_loss, standing.best_step = previous["best_validation_loss"], 0
    done = step_of(checkpoint) if checkpoint is not None else 0
    folders.forget_metrics_after(folder, index, done)
    plan = StagePlan(
        index=index,
        max_steps=prepared.max_steps(index),
        seed=prepared.recipe.seed,
        folder=stage_folder,
        best_folder=folder.best,
        steps_before=previous.get("cumulative_steps", 0),
        tokens_before=previous.get("cumulative_tokens", 0),
        seconds_before=previous.get("cumulative_seconds", 0.0),
        **prepared.schedule(index),
    )
    callbacks = _callbacks(folder, plan, done, display)
    trainer = StageTrainer(
        task=prepared.task,
        model=model,
        options=options,
        plan=plan,
        train_dataset=prepared.stages[index].train,
        collate=prepared.collator(index),
        tokenizer=prepared.processor,
        evaluate=prepared.evaluator(index),
        interrupted=lambda: bool(interrupt),
        progress=standing,
        callbacks=callbacks,
    )
    growth = prepared.recipe.stages[index].growth
    if growth is not None and checkpoint is None:
        given = prepared.recipe.model.get("checkpoint")
        before = newest_complete(folder.stage(index - 1)) if ledger else given and Path(given)
        report = grow_before_training(trainer, growth, before, folder.growth(index))
        if display is not None:
            display.announce(report.summary())
    # Trainer would train one step more when it resumes at the last one.
    if done < plan.max_steps:
        try:
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint is not None else None)
        except DivergenceError as error:
            diverged = {"stage": index, "status": "diverged", "steps": error.step, "reason": error.reason}
            write_rows(folder.ledger, [*ledger, diverged])
            raise
        finally:
            for callback in callbacks:
                callback.close()
        if trainer.state.global_step < plan.max_steps:
            return None
    score = _final_score(trainer, prepared, index)
    with publish(folder.model, replace=True) as temporary:
        trainer.save_model(str(temporary))
    return _ledger_row(trainer, plan, score, prepared, previous)


def _callbacks(folder: RunFolder, plan: StagePlan, done: int, display: ProgressDisplay | None) -> list[Observer]:
    """What is told about the stage."""
    callbacks: list[Observer] = [MetricsWriter(folder.metrics)]
    if TensorBoardWriter.is_available():
        callbacks.append(TensorBoardWriter(folder.tensorboard, plan.steps_before + done + 1))
    if display is not None:
        callbacks.append(display)
    return callbacks


def _final_score(trainer: StageTrainer, prepared: Preparation, index: int) -> Score:
    """The score on all held-out data in float32: what `gnomon evaluate` says of the saved model."""
    options, validation = prepared.recipe.stages[index].training, prepared.stages[index].validation
    read_all = options.evaluation_sequences is None or options.evaluation_sequences >= len(validation)
    if trainer.last_score is not None and read_all and options.precision == "float32":
        return trainer.last_score
    model = trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
    return prepared.evaluator(index, whole=True)(model)


def _ledger_row(
    trainer: StageTrainer,
    plan: StagePlan,
    score: Score,
    prepared: Preparation,
    previous: Mapping[str, Any],
) -> dict[str, Any]:
    """What the stage cost and gained, alone and with the stages before it."""
    fields = {**trainer.model.config.to_dict(), "architectures": [type(trainer.model).__name__]}
    counted = trainer.progress
    length = prepared.task.length(prepared.stages[plan.index].train)
    costs = {
        "steps": plan.max_steps,
        "tokens": counted.tokens,
        "flops": training_flops(fields, counted.tokens, length),
        "seconds": round(counted.seconds, 3),
    }
    return {
        "stage": plan.index,
        "status": "finished",
        **costs,
        "parameters": trainer.model.num_parameters(),
        "non_embedding_parameters": count_parameters(fields).non_embedding,
        "train_loss": counted.train_loss,
        **prepared.task.measured(score),
        "best_validation_loss": counted.best_loss,
        "best_step": counted.best_step,
        **prepared.stages[plan.index].counts,
        **{f"cumulative_{name}": previous.get(f"cumulative_{name}", 0) + cost for name, cost in costs.items()},
    }
