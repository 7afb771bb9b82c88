"""A run's folder: what lies where, how it begins, and what it takes to continue it."""

import os
import platform
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from gnomon.training.checkpoints import publish
from gnomon.training.options import Recipe
from gnomon.training.recipe import load_recipe, to_yaml
from gnomon.training.records import read_json, read_rows, write_json, write_rows, write_text

PACKAGES = ("gnomon", "torch", "transformers", "accelerate", "datasets", "tokenizers", "safetensors", "numpy")


@dataclass(frozen=True)
class RunFolder:
    """The places of a run.

    Attributes:
        root: The folder itself.
    """

    root: Path

    @property
    def recipe(self) -> Path:
        """The recipe with every default written out."""
        return self.root / "recipe.yaml"

    @property
    def environment(self) -> Path:
        """Versions, seed, command and platform, of the start and of every continuation."""
        return self.root / "environment.json"

    @property
    def metrics(self) -> Path:
        """Rows of losses and validation losses."""
        return self.root / "metrics.jsonl"

    @property
    def ledger(self) -> Path:
        """A row for every stage that has ended."""
        return self.root / "ledger.jsonl"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard's event files."""
        return self.root / "tensorboard"

    @property
    def figures(self) -> Path:
        """Loss curves."""
        return self.root / "figures"

    @property
    def model(self) -> Path:
        """The last model, with its tokenizer."""
        return self.root / "model"

    @property
    def best(self) -> Path:
        """The model with the lowest validation loss, with its tokenizer."""
        return self.root / "best"

    def stage(self, index: int) -> Path:
        """A stage's checkpoints."""
        return self.root / f"stage-{index}"

    def growth(self, index: int) -> Path:
        """What the growth before a stage changed."""
        return self.root / f"growth-{index}.json"

    def resume_command(self) -> str:
        """What continues this run, from any folder's shell."""
        root = shlex.quote(str(self.root))
        return f"gnomon train {shlex.quote(str(self.recipe))} --output {root} --resume"


def refuse_existing(output: Path) -> None:
    """Refuse to write over anything.

    Raises:
        FileExistsError: There is something of that name.
    """
    if os.path.lexists(output):
        raise FileExistsError(
            f"the output {output} exists; add --resume to continue the run in it, name another output, or remove it."
        )


def create(output: Path, recipe: Recipe) -> RunFolder:
    """Make a run's folder with its recipe and environment, whole or not at all.

    Raises:
        FileExistsError: There is something of that name.
    """
    refuse_existing(output)
    with publish(output) as temporary:
        folder = RunFolder(temporary)
        write_text(folder.recipe, to_yaml(recipe))
        write_json(folder.environment, {**describe_environment(recipe.seed), "continued": []})
        refuse_existing(output)
    return RunFolder(output)


def reopen(output: Path, recipe: Recipe) -> RunFolder:
    """Check that a run can be continued.

    Raises:
        FileNotFoundError: There is no run in the folder.
        ValueError: It was started from another recipe.
    """
    folder = RunFolder(output)
    if not folder.recipe.is_file():
        raise FileNotFoundError(
            f"there is no run to resume in {output} (recipe.yaml is missing); name the run's folder, or leave "
            "--resume out to start one."
        )
    started = load_recipe(folder.recipe).to_dict()
    difference = _first_difference(started, recipe.to_dict())
    if difference:
        raise ValueError(
            f"the run in {output} was started with {difference}; resume it with its own recipe "
            f"{folder.recipe}, or start another run in another folder."
        )
    return folder


def record_continuation(folder: RunFolder, seed: int) -> None:
    """Add this process to the run's environment."""
    environment = read_json(folder.environment)
    environment["continued"].append(describe_environment(seed))
    write_json(folder.environment, environment)


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Keep a second process out of a folder.

    Raises:
        FileExistsError: Another process is at work in it.
    """
    lock = FileLock(root / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise FileExistsError(f"another process is at work in {root}; wait for it, or name another output.") from None
    try:
        yield
    finally:
        lock.release()


def forget_metrics_after(folder: RunFolder, stage: int, step: int) -> None:
    """Drop the rows that steps after a checkpoint had written: those steps come again."""
    rows = read_rows(folder.metrics)
    write_rows(folder.metrics, [row for row in rows if (row["stage"], row["step"]) <= (stage, step)])


def describe_environment(seed: int) -> dict[str, Any]:
    """What the numbers of a run depend on besides its recipe."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "seed": seed,
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "processor": platform.machine(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
    }


def _version(package: str) -> str | None:
    """A package's version; None where it runs from a source tree that is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _first_difference(old: Any, new: Any, path: str = "") -> str | None:
    """The first place where two recipes differ, told as its old and its new value."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = [*old, *(key for key in new if key not in old)]
        pairs = [(f"{path}.{key}" if path else str(key), old.get(key), new.get(key)) for key in keys]
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = [(f"{path}.{index}", *pair) for index, pair in enumerate(zip(old, new, strict=True))]
    else:
        return None if old == new else f"{path} {old!r}, but is asked to go on with {new!r}"
    return next((found for pair in pairs if (found := _first_difference(pair[1], pair[2], pair[0]))), None)
