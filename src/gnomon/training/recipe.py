"""Recipes: found by file or by name, changed by overrides, checked before anything is written."""

import difflib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gnomon.models.presets import PRESETS
from gnomon.models.sizes import DEFAULTS
from gnomon.training.options import Recipe
from gnomon.training.problems import finish, first_problem, suggestion
from gnomon.training.records import read_json
from gnomon.training.tasks import TASKS, TaskEntry, task_of_fields, task_of_head
from gnomon.training.text import apply_overrides, dump_yaml, parse_yaml

TOWER_FIELDS = ("text_config", "vision_config", "projection_dim", "logit_scale_init_value")
"""What a `model` block of two towers may hold, each tower's fields inside."""

_RIVALS = {"max_steps": "epochs", "epochs": "max_steps", "name": "source", "source": "name"}
"""A key that takes another's place, so that the other is not inherited beside it."""


def load_recipe(recipe: Recipe | Mapping[str, Any] | str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe, change it, and check it: keys, types, ranges, and the model's configuration.

    A stage inherits the training values of the stage before it, and its data complete the recipe's. Its schedule may
    also be `restart` (the inherited one afresh, which is the default) or `continue` (the learning rate is unbroken:
    one schedule runs over both stages).

    Args:
        recipe: A YAML file, the name of a packaged recipe, a mapping, or a loaded recipe.
        overrides: Changes `dotted.key=value`; numbers index lists, and the value is YAML.

    Returns:
        The recipe with every default in place.

    Raises:
        FileNotFoundError: There is no such file and no such packaged recipe.
        ValueError: The recipe is not YAML, has an unknown key, or a value of the wrong type or size.

    >>> load_recipe("demo", ["stages.0.training.max_steps=50"]).stages[0].training.max_steps
    50
    """
    return check_recipe(read_recipe(recipe, overrides))


def read_recipe(recipe: Recipe | Mapping[str, Any] | str | Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Read a recipe and change it, but check only that it is a mapping: what its author wrote, and no more.

    Args:
        recipe: As for `load_recipe`.
        overrides: As for `load_recipe`.

    Raises:
        FileNotFoundError: There is no such file and no such packaged recipe.
        ValueError: It is not YAML or no mapping, or an override leads nowhere.
    """
    try:
        if isinstance(recipe, Recipe):
            written: Any = recipe.to_dict()
        elif isinstance(recipe, Mapping):
            written = recipe
        else:
            written = parse_yaml(recipe_path(recipe).read_text(encoding="utf-8"), str(recipe))
        if not isinstance(written, Mapping):
            raise ValueError(
                f"a recipe must be a mapping with the keys {', '.join(Recipe.model_fields)}, "
                f"but {_name(recipe)} holds {written!r:.60}; see `gnomon recipes list`."
            )
        return apply_overrides(written, overrides)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{_name(recipe)} must be UTF-8, but its byte {error.start} is not; save it as UTF-8."
        ) from None
    except RecursionError:
        raise ValueError(
            f"{_name(recipe)} holds itself, or too many lists within lists; write its values out."
        ) from None


def check_recipe(written: dict[str, Any]) -> Recipe:
    """Complete and check what `read_recipe` has read.

    Raises:
        FileNotFoundError: The checkpoint is no folder.
        ValueError: A key is unknown, or a value has the wrong type or size.
    """
    try:
        checked = Recipe.model_validate(_inherit(written))
    except ValidationError as error:
        raise ValueError(first_problem(error)) from None
    if checked.tokenizer is None and "checkpoint" not in checked.model and _task(checked).uses_tokenizer:
        raise ValueError("tokenizer is missing; add it, for example tokenizer: {kind: byte}.")
    check_model(checked.model)
    checked = checked.model_copy(update={"task": checked.task or task_of_model(checked.model)})
    _check_task(checked)
    return checked


def task_of_model(model: Mapping[str, Any]) -> str:
    """The task that a recipe's `model` block is for, where the recipe names none."""
    if "checkpoint" not in model:
        return task_of_fields(model_fields(model))
    config = read_json(Path(str(model["checkpoint"])) / "config.json")
    heads = [task_of_head(name) for name in config.get("architectures") or ()]
    return next((task for task in heads if task is not None), task_of_fields(config))


def _task(recipe: Recipe) -> TaskEntry:
    """The table's entry for a recipe's task; for the model's own where that can be told already."""
    return TASKS[recipe.task] if recipe.task else TASKS["language-modeling"]


def _check_pairs(recipe: Recipe) -> None:
    """Images are told from one another by their texts: by two of them at least, and none of an image mixed of two."""
    for number, stage in enumerate(recipe.stages):
        if stage.training.batch_size < 2:
            raise ValueError(
                f"stages.{number}.training.batch_size is 1, and task {recipe.task} compares the pairs of a batch; "
                "raise it to at least 2."
            )
        augmentation = recipe.stage_data(number).augmentation
        if augmentation is not None and augmentation.mixup:
            raise ValueError(
                f"data.augmentation.mixup is {augmentation.mixup}, and an image mixed of two has no text; set it to 0."
            )


def _check_task(recipe: Recipe) -> None:
    """Refuse data and generation that the task has no use for."""
    assert recipe.task is not None
    entry = TASKS[recipe.task]
    for data in [recipe.data, *(stage.data for stage in recipe.stages if stage.data is not None)]:
        try:
            data.check_for(recipe.task)
        except ValueError as error:
            raise ValueError(finish(str(error))) from None
    if entry.compares_rows:
        _check_pairs(recipe)
    if recipe.generation is not None and not entry.generates:
        raise ValueError(f"generation is given, but task {recipe.task} writes no text; remove it.")
    if recipe.tokenizer is not None and not entry.uses_tokenizer:
        raise ValueError(f"tokenizer is given, but task {recipe.task} reads no text; remove it.")


