"""Runs that are killed at a chosen place and continued, each process a real one; called by test_training_resume.

Usage: resume_driver.py FOLDER, which must hold page.txt. Every scenario is trained in processes of its own, forked
from this one before it has done any work of torch, and leaves its run in FOLDER/NAME.
"""

import gc
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.utils.tensorboard  # noqa: F401 - here once, and not in every child

from gnomon.training import callbacks, stages, trainer
from gnomon.training.recipe import load_recipe
from tiny_runs import tiny_recipe

# 23 steps of a first stage and 8 of a second; an epoch has three steps, so that checkpoints fall on its every part.
TRAINING = {
    "max_steps": 23,
    "warmup_steps": 5,
    "batch_size": 3,
    "gradient_accumulation_steps": 3,
    "evaluate_every": 8,
    "save_every": 5,
    "log_every": 2,
}
MODEL = {"hidden_dropout": 0.2, "attention_dropout": 0.1}


def recipe(folder: Path, **training: Any) -> Any:
    """The recipe of every scenario: dropout, shuffling, accumulation, two stages, and growth between them."""
    written = tiny_recipe(folder / "page.txt", model=MODEL, **{**TRAINING, **training})
    growth = {"num_attention_tokens": 12, "num_feed_forward_tokens": 36, "score_scale": "share", "share_every": 3}
    growth |= {"old_rate": 0.5, "noise": 0.01}
    written["stages"].append({"growth": growth, "training": {"max_steps": 8, "learning_rate": 0.003}})
    return load_recipe(written)


def die(number: int = signal.SIGKILL) -> None:
    """Send this process a signal."""
    os.kill(os.getpid(), number)


def at_row(total_step: int, number: int = signal.SIGKILL) -> Callable[[], None]:
    """Right after a row of metrics was written."""

    def arm() -> None:
        write = callbacks.MetricsWriter.on_log

        def on_log(self: Any, args: Any, state: Any, control: Any, logs: Any, **more: Any) -> None:
            write(self, args, state, control, logs, **more)
            if logs["total_step"] == total_step and "loss" in logs:
                die(number)

        callbacks.MetricsWriter.on_log = on_log

    return arm


def at_pass(count: int) -> Callable[[], None]:
    """In the middle of a step, between two of its forward passes."""

    def arm() -> None:
        step, passes = trainer.StageTrainer.training_step, iter(range(1, 10**6))

        def training_step(self: Any, *args: Any, **kwargs: Any) -> Any:
            if next(passes) == count:
                die()
            return step(self, *args, **kwargs)

        trainer.StageTrainer.training_step = training_step

    return arm


def at_seal(step: int) -> Callable[[], None]:
    """While a checkpoint is written: every file is there but the last."""

    def arm() -> None:
        seal = trainer.seal

        def killing_seal(folder: Path, progress: Any) -> None:
            if f"checkpoint-{step}." in folder.name:
                die()
            seal(folder, progress)

        trainer.seal = killing_seal

    return arm


def at_ledger() -> None:
    """After the last checkpoint of the first stage, before its row."""
    stages._ledger_row = lambda *args: die()


SCENARIOS: dict[str, list[Callable[[], None]]] = {
    "before the first checkpoint": [at_row(4)],
    "between checkpoints in mid-epoch": [at_row(14)],
    "between two passes of a step": [at_pass(3 * 16 + 2)],
    "while a checkpoint is written": [at_seal(15)],
    "after the last checkpoint of a stage": [at_ledger],
    "in the second stage": [at_row(29)],
    "four times": [at_row(8), at_seal(15), at_row(23), at_seal(8)],
    "by SIGINT": [at_row(10, signal.SIGINT)],
    "by SIGTERM, in the last step of a stage": [at_row(23, signal.SIGTERM)],
}
SIGNALLED = {"by SIGINT": signal.SIGINT, "by SIGTERM, in the last step of a stage": signal.SIGTERM}


def train(folder: Path, name: str, arm: Callable[[], None] | None = None, **training: Any) -> int:
    """Train in a process of its own, from where the run stands; return how that process ended."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    try:
        if arm is not None:
            arm()
        output = folder / name
        result = stages.run(recipe(folder, **training), output, resume=output.exists(), progress=False)
        os._exit(0 if result.interrupted is None else 100 + result.interrupted)
    except BaseException as error:
        print(f"{name}: {error!r}", file=sys.stderr)
        os._exit(1)


def expect(what: str, status: int, wanted: int) -> None:
    """End with a message when a process has ended in another way than it should."""
    if status != wanted:
        sys.exit(f"{what}: the process ended with status {status}, not {wanted}")


def main(folder: Path) -> None:
    """Run all scenarios."""
    gc.freeze()  # what is imported need not be searched in every child
    expect("unbroken", train(folder, "unbroken"), 0)
    expect("with workers", train(folder, "with workers", workers=2), 0)
    for name, places in SCENARIOS.items():
        for place in places:
            ended = train(folder, name, place)
            expect(name, ended, (100 + SIGNALLED[name]) << 8 if name in SIGNALLED else signal.SIGKILL)
        expect(f"{name}, continued", train(folder, name), 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
