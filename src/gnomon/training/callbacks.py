"""What a run shows and writes while it trains: rows of metrics, TensorBoard, and a progress bar."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.utils import logging

from gnomon.training.records import append_row

PLAIN_SECONDS = 5.0
"""Without a terminal, at least so many seconds lie between two lines of progress."""

NOT_PLOTTED = {"stage", "step", "total_step", "tokens", "seconds"}


@contextmanager
def without_bars() -> Iterator[None]:
    """Keep transformers' own progress bars, one for every file saved or loaded, out of the display."""
    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()


class Observer(TrainerCallback):
    """A callback that can be closed, however training has ended."""

    def close(self) -> None:
        """Let go of what is open."""


class MetricsWriter(Observer):
    """Adds every row of metrics to a JSONL file.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any],
        **kwargs: Any,
    ) -> None:
        """Write a row."""
        append_row(self.path, logs)


class TensorBoardWriter(Observer):
    """Writes every number of a row for TensorBoard, over the steps of the whole run.

    Args:
        folder: Where the event files go.
        first_step: The first step to come; what an earlier process wrote from there on is struck out.
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        self.folder, self.first_step = folder, first_step
        self.writer: Any = None

    @staticmethod
    def is_available() -> bool:
        """Whether the package tensorboard is installed."""
        return find_spec("tensorboard") is not None

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """Open an event file."""
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(self.folder), purge_step=self.first_step)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any],
        **kwargs: Any,
    ) -> None:
        """Write a row."""
        for name, value in logs.items():
            if name not in NOT_PLOTTED:
                self.writer.add_scalar(name, value, logs["total_step"])

    def close(self) -> None:
        """Close the event file."""
        if self.writer is not None:
            self.writer.close()


class ProgressDisplay(Observer):
    """A bar with loss, speed and time left; plain lines where there is no terminal.

    Args:
        title: What is running.
        unit: What is counted a second: tokens, images, frames.
        console: Where to show it; standard error if not given, so that standard output stays free.
    """

    def __init__(self, title: str, unit: str = "tokens", console: Console | None = None) -> None:
        self.title, self.unit = title, unit
        self.console = console or Console(stderr=True, highlight=False)
        self.shown: dict[str, str] = {}
        self.bar: Progress | None = None
        self.started = self.last_line = 0.0
        self.first_step = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Show the bar."""
        self.started, self.first_step = time.monotonic(), state.global_step
        if self.console.is_terminal:
            self.bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[numbers]}"),
                console=self.console,
            )
            self.task = self.bar.add_task(self.title, total=state.max_steps, completed=state.global_step, numbers="")
            self.bar.start()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Move the bar."""
        if self.bar is not None:
            self.bar.update(self.task, completed=state.global_step, numbers=self._numbers(state))

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any],
        **kwargs: Any,
    ) -> None:
        """Take in new numbers; without a terminal, write a line now and then."""
        if "loss" in logs:
            self.shown["loss"] = f"loss {logs['loss']:.4f}"
            self.shown["speed"] = f"{logs['tokens_per_second']:,.0f} {self.unit}/s"
        else:
            self.shown["validation"] = f"validation {logs['validation_loss']:.4f}"
        if self.bar is not None:
            self.bar.update(self.task, numbers=self._numbers(state))
            return
        now = time.monotonic()
        if "validation_loss" in logs or now - self.last_line >= PLAIN_SECONDS or state.global_step >= state.max_steps:
            self.last_line = now
            self.console.print(
                f"{self.title}  {state.global_step}/{state.max_steps}  {self._numbers(state)}", soft_wrap=True
            )

    def announce(self, text: str) -> None:
        """Write a line about the stage before its first step."""
        self.console.print(f"{self.title}  {text}", soft_wrap=True)

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def _numbers(self, state: TrainerState) -> str:
        """Loss, validation loss, speed and time left, as far as they are known."""
        known = [self.shown[name] for name in ("loss", "validation", "speed") if name in self.shown]
        done = state.global_step - self.first_step
        if done > 0:
            left = (time.monotonic() - self.started) / done * (state.max_steps - state.global_step)
            known.append(f"{format_seconds(left)} left")
        return "  ".join(known)


def format_seconds(seconds: float) -> str:
    """A duration as hours, minutes and seconds.

    >>> format_seconds(75), format_seconds(3675)
    ('1:15', '1:01:15')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
