"""`gnomon recipes`: the runs that are packaged with the library."""

import json
from pathlib import Path
from typing import Annotated

import typer

from gnomon.cli.outputs import print_json, print_table, refuse_existing

app = typer.Typer(help="List the packaged recipes, copy one to change it, or print the schema of all.")


@app.callback(invoke_without_command=True)
def overview(context: typer.Context) -> None:
    """List the packaged recipes, copy one to change it, or print the schema of all."""
    if context.invoked_subcommand is None:
        list_recipes(as_json=False)


@app.command("list")
def list_recipes(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the packaged recipes.

    Example: gnomon recipes list --json
    """
    from gnomon.training.recipe import recipe_names, recipe_path

    summaries = {name: _summary(recipe_path(name)) for name in recipe_names()}
    if as_json:
        print_json([{"name": name, "summary": summary} for name, summary in summaries.items()])
    else:
        print_table("Train one with `gnomon train NAME`", ["recipe", "what it does"], summaries.items())


@app.command("copy")
def copy_recipe(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A recipe of `gnomon recipes list`.")],
    output: Annotated[Path | None, typer.Argument(help="The file to write; NAME.yaml here if left out.")] = None,
) -> None:
    """Copy a packaged recipe to a file of your own.

    Example: gnomon recipes copy shakespeare-tokenformer mine.yaml
    """
    from gnomon.training.recipe import recipe_path
    from gnomon.training.records import write_text

    source = recipe_path(name)
    target = output or Path(source.name)
    refuse_existing(target)
    write_text(target, source.read_text(encoding="utf-8"))
    print(target)


@app.command("schema")
def print_schema() -> None:
    """Print the JSON schema of recipes, for editors that complete and check YAML.

    Example: gnomon recipes schema > recipe.schema.json
    """
    from gnomon.training.recipe import json_schema

    print(json.dumps(json_schema(), indent=2))


def _summary(recipe: Path) -> str:
    """The first line of a recipe's header."""
    first = recipe.read_text(encoding="utf-8").split("\n", 1)[0]
    return first.removeprefix("#").strip()
