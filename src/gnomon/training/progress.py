"""Where a stage stands: what it is given, what it has counted, and how it may fail."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class DivergenceError(RuntimeError):
    """Training has left the range in which its loss means anything.

    Args:
        stage: Number of the stage.
        step: The step at which it was noticed.
        reason: What was seen.
    """

    def __init__(self, stage: int, step: int, reason: str) -> None:
        self.stage, self.step, self.reason = stage, step, reason
        super().__init__(
            f"training diverged in stage {stage} at step {step}: {reason}; lower learning_rate or raise warmup_steps."
        )


@dataclass
class Progress:
    """Where a stage stands beyond what Trainer saves; part of every checkpoint.

    Attributes:
        tokens: Read by the model, repeats included and padding not.
        seconds: Spent on training steps, without evaluations and checkpoints.
        window_loss: Sum of the losses since the last row of metrics.
        window_steps: Their number.
        train_loss: Mean loss of the last row.
        first_loss: Loss of the first step.
        steps_above_start: Steps in a row whose loss was above the start.
        best_loss: Lowest validation loss so far, of the model in best/.
        best_step: Its step.
        growth: What outlasts the growth before the stage, as `GrowthState.to_dict` gives it.
    """

    tokens: int = 0
    seconds: float = 0.0
    window_loss: float = 0.0
    window_steps: int = 0
    train_loss: float | None = None
    first_loss: float | None = None
    steps_above_start: int = 0
    best_loss: float | None = None
    best_step: int | None = None
    growth: dict[str, Any] | None = None


@dataclass(frozen=True)
class StagePlan:
    """What a stage is given besides its recipe.

    Attributes:
        index: Number of the stage, from 0.
        max_steps: Its steps.
        seed: The recipe's.
        folder: Where its checkpoints go.
        best_folder: Where its best model goes.
        steps_before: Steps of the stages before it.
        tokens_before: Their tokens.
        seconds_before: Their seconds.
        schedule_before: Steps of the stages before it that share its schedule.
        schedule_steps: Steps of all stages that share it; None for its own alone.
    """

    index: int
    max_steps: int
    seed: int
    folder: Path
    best_folder: Path
    steps_before: int = 0
    tokens_before: int = 0
    seconds_before: float = 0.0
    schedule_before: int = 0
    schedule_steps: int | None = None


class Stopwatch:
    """Counts the seconds during which it runs."""

    def __init__(self, seconds: float) -> None:
        self._counted = seconds
        self._started: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds counted up to now."""
        return self._counted + (0.0 if self._started is None else time.perf_counter() - self._started)

    def start(self) -> None:
        """Run."""
        self._started = time.perf_counter()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stand still inside the block."""
        self._counted, self._started = self.seconds, None
        yield
        self.start()
