"""`gnomon report`: what runs cost and gained, beside each other."""

import re
from pathlib import Path
from typing import Annotated

import typer

from gnomon.cli.outputs import print_cells, print_json, print_table, refuse_existing


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs that gnomon train has made.")],
    output: Annotated[
        Path | None, typer.Option(help="A new folder for cost.svg, cost.png and cost.md; the table alone if left out.")
    ] = None,
    scratch: Annotated[
        Path | None, typer.Option(help="The run that the others are to reach, of the largest size from scratch.")
    ] = None,
    floor: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=LOSS", help="A loss to draw as a dotted line, such as an n-gram's; repeatable."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what each stage of some runs cost and gained, and draw loss against cost.

    Example: gnomon report runs/grown runs/scratch --scratch runs/scratch --output results/growth
    """
    if output is not None:
        refuse_existing(output)
    floors = dict(map(read_floor, floor or []))
    from gnomon.report.cost import compare, cost_cells, draw_cost, read_curve, run_names
    from gnomon.report.figures import save_figure
    from gnomon.report.tables import format_cell, to_markdown
    from gnomon.training.checkpoints import publish
    from gnomon.training.records import read_rows

    curves = [read_curve(run, name) for run, name in zip(runs, run_names(runs), strict=True)]
    shares = compare(curves, read_curve(scratch)) if scratch is not None else []
    headings, cells = cost_cells(runs)
    share_headings = ["run", "final loss", "cost at equal loss", "cost within 1% of the perplexity"]
    share_cells = [
        [row["run"], format_cell("loss", row["final_loss"]), *map(share, (row["equal_loss"], row["within_1_percent"]))]
        for row in shares
    ]
    if output is not None:
        with publish(output) as folder:
            save_figure(draw_cost(curves, floors=floors), folder / "cost")
            text = to_markdown(headings, cells)
            if shares:
                text += f"\n\nCost as a share of {scratch}'s:\n\n" + to_markdown(share_headings, share_cells)
            (folder / "cost.md").write_text(text + "\n", encoding="utf-8")
    if as_json:
        print_json({"runs": {str(run): read_rows(run / "ledger.jsonl") for run in runs}, "shares": shares})
        return
    print_cells("cost and gain of every stage", headings, cells)
    if shares:
        print_table(f"\ncost as a share of {scratch}'s", share_headings, share_cells)
    if output is not None:
        print(f"\nwritten to {output}/")


def read_floor(text: str) -> tuple[str, float]:
    """A loss with its name.

    Raises:
        ValueError: The text is no NAME=LOSS.
    """
    name, _, loss = text.rpartition("=")
    if not name or not re.fullmatch(r"\d+(\.\d+)?", loss):
        raise ValueError(f"--floor takes NAME=LOSS, such as 5-gram=1.588; got {text!r}")
    return name, float(loss)


def share(value: float | None) -> str:
    """A share of another run's cost; a run that never got there has none."""
    return "never" if value is None else f"{value:.3f}"
