"""Checkpoints that appear whole or not at all, and the newest one that can be continued from."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from gnomon.training.records import read_json, write_json

PROGRESS_FILE = "progress.json"
"""Written last: where the stage stood, and the size of every other file."""

_NAME = re.compile(r"checkpoint-(\d+)")


@contextmanager
def readable_weights(folder: Path) -> Iterator[None]:
    """Tell a user, while transformers loads the weights of a folder, what is wrong with them.

    Raises:
        ValueError: They are damaged, or of other shapes than the configuration says.
    """
    try:
        yield
    except SafetensorError as error:
        raise ValueError(f"the weights of {folder} are damaged ({error}): name another checkpoint.") from error
    except RuntimeError as error:
        if "ignore_mismatched_sizes" not in str(error):
            raise
        raise ValueError(
            f"the weights of {folder} have other shapes than its config.json says: mend it, or name another checkpoint."
        ) from error


@contextmanager
def publish(target: Path, *, replace: bool = False) -> Iterator[Path]:
    """Give a temporary folder to write into; when the block ends well, flush it and move it to its place.

    Args:
        target: Where the folder will be. A process that dies on the way leaves it as it was.
        replace: Whether an older folder there makes way.

    Yields:
        The folder to write into.
    """
    temporary = target.with_name(f".{target.name}.{os.getpid()}.partial")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        _flush(temporary)
        if replace and target.exists():
            older = target.with_name(f".{target.name}.replaced")
            shutil.rmtree(older, ignore_errors=True)
            target.rename(older)
            temporary.rename(target)
            shutil.rmtree(older)
        else:
            temporary.rename(target)
        _flush_entry(target.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def clear_leftovers(folder: Path) -> None:
    """Remove what a killed process was writing, and put back what it was about to replace."""
    for leftover in folder.glob(".*.replaced"):
        original = folder / leftover.name.removeprefix(".").removesuffix(".replaced")
        if original.exists():
            shutil.rmtree(leftover)
        else:
            leftover.rename(original)
    for leftover in folder.glob(".*.partial"):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


def checkpoints(folder: Path) -> list[Path]:
    """A stage's checkpoints by step, the newest last, damaged ones among them."""
    found = [(int(match[1]), path) for path in folder.glob("checkpoint-*") if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def newest_complete(folder: Path) -> Path | None:
    """The checkpoint to continue from, or None."""
    return next((path for path in reversed(checkpoints(folder)) if is_complete(path)), None)


def step_of(checkpoint: Path) -> int:
    """How many steps a checkpoint's stage had done."""
    return int(checkpoint.name.removeprefix("checkpoint-"))


def seal(folder: Path, progress: dict[str, object]) -> None:
    """Write the progress and the size of every file: the mark of a complete checkpoint."""
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.is_file()}
    write_json(folder / PROGRESS_FILE, {"progress": progress, "files": sizes})


def read_progress(checkpoint: Path) -> dict[str, object]:
    """The progress that `seal` wrote."""
    progress: dict[str, object] = read_json(checkpoint / PROGRESS_FILE)["progress"]
    return progress


def is_complete(checkpoint: Path) -> bool:
    """Whether every file is there at its full size."""
    try:
        sizes = read_json(checkpoint / PROGRESS_FILE)["files"]
        return all((checkpoint / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def rotate(folder: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints."""
    for path in checkpoints(folder)[:-keep]:
        shutil.rmtree(path)


def _flush(folder: Path) -> None:
    """Make the files and their names survive a loss of power."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    _flush_entry(folder)


def _flush_entry(folder: Path) -> None:
    """Flush a folder's own entries, where the system can."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
