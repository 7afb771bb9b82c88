"""The demo's training step through gnomon's Trainer against a bare PyTorch loop over the same model and data.

Both loops start from the same weights, see the same batches, and take turns in one process: a callback stops the
Trainer's clock after every so many steps, lets the bare loop make as many, and starts the clock again. What is timed of
the Trainer is everything between two steps' ends, its logging, TensorBoard and progress bar included. Start-up,
evaluation and saving are outside: the turns begin after the first steps, and evaluation and saving are switched off.
"""

import copy
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn
from torch.utils.data import DataLoader
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from _common import Report, Spread, conditions, options, ratio
from gnomon.training.callbacks import MetricsWriter, ProgressDisplay, TensorBoardWriter
from gnomon.training.optimization import EpochSampler, build_schedule, decayed_parameters
from gnomon.training.options import TrainingOptions
from gnomon.training.preparation import Preparation, prepare
from gnomon.training.progress import Progress, StagePlan
from gnomon.training.recipe import load_recipe
from gnomon.training.trainer import StageTrainer

TRAINER, BARE = "Trainer", "bare loop"
TARGET = 1.10
WARMUP_TURNS = 2
LOSS_TOLERANCE = 1e-4
"""Largest difference of the two loops' mean losses over a turn: rounding alone, grown by the steps before."""


class BareLoop:
    """What one would write by hand: forward, backward, clipping, AdamW, schedule.

    Args:
        prepared: the recipe's model and data; the model is copied.
        max_steps: of the schedule.
    """

    def __init__(self, prepared: Preparation, max_steps: int) -> None:
        self.prepared, self.options = prepared, prepared.recipe.stages[0].training
        self.model = copy.deepcopy(prepared.model).train()
        self.model.config.use_cache = False
        self.optimizer = build_optimizer(self.model, self.options)
        self.schedule = build_schedule(self.optimizer, self.options, max_steps)
        self.batches = self._batches()

    def turn(self, steps: int) -> float:
        """Make some steps; return their mean loss."""
        total = 0.0
        for _ in range(steps):
            loss = self.model(**next(self.batches)).loss
            loss.backward()
            if self.options.max_grad_norm is not None:
                nn.utils.clip_grad_norm_(self.model.parameters(), self.options.max_grad_norm)
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()
            total += loss.item()
        return total / steps

    def _batches(self) -> Iterator[dict[str, torch.Tensor]]:
        data = self.prepared.stages[0].train
        sampler = EpochSampler(len(data), self.prepared.recipe.seed, 0)
        loader = DataLoader(data, self.options.batch_size, sampler=sampler, collate_fn=self.prepared.collator(0))
        while True:
            yield from loader
            sampler.set_epoch(sampler.epoch + 1)


class TakeTurns(TrainerCallback):
    """Lets the bare loop run after every turn of the Trainer, and keeps the time of both.

    Args:
        bare: makes so many steps and returns their mean loss.
        steps: of one turn.
        rounds: how many turns are timed.
        pause: called before the bare loop's turn; what it returns is called after it.
    """

    def __init__(
        self, bare: Callable[[int], float], *, steps: int, rounds: int, pause: Callable[[], Callable[[], None]]
    ) -> None:
        self.bare, self.steps, self.rounds, self.pause = bare, steps, rounds, pause
        self.seconds: dict[str, list[float]] = {TRAINER: [], BARE: []}
        self.losses: dict[str, list[float]] = {TRAINER: [], BARE: []}
        self.began = 0.0

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """Start the clock."""
        self.began = time.perf_counter()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """At the end of the Trainer's turn, give the bare loop its own."""
        if state.global_step % self.steps:
            return
        trainer_seconds = time.perf_counter() - self.began
        resume = self.pause()
        began = time.perf_counter()
        loss = self.bare(self.steps)
        bare_seconds = time.perf_counter() - began
        self.losses[BARE].append(loss)
        if state.global_step > WARMUP_TURNS * self.steps:
            self.seconds[TRAINER].append(trainer_seconds)
            self.seconds[BARE].append(bare_seconds)
        control.should_training_stop = len(self.seconds[BARE]) == self.rounds
        resume()
        self.began = time.perf_counter()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any],
        **kwargs: Any,
    ) -> None:
        """Keep the mean loss of the Trainer's turn, which its row of metrics has."""
        if "loss" in logs:
            self.losses[TRAINER].append(logs["loss"])


def build_optimizer(model: nn.Module, training: TrainingOptions) -> torch.optim.AdamW:
    """AdamW as the recipe describes it, in the fused form that transformers' Trainer takes by default."""
    decayed = set(decayed_parameters(model))
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for name, parameter in model.named_parameters():
        groups[name in decayed].append(parameter)
    return torch.optim.AdamW(
        [
            {"params": groups[True], "weight_decay": training.weight_decay},
            {"params": groups[False], "weight_decay": 0.0},
        ],
        lr=training.learning_rate,
        betas=(training.beta1, training.beta2),
        eps=training.epsilon,
        fused=True,
    )


