"""`gnomon train`: one run of a recipe."""

from pathlib import Path
from typing import Annotated

import typer

from gnomon.cli.errors import INTERRUPTED
from gnomon.cli.outputs import print_json

RUNS = Path("runs")
"""Where a run goes that names no output."""

RecipeArgument = Annotated[str, typer.Argument(help="A recipe's file, or a name of `gnomon recipes list`.")]
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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the recipe, print it in full, and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the run's ledger as JSON at the end.")] = False,
) -> None:
    """Train a model as a recipe says.

    The run's folder holds the resolved recipe, the metrics, the ledger, the figures, the checkpoints, and the model
    with its tokenizer in model/, which every Hugging Face tool can load.

    Examples:

    gnomon train shakespeare

    gnomon train mine.yaml -o stages.0.training.max_steps=100 --output runs/short

    gnomon train mine.yaml --output runs/short --resume
    """
