"""`gnomon analyze`: how far one step moves a model, against depth and placement, and what runs through its layers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gnomon.cli.loading import load_model, load_tokenizer
from gnomon.cli.outputs import print_cells, print_json, refuse_existing

if TYPE_CHECKING:
    from gnomon.data.packing import PackedText

SMALL = {"hidden_size": 64, "num_attention_heads": 4, "tie_word_embeddings": False}
"""The model of a study that names none: `gnomon analyze linear` or `gnomon analyze pattention`."""


def analyze(
    model: Annotated[
        str,
        typer.Argument(
            metavar="PRESET|CHECKPOINT|linear|pattention",
            help="A preset, a checkpoint's folder, or a small model with this projection.",
        ),
    ],
    placements: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Norm placements; the model's own if left out.")
    ] = None,
    depths: Annotated[
        str | None, typer.Option(metavar="N,...", help="Numbers of layers; the model's own if left out.")
    ] = None,
    override: Annotated[
        list[str] | None,
        typer.Option("--override", "-o", metavar="FIELD=VALUE", help="Change a configuration field; repeatable."),
    ] = None,
    initialization: Annotated[
        Literal["xavier", "config"],
        typer.Option(help="The theorems' setting, Xavier's with a gain, or what the configuration says."),
    ] = "xavier",
    gain: Annotated[
        str, typer.Option(help="With xavier: own (gamma for sub, beta for deep, else 1), gamma for all, or a number.")
    ] = "own",
    gain_tokens: Annotated[
        Literal["values", "keys", "both"], typer.Option(help="With xavier: which tokens of a Pattention have the gain.")
    ] = "both",
    without_norm: Annotated[
        list[str] | None, typer.Option(help="Leave the norms of a slot out: before or inner; repeatable.")
    ] = None,
    linear_activation: Annotated[
        bool, typer.Option("--linear-activation", help="Feed-forward layers without an activation, as in the theorems.")
    ] = False,
    moved: Annotated[
        Literal["matrices", "blocks", "all"], typer.Option(help="What a step moves; the theorems move matrices alone.")
    ] = "matrices",
    learning_rate: Annotated[float, typer.Option(help="Of the step; the table shows updates over it.")] = 1e-5,
    data: Annotated[str, typer.Option(help="A data set of `gnomon data list`.")] = "shakespeare",
    sequence_length: Annotated[int, typer.Option(min=2, help="Tokens of a sequence; 2: one is read.")] = 32,
    batch_size: Annotated[int, typer.Option(min=1, help="Sequences of a batch.")] = 4,
    batches: Annotated[int, typer.Option(min=1, help="Batches, each with weights of its own seed.")] = 3,
    output: Annotated[Path | None, typer.Option(help="A new folder for tables and figures.", metavar="FOLDER")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure how far one step of SGD moves a model's output, beside the published bounds.

    Activation sizes and gradient norms of all layers come along. A checkpoint is measured as it stands.

    Examples:

    gnomon analyze linear --placements pre,sub,deep --depths 6,12,24,48 --output results/mine

    gnomon analyze runs/shakespeare/model --json
    """
    if output is not None:
        refuse_existing(output)
    from gnomon.analysis.updates import Setting, draw_batches, measure_depths
    from gnomon.data.packing import collate
    from gnomon.models.presets import PRESETS

    if model in PRESETS or model in ("linear", "pattention"):
        fields, placement, depth = read_model(model, override or [])
        windows, rows_of_ids = pack_text(data, sequence_length)
        setting = Setting(
            fields=fields | {"vocab_size": rows_of_ids},
            initialization=initialization,
            gain=read_gain(gain),
            gain_tokens=gain_tokens,
            removed_norms=without_norm or [],
            is_activation_linear=linear_activation,
            moved=moved,
            learning_rate=learning_rate,
        )
        chosen = placements.split(",") if placements else [placement]
        numbers = read_depths(depths) if depths else [depth]
        drawn = draw_batches(windows, collate, batch_size=batch_size, num_batches=batches)
        rows = list(measure_depths(setting, chosen, numbers, drawn))
    else:
        if override or placements or depths or without_norm or linear_activation:
            raise ValueError(
                "a checkpoint is measured as it stands; leave placements, depths and changes of the model out, or name "
                "a preset."
            )
        rows = [
            measure_checkpoint(
                Path(model), data, sequence_length, batch_size, batches, moved=moved, learning_rate=learning_rate
            )
        ]
    from gnomon.report.analysis import update_cells

    if output is not None:
        write(output, rows)
    if as_json:
        print_json({"model": model, "learning_rate": learning_rate, "moved": moved, "rows": rows})
    else:
        print_cells(f"{model}: one step of SGD on {batches} x {batch_size} sequences", *update_cells(rows))


