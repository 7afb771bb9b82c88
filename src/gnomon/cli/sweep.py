"""`gnomon sweep`: one recipe over a grid of values and several seeds."""

from pathlib import Path
from typing import Annotated, Any

import typer

from gnomon.cli.outputs import print_cells, print_json
from gnomon.cli.train import RUNS, OverridesOption, RecipeArgument, leave_if_interrupted


def sweep(
    recipe: RecipeArgument,
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=V1,V2", help="Values of a key, dotted; repeat for the product of several."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each setting, with seeds from the recipe's on.")] = 1,
    override: OverridesOption = None,
    output: Annotated[
        Path | None, typer.Option(help="The sweep's folder; runs/NAME-sweep if left out.", metavar="FOLDER")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Skip finished runs, continue the others.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the ledger as JSON at the end.")] = False,
) -> None:
    """Train a recipe once for every setting of a grid and every seed.

    The sweep's folder holds a ledger with a row a run, a table, a figure, and each run's own folder. Runs that
    diverge are stopped and recorded.

    Examples:

    gnomon sweep demo --grid stages.0.training.learning_rate=1e-3,3e-3 --seeds 3

    gnomon sweep mine.yaml --grid model.preset=tokenformer-tiny,transformer-tiny --output results/mine --resume
    """
    values = read_grid(grid or [])
    from gnomon.report.run import sweep as run
    from gnomon.report.tables import sweep_cells

    output = output or RUNS / f"{Path(recipe).stem}-sweep"
    result = run(recipe, values, seeds, output, resume=resume, overrides=override or [], progress=not as_json)
    leave_if_interrupted(result)
    if as_json:
        print_json(result.to_dict())
    else:
        print_cells(str(output), *sweep_cells(result.ledger))


def read_grid(settings: list[str]) -> dict[str, list[Any]]:
    """Read `KEY=V1,V2` settings; the values are YAML, so that lists and mappings can stand among them.

    Raises:
        ValueError: A setting has no values, or its key stands twice.

    >>> read_grid(["seed=0,1", "model.num_attention_tokens=16,[16, 24]"])
    {'seed': [0, 1], 'model.num_attention_tokens': [16, [16, 24]]}
    """
    from gnomon.training.text import parse_yaml

    grid: dict[str, list[Any]] = {}
    for setting in settings:
        key, equals, values = setting.partition("=")
        if not equals or not values.strip() or not key.strip():
            raise ValueError(f"a grid must read KEY=V1,V2, not {setting!r}: write for example --grid seed=0,1.")
        if key.strip() in grid:
            raise ValueError(f"the grid names {key.strip()} twice: give all its values in one --grid.")
        grid[key.strip()] = parse_yaml(f"[{values}]", f"the values of {key.strip()}")
    return grid
