"""A run or a sweep with what it leaves behind to look at: figures and tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gnomon.report.analysis import draw_heat_map, heat_map_keys
from gnomon.report.card import write_card
from gnomon.report.figures import draw_loss_curve, draw_sweep, save_figure
from gnomon.report.tables import sweep_cells, to_csv, to_markdown
from gnomon.training import stages
from gnomon.training import sweep as sweeps
from gnomon.training.folder import RunFolder
from gnomon.training.options import Recipe
from gnomon.training.progress import DivergenceError
from gnomon.training.recipe import load_recipe
from gnomon.training.records import read_rows, write_text
from gnomon.training.stages import RunResult
from gnomon.training.sweep import SweepResult


def train(
    recipe: Recipe | Mapping[str, Any] | str | Path,
    output: Path | str | None = None,
    *,
    resume: bool = False,
    overrides: Sequence[str] = (),
    progress: bool = True,
) -> RunResult:
    """Train as a recipe says, draw the losses, and write the model's card.

    Args:
        recipe: A YAML file, the name of a packaged recipe, a mapping, or a loaded recipe.
        output: The run's folder; `runs/` and the recipe's name if not given.
        resume: Continue the run in the folder.
        overrides: Changes `dotted.key=value`.
        progress: Show progress on standard error.

    Returns:
        The folder and its ledger; after SIGINT or SIGTERM with the signal's number.

    Raises:
        FileExistsError: The folder exists, or another process is at work in it.
        FileNotFoundError: There is nothing to resume, or recipe, text, tokenizer or checkpoint are missing.
        ValueError: Something in the recipe does not fit, or a recipe without a name has no output.
        DivergenceError: The loss is no number, or stayed above its start.
    """
    loaded = load_recipe(recipe, overrides)
    if output is None:
        if not isinstance(recipe, str | Path):
            raise ValueError("a recipe that is no file has no name for its folder; give train an output.")
        output = Path("runs") / Path(recipe).stem
    try:
        result = stages.run(loaded, output, resume=resume, progress=progress)
    except DivergenceError:
        describe_run(output)
        raise
    describe_run(output)
    return result


def describe_run(output: Path | str) -> None:
    """Draw a run's losses and write the card of its model, as far as it has come.

    Args:
        output: The run's folder.
    """
    draw_run(output)
    write_card(output)


def draw_run(output: Path | str, *, floors: Mapping[str, float] | None = None) -> list[Path]:
    """Draw a run's losses over steps and over tokens into its folder.

    Args:
        output: The run's folder.
        floors: Name -> loss to compare with, drawn as dotted lines.

    Returns:
        The files; none while nothing has been measured.
    """
    folder = RunFolder(Path(output))
    metrics = read_rows(folder.metrics)
    if not metrics:
        return []
    written: list[Path] = []
    for x, name in (("total_step", "loss"), ("tokens", "loss_by_tokens")):
        figure = draw_loss_curve(metrics, x, floors=floors, title="Loss while training")
        written += save_figure(figure, folder.figures / name)
    return written


def sweep(
    recipe: Recipe | Mapping[str, Any] | str | Path,
    grid: Mapping[str, Sequence[Any]],
    seeds: int | Sequence[int] = 1,
    output: Path | str = "sweep",
    **options: Any,
) -> SweepResult:
    """Train a recipe for every setting and seed, and write table and figure of what has ended.

    Args:
        recipe: As for `train`.
        grid: Dotted key -> the values it takes.
        seeds: How many seeds, from the recipe's on, or which.
        output: The sweep's folder; `table.md`, `table.csv`, `figure.svg` and `figure.png` go there, and a heat map
            where the grid has a learning rate, a depth and one more key.
        options: As for `gnomon.training.sweep.sweep`: resume, variants, overrides, progress.
    """
    result = sweeps.sweep(recipe, grid, seeds, output, **options)
    if result.ledger:
        write_text(result.output / "table.md", to_markdown(*sweep_cells(result.ledger)) + "\n")
        write_text(result.output / "table.csv", to_csv(result.ledger))
    if any(row["status"] == "finished" for row in result.ledger):
        save_figure(draw_sweep(result.ledger), result.output / "figure")
        keys = heat_map_keys(result.ledger)
        if keys is not None:
            save_figure(draw_heat_map(result.ledger, **keys), result.output / "heat_map")
    return result