def to_yaml(recipe: Recipe) -> str:
    """Write the recipe out in full, so that `load_recipe` reads it back equal."""
    return dump_yaml(recipe.to_dict())


def recipe_names() -> list[str]:
    """The names of the packaged recipes."""
    folder = resources.files("gnomon.recipes")
    return sorted(Path(file.name).stem for file in folder.iterdir() if file.name.endswith(".yaml"))


def recipe_path(recipe: str | Path) -> Path:
    """Find a recipe's file.

    Args:
        recipe: A file, or the name of a packaged recipe.

    Raises:
        FileNotFoundError: It is neither.
    """
    names = recipe_names()
    if str(recipe) in names:
        return Path(str(resources.files("gnomon.recipes"))) / f"{recipe}.yaml"
    path = Path(recipe)
    if path.is_file():
        return path
    near = difflib.get_close_matches(path.stem, names, n=1)
    remedy = f"did you mean {near[0]!r}?" if near else f"the packaged ones are {', '.join(names)}"
    raise FileNotFoundError(finish(f"no recipe file and no packaged recipe is called {str(recipe)!r}; {remedy}"))


def json_schema() -> dict[str, Any]:
    """The recipe's keys as a JSON schema, for editors."""
    schema = Recipe.model_json_schema()
    schema["properties"]["model"] |= {
        "properties": {"preset": {"enum": list(PRESETS)}, "checkpoint": {"type": "string"}}
        | {name: {"default": default} for name, default in DEFAULTS.items()}
        | {name: {} for name in TOWER_FIELDS},
        "additionalProperties": False,
    }
    return schema


def model_fields(model: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration fields that a recipe's `model` block stands for: a preset's, changed by its own.

    Raises:
        ValueError: There is no such preset.
    """
    own = {name: value for name, value in model.items() if name != "preset"}
    if "preset" not in model:
        return own
    if not isinstance(model["preset"], str) or model["preset"] not in PRESETS:
        raise ValueError(
            finish(
                f"model.preset is {model['preset']!r}, which is no preset; "
                f"{suggestion(str(model['preset']), list(PRESETS))}"
            )
        )
    return {**PRESETS[model["preset"]], **own}


def check_model(model: Mapping[str, Any]) -> None:
    """Refuse a `model` block that no model can be built from.

    Raises:
        ValueError: A key is unknown, a value does not fit, or `checkpoint` does not stand alone.
        FileNotFoundError: The checkpoint is no folder.
    """
    if not model:
        raise ValueError("model is empty; write for example model: {preset: tokenformer-tiny}.")
    if "checkpoint" in model:
        others = [str(name) for name in model if name != "checkpoint"]
        if others:
            raise ValueError(
                f"model.checkpoint must stand alone, got {', '.join(others)} beside it; remove them, because a "
                "checkpoint brings its own configuration."
            )
        if not (Path(str(model["checkpoint"])) / "config.json").is_file():
            raise FileNotFoundError(
                f"model.checkpoint is {str(model['checkpoint'])!r}, which holds no config.json; name a folder that "
                "a run or save_pretrained has written."
            )
        return
    is_pair = "vision_config" in model or "text_config" in model
    known = list(TOWER_FIELDS) if is_pair else ["preset", "checkpoint", *DEFAULTS]
    for name in model:
        if name not in known:
            raise ValueError(
                finish(
                    f"model.{name} is no configuration field (its value is {model[name]!r}); "
                    f"{suggestion(str(name), known)}"
                )
            )
    from gnomon.models.config import GnomonConfig
    from gnomon.models.multimodal import GnomonImageTextConfig

    fields = model_fields(model)
    try:
        if is_pair:
            GnomonImageTextConfig(**fields)
        else:
            GnomonConfig(**fields)
    except (TypeError, ValueError) as error:
        raise ValueError(f"model: {error}; mend the recipe's model block.") from None


def _name(recipe: object) -> str:
    """What an error message calls the recipe."""
    return str(recipe) if isinstance(recipe, str | Path) else "the recipe given"


def _inherit(written: dict[str, Any]) -> dict[str, Any]:
    """Complete every stage; what has the wrong shape is left for the check to refuse."""
    stages = written.get("stages")
    if not isinstance(stages, list):
        return written
    complete: list[Any] = []
    for stage in stages:
        if isinstance(stage, Mapping):
            stage = dict(stage)
            if complete and isinstance(complete[-1], Mapping):
                stage["training"] = _go_on(complete[-1].get("training"), stage.get("training", {}))
            if stage.get("data") is not None:
                stage["data"] = _merge(written.get("data"), stage["data"])
        complete.append(stage)
    return {**written, "stages": complete}


def _go_on(inherited: Any, own: Any) -> Any:
    """A later stage's training values: the inherited ones under its own, its schedule begun afresh or gone on with."""
    if not (isinstance(inherited, Mapping) and isinstance(own, Mapping)):
        return own
    merged = _merge(inherited, {"continue_schedule": False, **own})
    if own.get("schedule") in ("restart", "continue"):
        merged["schedule"] = inherited.get("schedule", "cosine")
        merged["continue_schedule"] = own["schedule"] == "continue"
    return merged


def _merge(inherited: Any, own: Any) -> Any:
    """The inherited keys under the own ones, without those whose rival is set."""
    if not (isinstance(inherited, Mapping) and isinstance(own, Mapping)):
        return own
    replaced = {_RIVALS[key] for key, value in own.items() if key in _RIVALS and value is not None}
    return {**{key: value for key, value in inherited.items() if key not in replaced}, **own}
