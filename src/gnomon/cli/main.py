"""The command `gnomon`. Nothing heavy is imported before a command runs, so that `--help` answers at once."""

import os
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from gnomon.cli import (
    analyze,
    convert,
    data,
    demo,
    evaluate,
    generate,
    graft,
    grow,
    info,
    recipes,
    report,
    sweep,
    train,
)
from gnomon.cli.errors import one_sentence

app = typer.Typer(
    name="gnomon",
    help="Train Transformers whose parameters are tokens, and make them larger without starting again.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def print_version(wanted: bool) -> None:
    """Show the version and exit, before a command is asked for."""
    if wanted:
        print(f"gnomon {version('gnomon')}")
        raise typer.Exit


@app.callback(epilog="Begin with: gnomon demo")
def options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train Transformers whose parameters are tokens, and make them larger without starting again."""


app.command()(demo.demo)
app.command()(train.train)
app.command()(sweep.sweep)
app.command()(evaluate.evaluate)
app.command()(generate.generate)
app.command()(grow.grow)
app.command()(grow.shrink)
app.command()(graft.graft)
app.command()(report.report)
app.command()(info.info)
app.command()(analyze.analyze)
app.command()(convert.convert)
app.add_typer(recipes.app, name="recipes")
app.add_typer(data.app, name="data")


def main() -> None:
    """Run one command; exit with 2 for bad input, 130 or 143 for an interrupt, 1 for our own faults."""
    # Threads that wait for each other by spinning starve a machine that has other work: two runs on two cores then
    # take five times as long as they need. OpenMP reads this when torch is imported, so it has to be set before.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with one_sentence():
        sys.exit(app(prog_name="gnomon", standalone_mode=False) or 0)
