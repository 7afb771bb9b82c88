"""Tables: means over seeds, diverged runs counted, and cells that a reader can compare."""

import io

import pytest
from rich.console import Console

from gnomon.report.tables import ledger_cells, summarize, sweep_cells, to_csv, to_markdown, to_rich
from test_report_figures import LEDGER, swept


def test_a_setting_is_summarized_over_its_seeds() -> None:
    """Mean, lowest and highest come from the seeds that finished; those that diverged are counted beside them."""
    summaries = summarize(LEDGER)
    assert len(summaries) == 6
    first, last = summaries[0], summaries[-1]
    assert (first["seeds"], first["diverged"]) == (2, 0)
    assert first["validation_loss"] == pytest.approx(0.06)
    assert first["spread"] == "0.0100 to 0.1100"
    assert (last["seeds"], last["diverged"], last["validation_loss"]) == (0, 2, None)


def test_cells_line_up_and_missing_ones_are_dashes() -> None:
    """Every line has a cell a heading, whichever settings it has."""
    headings, cells = sweep_cells([*LEDGER, swept({"variant": "plain"}, 0, 1.25)])
    assert headings[:3] == ["learning_rate", "preset", "variant"]
    assert {len(line) for line in cells} == {len(headings)}
    assert cells[-1][:3] == ["-", "-", "plain"]
    assert "1.2500" in cells[-1]
    headings, cells = ledger_cells([{"stage": 0, "status": "diverged", "steps": 1234}])
    assert cells[0][:3] == ["0", "1,234", "-"]
    assert "validation loss (nats/token)" in headings


def test_tasks_without_tokens_have_their_own_measures_and_no_nats_a_token() -> None:
    """Of speech the error rates, of images with texts the recall; what is counted are inputs."""
    row = {"stage": 0, "tokens": 8, "train_loss": 1.0, "validation_loss": 2.0}
    headings, cells = ledger_cells([{**row, "character_error_rate": 0.25, "word_error_rate": 0.5}])
    found = dict(zip(headings, cells[0], strict=True))
    assert (found["inputs"], found["validation loss"], found["character error rate"]) == ("8", "2.0000", "0.2500")
    assert not {"perplexity", "bits per byte"} & set(headings)
    assert "validation loss (nats/token)" in ledger_cells([{**row, "perplexity": 7.4}])[0]


def test_markdown_keeps_its_columns_whatever_a_cell_holds() -> None:
    """A bar inside a cell is escaped, so that every line has the same number of columns."""
    table = to_markdown(["name", "loss"], [["a|b", "1.0"]])
    assert table.splitlines() == ["| name | loss |", "|---|---|", "| a\\|b | 1.0 |"]


def test_csv_holds_full_precision_and_every_run() -> None:
    """The loss survives to its last digit, and a diverged run has its row."""
    lines = to_csv([swept({"a": 1}, 0, 1 / 3), swept({"a": 2}, 0, None)]).splitlines()
    assert str(1 / 3) in lines[1]
    assert "diverged" in lines[2]


def test_the_terminal_shows_every_cell() -> None:
    """A table fits a terminal without losing a number."""
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(to_rich("Sweep", *sweep_cells(LEDGER)))
    assert "0.0600" in console.export_text()
