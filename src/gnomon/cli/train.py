"""`gnomon train`: one run of a recipe."""

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gnomon.cli.errors import INTERRUPTED
from gnomon.cli.outputs import print_cells, print_json

if TYPE_CHECKING:
    from gnomon.training.stages import RunResult
    from gnomon.training.sweep import SweepResult

RUNS = Path("runs")
"""Where a run goes that names no output."""

RecipeArgument = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A recipe's file, or a name of `gnomon recipes list`.")
]
OverridesOption = Annotated[
    list[str] | None,
    typer.Option("--override", "-o", metavar="KEY=VALUE", help="Change a value; dotted, repeatable."),
]


def train(
    recipe: RecipeArgument,
    override: OverridesOption = None,
    output: Annotated[
        Path | None, typer.Option(help="The run's folder; runs/NAME if left out.", metavar="FOLDER")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run in its folder.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the recipe, print it, and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the run's ledger as JSON at the end.")] = False,
) -> None:
    """Train a model as a recipe says.

    Its folder holds the whole recipe, metrics, ledger, figures, checkpoints, and in model/ the last model.

    Examples:

    gnomon train demo --output runs/demo

    gnomon train mine.yaml -o stages.0.training.max_steps=100 --output runs/short

    gnomon train mine.yaml --output runs/short --resume
    """
    from gnomon.training.recipe import load_recipe, to_yaml

    loaded = load_recipe(recipe, override or [])
    if dry_run:
        print(to_yaml(loaded), end="")
        return
    from gnomon.report.run import train as run
    from gnomon.report.tables import ledger_cells

    output = output or RUNS / Path(recipe).stem
    result = run(loaded, output, resume=resume, progress=not as_json)
    leave_if_interrupted(result)
    if as_json:
        print_json(result.to_dict())
    else:
        print_cells(str(output), *ledger_cells(result.ledger))


def leave_if_interrupted(result: "RunResult | SweepResult") -> None:
    """After an interrupt print the command that continues, and exit with 130 or 143.

    Raises:
        typer.Exit: The run was interrupted.
    """
    if result.interrupted is not None:
        name = signal.Signals(result.interrupted).name
        print(f"interrupted by {name}, everything so far is saved; continue with: {result.resume_command}")
        raise typer.Exit(INTERRUPTED + result.interrupted)