def write(output: Path, rows: list[dict[str, Any]]) -> None:
    """Write a study's numbers, table and figures into a new folder."""
    from gnomon.report.analysis import draw_signals, draw_updates, update_cells
    from gnomon.report.figures import save_figure
    from gnomon.report.tables import to_markdown
    from gnomon.training.checkpoints import publish
    from gnomon.training.records import write_rows

    with publish(output) as folder:
        write_rows(folder / "updates.jsonl", rows)
        (folder / "table.md").write_text(to_markdown(*update_cells(rows)) + "\n", encoding="utf-8")
        save_figure(draw_updates(rows), folder / "updates")
        save_figure(draw_signals(rows), folder / "signals")


def read_model(model: str, overrides: list[str]) -> tuple[dict[str, Any], str, int]:
    """The configuration fields that a word and its overrides stand for, with placement and depth apart.

    Raises:
        ValueError: An override is no `FIELD=VALUE`, or names no field.
    """
    from gnomon.models.presets import preset_fields
    from gnomon.models.sizes import DEFAULTS
    from gnomon.training.text import apply_overrides

    is_word = model in ("linear", "pattention")
    fields = {**SMALL, "projection": model} if is_word else preset_fields(model)
    fields = apply_overrides(fields, overrides)
    for name in fields:
        if name not in DEFAULTS:
            raise ValueError(f"{name} is no configuration field; see the fields of GnomonConfig.")
    placement = fields.pop("norm_placement", DEFAULTS["norm_placement"])
    return fields, placement, fields.pop("num_hidden_layers", DEFAULTS["num_hidden_layers"])


def read_gain(gain: str) -> str | float:
    """A gain's word or its number.

    Raises:
        ValueError: It is neither.

    >>> read_gain("gamma"), read_gain("1.5")
    ('gamma', 1.5)
    """
    if gain in ("own", "gamma"):
        return gain
    try:
        number = float(gain)
    except ValueError:
        number = 0.0
    if not 0.0 < number < float("inf"):
        raise ValueError(f"gain must be own, gamma, or a number above 0; got {gain!r}.")
    return number


def read_depths(depths: str) -> list[int]:
    """Numbers of layers.

    Raises:
        ValueError: One is no whole number of at least 1.

    >>> read_depths("6,12")
    [6, 12]
    """
    words = [word.strip() for word in depths.split(",")]
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise ValueError(f"depths are whole numbers of at least 1, such as 6,12,24; got {depths!r}.")
    return [int(word) for word in words]


def pack_text(data: str, sequence_length: int) -> tuple["PackedText", int]:
    """The training text of a data set as windows of characters, and how many ids there are."""
    from gnomon.data.packing import pack
    from gnomon.data.text import load_text
    from gnomon.data.tokenizers import build_tokenizer

    documents = load_text(name=data).train
    tokenizer = build_tokenizer({"kind": "char"}, documents)
    return pack(documents, tokenizer, sequence_length), len(tokenizer)


def measure_checkpoint(
    folder: Path, data: str, sequence_length: int, batch_size: int, batches: int, *, moved: str, learning_rate: float
) -> dict[str, Any]:
    """One row of a study, for a trained language model and its own tokenizer."""
    from gnomon.analysis.gains import update_bound
    from gnomon.analysis.updates import draw_batches, measure_update, summarize
    from gnomon.data.packing import collate, pack
    from gnomon.data.text import load_text

    model = load_model(folder).double()
    windows = pack(load_text(name=data).train, load_tokenizer(folder, model), sequence_length)
    drawn = draw_batches(windows, collate, batch_size=batch_size, num_batches=batches)
    placed = [{name: tensor.to(model.device) for name, tensor in batch.items()} for batch in drawn]
    seen = [measure_update(model, batch, learning_rate=learning_rate, moved=moved) for batch in placed]
    row = {"placement": model.config.norm_placement, "depth": model.config.num_hidden_layers}
    return row | summarize(seen, [update_bound(model, learning_rate=1.0)])
