"""Folders that appear whole or not at all, rows that are written once, and signals that wait for a step's end."""

import os
import signal
import threading
from pathlib import Path

import pytest

from gnomon.training.checkpoints import (
    checkpoints,
    clear_leftovers,
    is_complete,
    newest_complete,
    publish,
    read_progress,
    rotate,
    seal,
    step_of,
)
from gnomon.training.folder import locked
from gnomon.training.interrupts import catch_interrupts
from gnomon.training.records import append_row, read_rows, write_rows


def make_checkpoint(stage: Path, step: int) -> Path:
    """A complete checkpoint of two files."""
    folder = stage / f"checkpoint-{step}"
    with publish(folder) as temporary:
        (temporary / "model.safetensors").write_bytes(b"weights" * step)
        (temporary / "optimizer.pt").write_bytes(b"moments")
        seal(temporary, {"tokens": step})
    return folder


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    """While it is written nothing is at its place, and an error leaves neither it nor its temporary folder."""
    target = tmp_path / "outer" / "model"
    with publish(target) as temporary:
        (temporary / "a").write_text("1")
        assert not target.exists()
    assert (target / "a").read_text() == "1"

    def fail() -> None:
        with publish(target, replace=True) as temporary:
            (temporary / "a").write_text("2")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert (target / "a").read_text() == "1"
    assert [path.name for path in target.parent.iterdir()] == ["model"]


def test_replacing_needs_to_be_asked_for(tmp_path: Path) -> None:
    """A folder that exists makes way only with `replace`, and then leaves nothing of its files."""
    target = tmp_path / "best"
    with publish(target) as temporary:
        (temporary / "old").write_text("old")
    with pytest.raises(OSError, match=r"not empty|exists"), publish(target) as temporary:
        (temporary / "new").write_text("new")
    assert (target / "old").exists()
    with publish(target, replace=True) as temporary:
        (temporary / "new").write_text("new")
    assert [path.name for path in target.iterdir()] == ["new"]


def test_what_a_killed_process_was_replacing_comes_back(tmp_path: Path) -> None:
    """Killed between the two renames, the old folder returns; killed after them, it goes; half-written ones go."""
    (tmp_path / ".best.replaced").mkdir()
    (tmp_path / ".best.replaced" / "a").write_text("old")
    (tmp_path / ".best.77.partial").mkdir()
    (tmp_path / ".ledger.jsonl.partial").write_text("{")
    (tmp_path / ".model.replaced").mkdir()
    (tmp_path / "model").mkdir()
    clear_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best", "model"]
    assert (tmp_path / "best" / "a").read_text() == "old"


def test_the_newest_complete_checkpoint_is_taken(tmp_path: Path) -> None:
    """A newer one that lacks a file, has a shortened one or was never sealed is passed over; 10 is newer than 9."""
    for step in (9, 10, 11, 12, 13):
        make_checkpoint(tmp_path, step)
    assert [step_of(path) for path in checkpoints(tmp_path)] == [9, 10, 11, 12, 13]
    assert newest_complete(tmp_path) == tmp_path / "checkpoint-13"
    (tmp_path / "checkpoint-13" / "progress.json").unlink()
    (tmp_path / "checkpoint-12" / "optimizer.pt").unlink()
    weights = tmp_path / "checkpoint-11" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert not is_complete(tmp_path / "checkpoint-11")
    assert newest_complete(tmp_path) == tmp_path / "checkpoint-10"
    assert read_progress(tmp_path / "checkpoint-10") == {"tokens": 10}
    assert newest_complete(tmp_path / "nowhere") is None


def test_old_checkpoints_make_room(tmp_path: Path) -> None:
    """The newest by step stay, not by name."""
    for step in (2, 9, 10):
        make_checkpoint(tmp_path, step)
    rotate(tmp_path, 2)
    assert [path.name for path in checkpoints(tmp_path)] == ["checkpoint-9", "checkpoint-10"]


def test_an_unfinished_last_line_is_no_row(tmp_path: Path) -> None:
    """A process killed while writing costs its last row and no other; a broken row in the middle is told."""
    path = tmp_path / "rows.jsonl"
    assert read_rows(path) == []
    append_row(path, {"a": 1})
    append_row(path, {"a": 2})
    with path.open("a") as file:
        file.write('{"a": ')
    assert read_rows(path) == [{"a": 1}, {"a": 2}]
    write_rows(path, read_rows(path))
    append_row(path, {"a": 3})
    assert read_rows(path) == [{"a": 1}, {"a": 2}, {"a": 3}]
    path.write_text('{"a": 1}\n{"a"\n{"a": 3}\n')
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 2, is not JSON"):
        read_rows(path)
    path.write_text('{"a": 1}\n5\n')
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 2, holds 5, which is no JSON object"):
        read_rows(path)


def test_a_folder_has_one_process_at_work(tmp_path: Path) -> None:
    """A second holder is refused with the folder's name, and may come when the first has left."""
    with locked(tmp_path), pytest.raises(FileExistsError, match="another process is at work"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_remembered_and_the_second_acts(number: signal.Signals) -> None:
    """One signal waits for the step's end; another does what it would have done outside, and later all is as before."""
    acted = []
    outside = signal.signal(number, lambda *_: acted.append(number))
    try:
        with catch_interrupts() as interrupt:
            assert not interrupt
            os.kill(os.getpid(), number)
            assert interrupt.signal == number
            assert not acted
            os.kill(os.getpid(), number)
            assert acted == [number]
        os.kill(os.getpid(), number)
        assert acted == [number, number]
    finally:
        signal.signal(number, outside)


def test_another_thread_catches_nothing() -> None:
    """Outside the main thread, where Python allows no handlers, training still runs."""
    seen: list[bool] = []

    def work() -> None:
        with catch_interrupts() as interrupt:
            seen.append(bool(interrupt))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]
