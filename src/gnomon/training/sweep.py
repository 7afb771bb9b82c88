"""A recipe trained for every setting of a grid and every seed: a ledger with one row a run."""

import hashlib
import itertools
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnomon.training.checkpoints import clear_leftovers, publish
from gnomon.training.folder import locked, refuse_existing
from gnomon.training.options import Recipe
from gnomon.training.progress import DivergenceError
from gnomon.training.recipe import check_recipe, load_recipe, read_recipe
from gnomon.training.records import read_json, read_rows, write_json, write_rows, write_text
from gnomon.training.stages import run
from gnomon.training.tasks import find_task
from gnomon.training.text import apply_overrides, dump_yaml

VARIANT = "variant"
"""The key that a named variant has among a run's settings."""

LOSSES = ("train_loss", "validation_loss", "best_validation_loss")
COSTS = ("steps", "tokens", "flops", "seconds")
SIZES = ("parameters", "non_embedding_parameters")


@dataclass(frozen=True)
class SweepResult:
    """What a sweep has come to.

    Attributes:
        output: Its folder.
        ledger: A row for every run that has ended, in the order of the grid.
        interrupted: The signal that stopped it, or None when all runs have ended.
        resume_command: What continues it.
    """

    output: Path
    ledger: list[dict[str, Any]]
    interrupted: int | None
    resume_command: str

    def to_dict(self) -> dict[str, Any]:
        """The result, for JSON."""
        return {"output": str(self.output), "ledger": self.ledger, "interrupted": self.interrupted}


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep.

    Attributes:
        name: Its folder's name, made of its settings and its seed.
        settings: Dotted key -> value, and `variant` -> name.
        recipe: What it trains.
    """

    name: str
    settings: dict[str, Any]
    recipe: Recipe


def sweep(
    recipe: Recipe | Mapping[str, Any] | str | Path,
    grid: Mapping[str, Sequence[Any]],
    seeds: int | Sequence[int] = 1,
    output: Path | str = "sweep",
    *,
    resume: bool = False,
    variants: Mapping[str, Sequence[str]] | None = None,
    overrides: Sequence[str] = (),
    progress: bool = True,
) -> SweepResult:
    """Train a recipe for the product of all settings and seeds, in one folder each.

    All recipes are checked before the folder appears. A run that diverges is recorded with its step and not
    tried again; runs that have ended are skipped, one that was interrupted continues.

    Args:
        recipe: A YAML file, the name of a packaged recipe, a mapping, or a loaded recipe.
        grid: Dotted key -> the values it takes.
        seeds: How many seeds, from the recipe's on, or which.
        output: The sweep's folder.
        resume: Continue the sweep in the folder; the grid may have new values and seeds, but no new keys.
        variants: Name -> overrides that belong together; one more axis of the grid.
        overrides: Changes `dotted.key=value` for all runs.
        progress: Show progress on standard error.

    Raises:
        FileExistsError: The folder exists, or another process is at work in it.
        FileNotFoundError: There is no sweep to resume, or data are missing.
        ValueError: A recipe does not check, or the sweep was started from another one.
    """
    output = Path(output)
    written = read_recipe(recipe, overrides)
    if resume:
        grid = _reopen(output, written, grid, bool(variants))
    planned = plan(written, grid, seeds, variants or {})
    about = {"grid": {key: list(values) for key, values in grid.items()}, "variants": dict(variants or {})}
    command = _resume_command(output, grid, seeds)
    if not resume:
        refuse_existing(output)
        with publish(output) as temporary:
            write_text(temporary / "recipe.yaml", dump_yaml(written))
            write_json(temporary / "sweep.json", about)
    with locked(output):
        clear_leftovers(output)
        write_json(output / "sweep.json", about)
        names = [each.name for each in planned]
        rows = {row["run"]: row for row in read_rows(output / "ledger.jsonl")}
        for number, each in enumerate(planned, start=1):
            if each.name in rows:
                continue
            row, interrupted = _run(each, output / each.name, progress, f"run {number}/{len(planned)} {each.name}")
            if row is not None:
                rows[each.name] = row
                rows = {name: rows[name] for name in sorted(rows, key=_order(names))}
                write_rows(output / "ledger.jsonl", rows.values())
            if interrupted is not None:
                return SweepResult(output, list(rows.values()), interrupted, command)
    return SweepResult(output, list(rows.values()), None, command)


def plan(
    written: dict[str, Any],
    grid: Mapping[str, Sequence[Any]],
    seeds: int | Sequence[int],
    variants: Mapping[str, Sequence[str]],
) -> list[PlannedRun]:
    """Every run of a sweep, with its recipe checked.

    Raises:
        ValueError: The grid is empty or repeats a value, or a recipe does not check.
    """
    for key, values in grid.items():
        shown = [json.dumps(value) for value in values]
        if not values or len(set(shown)) < len(shown):
            state = "has no values" if not values else f"repeats a value of {', '.join(shown)}"
            raise ValueError(f"the grid's key {key} {state}; give each value once.")
    if "seed" in grid and (not isinstance(seeds, int) or seeds > 1):
        raise ValueError(f"the grid names seed and {seeds} seeds are asked for as well; choose one of the two.")
    first = load_recipe(written).seed
    chosen = [first + number for number in range(seeds)] if isinstance(seeds, int) else list(seeds)
    axes = [[(key, value) for value in values] for key, values in grid.items()]
    if variants:
        axes.insert(0, [(VARIANT, name) for name in variants])
    if "seed" not in grid:
        axes.append([("seed", seed) for seed in chosen])
    planned = []
    for point in itertools.product(*axes):
        settings = dict(point)
        changes = [*variants.get(settings.get(VARIANT, ""), ())]
        changes += [f"{key}={json.dumps(value)}" for key, value in point if key != VARIANT]
        planned.append(PlannedRun(run_name(settings), settings, check_recipe(apply_overrides(written, changes))))
    return planned


def run_name(settings: Mapping[str, Any]) -> str:
    """A folder's name for a run's settings.

    >>> run_name({"stages.0.training.learning_rate": 0.001, "seed": 2})
    'learning_rate=0.001,seed=2'
    """
    words = []
    for key, value in settings.items():
        last = key.split(".")[-1]
        label = last if sum(other.split(".")[-1] == last for other in settings) == 1 else key
        words.append(f"{label}={value if isinstance(value, str) else json.dumps(value)}")
    name = ",".join(words)
    safe = re.sub(r"[^\w.,=+-]+", "-", name)
    if safe == name and len(name) <= 120:
        return name
    return f"{safe[:100]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _run(each: PlannedRun, folder: Path, progress: bool, title: str) -> tuple[dict[str, Any] | None, int | None]:
    """Train one run; give its row if it has ended, and the signal's number if one came."""
    row: dict[str, Any] = {
        "run": each.name,
        "settings": {key: value for key, value in each.settings.items() if key != "seed"},
        "seed": each.recipe.seed,
    }
    try:
        result = run(each.recipe, folder, resume=folder.exists(), progress=progress, title=title)
    except DivergenceError as error:
        row |= {"status": "diverged", "stage": error.stage, "steps": error.step, "reason": error.reason}
        return row, None
    if len(result.ledger) < len(each.recipe.stages):
        return None, result.interrupted
    last = result.ledger[-1]
    assert each.recipe.task is not None
    measures = (*LOSSES[:2], *find_task(each.recipe.task).measures, *LOSSES[2:])
    row |= {"status": "finished"} | {name: last[name] for name in measures}
    row |= {name: last[f"cumulative_{name}"] for name in COSTS} | {name: last[name] for name in SIZES}
    return row, result.interrupted


