"""The model card of a run: what the model is, what it was trained on, what that cost and what came of it."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from gnomon.data.catalog import DATASETS
from gnomon.data.collections import COLLECTIONS
from gnomon.report.tables import MEASURES, ledger_cells, to_markdown
from gnomon.training.data_options import DataOptions
from gnomon.training.folder import RunFolder
from gnomon.training.options import Recipe
from gnomon.training.recipe import load_recipe, to_yaml
from gnomon.training.records import read_json, read_rows, write_text
from gnomon.training.tasks import TASKS

TEMPLATE = Path(__file__).with_name("model_card.md.jinja")
CARD = "README.md"
PIPELINES = {"language-modeling": "text-generation", "masked-language-modeling": "fill-mask"}
"""A recipe's task -> the hub's name of it, where the two differ."""


def write_card(output: Path | str) -> Path | None:
    """Write the model card into a run's `model` folder, which can then be pushed to the hub as it is.

    The card is `README.md`: metadata that huggingface_hub reads (task, library, measures), and below them the ledger,
    the data with their licenses, the recipe and the environment.

    Args:
        output: The run's folder.

    Returns:
        The file; None while no stage has ended.
    """
    folder = RunFolder(Path(output))
    ledger = [row for row in read_rows(folder.ledger) if row["status"] == "finished"]
    if not ledger:
        return None
    recipe, environment = load_recipe(folder.recipe), read_json(folder.environment)
    name, task = folder.root.resolve().name, PIPELINES.get(recipe.task, recipe.task)
    used = _used(recipe, len(ledger))
    card = ModelCard.from_template(
        ModelCardData(
            library_name="transformers",
            pipeline_tag=task,
            tags=["gnomon"],
            model_name=name,
            eval_results=list(_results(ledger[-1], task, used[-1])),
        ),
        template_path=str(TEMPLATE),
        name=name,
        description=_describe(recipe.task, read_json(folder.model / "config.json")),
        parameters=f"{ledger[-1]['parameters']:,}",
        version=environment["versions"]["gnomon"],
        head=TASKS[recipe.task].head,
        has_tokenizer=(folder.model / "tokenizer.json").is_file(),
        ledger=to_markdown(*ledger_cells(ledger)),
        grown=_growths(recipe, len(ledger)),
        data=to_markdown(["data", "license"], [[_name(data), _license(data)] for data in used]),
        recipe=to_yaml(recipe).strip(),
        environment=_environment(environment),
    )
    path = folder.model / CARD
    write_text(path, str(card))
    return path


def _used(recipe: Recipe, stages: int) -> list[DataOptions]:
    """The data sets of the stages so far, each once, the last stage's last."""
    found = [recipe.stage_data(stage) for stage in range(stages)]
    return [data for place, data in enumerate(found) if _name(data) not in map(_name, found[place + 1 :])]


def _name(data: DataOptions) -> str:
    """What the data are called; of a path its last part, since the rest tells of nothing but a machine."""
    if data.name is not None:
        return data.name
    source = str(data.source)
    return Path(source).name if Path(source).exists() or Path(source).is_absolute() else source


def _license(data: DataOptions) -> str:
    """The license of the data as the catalog knows it."""
    known = {**DATASETS, **COLLECTIONS}.get(data.name or "")
    return known.license if known is not None else "not known to gnomon; ask the data's owner"


def _results(row: Mapping[str, Any], task: str, data: DataOptions) -> Iterator[EvalResult]:
    """The last stage's measures in the hub's form."""
    for measure, heading in {"validation_loss": "loss", **MEASURES}.items():
        if isinstance(row.get(measure), int | float):
            yield EvalResult(
                task_type=task,
                dataset_type=_name(data),
                dataset_name=f"{_name(data)}, held out",
                metric_type=measure.removeprefix("validation_"),
                metric_name=heading,
                metric_value=row[measure],
            )


def _describe(task: str, config: Mapping[str, Any]) -> str:
    """One sentence on the model's make."""
    if "vision_config" in config:
        towers = (_describe(part, config[f"{part}_config"]) for part in ("vision", "text"))
        return f"Two towers for {task}. {' '.join(towers)}"
    kinds = {config["projection"], config["feed_forward"]}
    made = "TokenFormer" if kinds == {"pattention"} else "Transformer with parameter tokens in some of its layers"
    made = made if "pattention" in kinds else "Transformer"
    layers = config.get("num_hidden_layers")
    if config.get("encoder_layers"):
        layers = f"{config['encoder_layers']} + {config['decoder_layers']}"
    placement = config["norm_placement"]
    return f"A {made} for {task}: {layers} layers of width {config['hidden_size']}, norm placement {placement}."


def _growths(recipe: Recipe, stages: int) -> str:
    """Before which stages the model grew, and to what sizes."""
    described = []
    for index in range(stages):
        growth = recipe.stages[index].growth
        if growth is not None:
            sizes = growth.model_dump(exclude_defaults=True)
            described.append(f"before stage {index} ({', '.join(f'{key}: {value}' for key, value in sizes.items())})")
    return "; ".join(described)


def _environment(environment: Mapping[str, Any]) -> str:
    """Versions and device as a table."""
    rows = [[name, str(version)] for name, version in environment["versions"].items() if version is not None]
    return to_markdown(["what", "version"], [*rows, ["device", str(environment["device"])]])
