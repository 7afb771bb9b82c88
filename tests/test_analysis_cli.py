"""`gnomon analyze` as a user runs it."""

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gnomon.cli import main

TINY = ("-o", "hidden_size=16", "-o", "num_attention_heads=2", "--batches", "2", "--sequence-length", "8")
Analyze = Callable[..., tuple[int, str, str]]


@pytest.fixture
def analyze(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Analyze]:
    """Run the command in this process, in an empty folder: its exit code, output and errors."""
    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: Any) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["gnomon", "analyze", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main.main()
        shown = capsys.readouterr()
        return ended.value.code or 0, shown.out, shown.err

    yield run
    signal.signal(signal.SIGTERM, handler)


def test_a_study_writes_numbers_table_and_figures_in_one_folder(analyze: Analyze, tmp_path: Path) -> None:
    """The folder has a row for each placement and depth, both figures twice, and the JSON says the same."""
    code, out, err = analyze(
        "pattention", *TINY, "--placements", "pre,sub", "--depths", "1,3", "--output", "out", "--json"
    )
    assert code == 0, err
    shown = json.loads(out)
    rows = [json.loads(line) for line in (tmp_path / "out" / "updates.jsonl").read_text().splitlines()]
    assert shown["rows"] == rows
    assert [(row["placement"], row["depth"]) for row in rows] == [("pre", 1), ("pre", 3), ("sub", 1), ("sub", 3)]
    assert all(row["update"] > 0 and len(row["gradients"]) == row["depth"] for row in rows)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"updates.jsonl", "table.md", "updates.svg", "updates.png", "signals.svg", "signals.png"}


def test_a_trained_checkpoint_is_measured_as_it_stands(analyze: Analyze, tmp_path: Path) -> None:
    """A run's model gives one row of its own placement and depth; changing its depth on the way is refused."""
    from gnomon.training.recipe import load_recipe
    from gnomon.training.stages import run
    from tiny_runs import tiny_recipe, write_page

    run(load_recipe(tiny_recipe(write_page(tmp_path))), tmp_path / "run", progress=False)
    code, out, err = analyze("run/model", "--sequence-length", "8", "--batches", "2", "--json")
    assert code == 0, err
    (row,) = json.loads(out)["rows"]
    assert row["placement"] == "pre"
    assert row["depth"] == len(row["activations"])
    code, _, err = analyze("run/model", "--depths", "3")
    assert code == 2
    assert "measured as it stands" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["linear", "--depths", "6,x"], "depths are whole numbers of at least 1, such as 6,12,24; got '6,x'"),
        (["linear", "--gain", "-1"], "gain must be own, gamma, or a number above 0; got '-1'"),
        (["linear", *TINY, "--placements", "middle"], "norm_placement must be one of"),
        (["linear", "-o", "hidden_sizes=3"], "hidden_sizes is no configuration field"),
        (["linear", *TINY, "--depths", "1", "--learning-rate", "0"], "learning_rate must be above 0; got 0"),
        (["nowhere"], "there is no checkpoint folder nowhere"),
        (["linear", "--output", "."], "the output . exists"),
    ],
)
def test_what_cannot_be_analyzed_gets_one_sentence(
    arguments: list[str], message: str, analyze: Analyze, tmp_path: Path
) -> None:
    """Exit code 2, one line on stderr with the rule, and nothing written."""
    code, _, err = analyze(*arguments)
    assert code == 2
    assert message in err
    assert len(err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