def run_both(prepared: Preparation, *, rounds: int) -> TakeTurns:
    """Train both models from the same weights, turn by turn, and check that they learn the same.

    Raises:
        SystemExit: the losses differ, so that a comparison of times would mean nothing.
    """
    training = prepared.recipe.stages[0].training
    max_steps = prepared.max_steps(0)
    with tempfile.TemporaryDirectory() as name, Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        folder = Path(name)
        display = ProgressDisplay("stage 0", Console(file=nowhere, force_terminal=True))
        turns = TakeTurns(
            BareLoop(prepared, max_steps).turn,
            steps=training.log_every,
            rounds=rounds,
            pause=partial(_stop_redrawing, display),
        )
        observers = [MetricsWriter(folder / "metrics.jsonl"), display]
        if TensorBoardWriter.is_available():
            observers.append(TensorBoardWriter(folder / "tensorboard", 1))
        trainer = StageTrainer(
            task=prepared.task,
            model=prepared.model,
            options=training,
            plan=StagePlan(0, max_steps, prepared.recipe.seed, folder / "stage-0", folder / "best"),
            train_dataset=prepared.stages[0].train,
            collate=prepared.collator(0),
            tokenizer=prepared.processor,
            evaluate=_refuse_to_evaluate,
            interrupted=lambda: False,
            progress=Progress(),
            callbacks=[*observers, turns],
        )
        try:
            trainer.train()
        finally:
            for observer in observers:
                observer.close()
    check_losses(turns.losses)
    return turns


def check_losses(losses: dict[str, list[float]]) -> float:
    """Compare the mean losses of every turn that both have logged; return the largest difference.

    Raises:
        SystemExit: it is too large.
    """
    logged = min(len(found) for found in losses.values())
    differences = [abs(losses[TRAINER][turn] - losses[BARE][turn]) for turn in range(logged)]
    if not logged or not all(difference <= LOSS_TOLERANCE for difference in differences):
        raise SystemExit(
            f"no times: both loops must learn the same, their losses within {LOSS_TOLERANCE:g} in every turn; "
            f"they differ by {max(differences, default=float('nan')):.3g}, so make their model, data and optimizer "
            "equal"
        )
    return max(differences)


def main(arguments: list[str] | None = None) -> Report:
    """Measure, print the table and write it."""
    parser = options(__doc__.splitlines()[0], rounds=20)
    parser.add_argument("--recipe", default="demo", help="a packaged recipe or a file; its first stage is run")
    parser.add_argument("-o", "--override", action="append", default=[], help="a change dotted.key=value")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(chosen.threads)
    recipe = load_recipe(chosen.recipe, chosen.override)
    steps = recipe.stages[0].training.log_every
    needed = (chosen.rounds + WARMUP_TURNS) * steps + 1
    at_least = max(needed, recipe.stages[0].training.max_steps or 0)
    without = [f"stages.0.training.{key}=null" for key in ("evaluate_every", "save_every", "epochs")]
    recipe = load_recipe(recipe, [*without, f"stages.0.training.max_steps={at_least}"])
    prepared = prepare(recipe)
    turns = run_both(prepared, rounds=chosen.rounds)
    overhead = ratio(turns.seconds, TRAINER, BARE)
    report = Report(
        title="Overhead of the Trainer",
        about=[
            "Ratio: time of a step through gnomon's Trainer over that of a bare PyTorch loop over the same model, data "
            f"and optimizer, median (quartiles) of {chosen.rounds} rounds of {steps} steps each; the target is at most "
            f"{TARGET:.2f}.",
            "Included: loading batches, forward, backward, clipping, AdamW, schedule, and on the Trainer's side "
            "metrics, TensorBoard and a progress bar. Excluded: start-up, evaluation, saving.",
            f"The mean losses of both loops agreed within {LOSS_TOLERANCE:g} in every round.",
        ],
        columns=["recipe", "Trainer (ms)", "bare loop (ms)", "ratio"],
    )
    milliseconds = {name: 1e3 * Spread.of(found).median / steps for name, found in turns.seconds.items()}
    report.add(
        [chosen.recipe, f"{milliseconds[TRAINER]:.0f}", f"{milliseconds[BARE]:.0f}", overhead],
        recipe=recipe.to_dict(),
        steps_per_round=steps,
        target=TARGET,
        ratio=vars(overhead),
        largest_loss_difference=check_losses(turns.losses),
        seconds=turns.seconds,
    )
    report.show()
    report.write(chosen.output, "trainer_overhead", conditions(__file__))
    return report


def _stop_redrawing(display: ProgressDisplay) -> Callable[[], None]:
    """Keep the bar's own thread from running in the bare loop's turn; return what sets it going again."""
    bar = display.bar
    if bar is None:
        return lambda: None
    bar.stop()
    return bar.start


def _refuse_to_evaluate(model: nn.Module) -> Any:
    raise AssertionError("evaluation is no part of what is measured")


if __name__ == "__main__":
    main(sys.argv[1:])