def _reopen(
    output: Path, written: dict[str, Any], grid: Mapping[str, Sequence[Any]], has_variants: bool
) -> Mapping[str, Sequence[Any]]:
    """Check that a sweep can be continued with this recipe and grid; give its keys in the order that names runs."""
    if not (output / "sweep.json").is_file():
        raise FileNotFoundError(
            f"there is no sweep to resume in {output} (sweep.json is missing); name the sweep's folder, or leave "
            "--resume out to start one."
        )
    if read_recipe(output / "recipe.yaml") != written:
        raise ValueError(
            f"the sweep in {output} was started from another recipe; resume it with {output / 'recipe.yaml'}, "
            "or name another output."
        )
    before = read_json(output / "sweep.json")
    if set(before["grid"]) != set(grid) or bool(before["variants"]) != has_variants:
        raise ValueError(
            f"the sweep in {output} was started over {', '.join(before['grid']) or 'no keys'}, not over "
            f"{', '.join(grid) or 'no keys'}; resume it with the same keys, or name another output."
        )
    return {key: grid[key] for key in before["grid"]}


def _order(names: list[str]) -> Any:
    """Sort by place in the grid; rows of an earlier, other grid come last."""
    places = {name: place for place, name in enumerate(names)}
    return lambda name: places.get(name, len(places))


def _resume_command(output: Path, grid: Mapping[str, Sequence[Any]], seeds: int | Sequence[int]) -> str:
    """What continues a sweep on the command line."""
    words = ["gnomon", "sweep", str(output / "recipe.yaml")]
    for key, values in grid.items():
        words += ["--grid", f"{key}={','.join(json.dumps(value) for value in values)}"]
    if isinstance(seeds, int) and seeds > 1:
        words += ["--seeds", str(seeds)]
    return shlex.join([*words, "--output", str(output), "--resume"])
