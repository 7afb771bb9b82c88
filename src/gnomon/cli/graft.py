"""`gnomon graft`: new parameter tokens for a checkpoint of any model of transformers, trained if asked, or merged."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gnomon.cli.outputs import print_json, print_table, refuse_existing

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

REPORT_FILE = "growth.json"


def graft(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint's folder, of any model, or a .gguf file.")],
    output: Annotated[Path, typer.Argument(metavar="OUT", help="The graft's folder, or the merged checkpoint's.")],
    tokens: Annotated[int | None, typer.Option(min=1, help="Parameter tokens beside each target.")] = None,
    neurons: Annotated[int | None, typer.Option(min=1, help="New neurons of each feed-forward; they merge.")] = None,
    target: Annotated[
        list[str] | None, typer.Option(help="attention, feed_forward, or a regular expression; may be repeated.")
    ] = None,
    score: Annotated[str, typer.Option(help="Of the tokens.")] = "l2_norm_gelu",
    key_std: Annotated[
        float | None, typer.Option(help="Standard deviation of new keys; by their layer's width.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the new keys and of the order of the text.")] = 0,
    data: Annotated[str | None, typer.Option(help="Train on a data set of `gnomon data list`.")] = None,
    source: Annotated[str | None, typer.Option(help="Train on a file, a folder, or a name on the hub.")] = None,
    column: Annotated[str, typer.Option(help="The column of the source that holds the text.")] = "text",
    steps: Annotated[int, typer.Option(min=1, help="Of training, where there is a text.")] = 200,
    learning_rate: Annotated[float, typer.Option(min=0.0, help="The schedule's peak.")] = 2e-3,
    batch_size: Annotated[int, typer.Option(min=1, help="Sequences of a step.")] = 8,
    sequence_length: Annotated[int, typer.Option(min=2, help="Tokens of a sequence.")] = 128,
    evaluation_sequences: Annotated[int, typer.Option(min=1, help="Held-out sequences to score, evenly spread.")] = 64,
    elsewhere: Annotated[
        str | None, typer.Option(help="Another data set, of which the held-out part is scored too.")
    ] = None,
    merge: Annotated[
        Path | None, typer.Option(help="Write CHECKPOINT with this graft merged into its weights.", metavar="GRAFT")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Add parameter tokens to a checkpoint of any model without changing what it computes, and train only them.

    OUT holds the graft alone; CHECKPOINT stays as it is. With --merge it is a checkpoint that needs no gnomon.

    Examples:

    gnomon graft SmolLM2-135M plays --tokens 16 --data shakespeare --steps 200 --elsewhere austen

    gnomon graft bert-base wider --neurons 256

    gnomon graft bert-base bert-wider --merge wider
    """
    refuse_existing(output)
    if data is not None and source is not None:
        raise ValueError("name the text to train on by either --data NAME or --source FILE, and not by both.")
    if elsewhere is not None and data is None and source is None:
        raise ValueError("--elsewhere is scored before and after training; name a text to train on with --data, too.")
    if merge is not None:
        if tokens is not None or neurons is not None:
            raise ValueError("--merge takes the counts from the graft; leave --tokens and --neurons away.")
        _show(output, merged(checkpoint, output, merge), as_json)
        return
    if tokens is None and neurons is None:
        raise ValueError("name --tokens (beside linear layers), --neurons (of the feed-forwards), or both.")
    from gnomon.data.text import load_text
    from gnomon.growth.graft import graft as graft_model
    from gnomon.growth.graft_files import write_graft
    from gnomon.training.checkpoints import publish
    from gnomon.training.records import write_json

    model, tokenizer = _load(checkpoint)
    report = graft_model(
        model,
        num_tokens=tokens,
        num_neurons=neurons,
        targets=target or None,
        score=score,
        key_std=key_std,
        seed=seed,
    )
    summary = report.to_dict()
    if data is not None or source is not None:
        if tokenizer is None:
            raise ValueError(f"{checkpoint} has no tokenizer to read text with; put its tokenizer.json beside it.")
        longest = getattr(model.config, "max_position_embeddings", None)
        if longest is not None and sequence_length > longest:
            raise ValueError(
                f"--sequence-length must be at most {longest}, the positions of {checkpoint}, not {sequence_length}."
            )
        found = {data or str(source): load_text(name=data, source=source, column=column)}
        if elsewhere is not None:
            found[elsewhere] = load_text(name=elsewhere)
        options = {"steps": steps, "learning_rate": learning_rate, "batch_size": batch_size, "seed": seed}
        summary["training"] = {**options, "sequence_length": sequence_length}
        summary["training"]["held_out"] = train_and_score(
            model, tokenizer, found, sequence_length, evaluation_sequences, options
        )
    with publish(output) as folder:
        write_graft(model, folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        write_json(folder / REPORT_FILE, summary)
    _show(output, summary, as_json)


def merged(checkpoint: Path, output: Path, source: Path) -> dict[str, Any]:
    """Write a checkpoint with a graft in its own weights.

    Raises:
        ValueError: The graft does not fit, or cannot be merged.
    """
    from gnomon.growth.graft_files import load_graft
    from gnomon.growth.graft_merge import merge_graft
    from gnomon.training.checkpoints import publish
    from gnomon.training.records import write_json

    model, tokenizer = _load(checkpoint)
    load_graft(model, source)
    summary = merge_graft(model).to_dict()
    with publish(output) as folder:
        model.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        write_json(folder / REPORT_FILE, summary)
    return summary


def train_and_score(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    texts: dict[str, Any],
    length: int,
    sequences: int,
    options: dict[str, Any],
) -> dict[str, Any]:
    """Train on the first of the texts, and score the held-out part of each before and after."""
    from gnomon.data.packing import pack
    from gnomon.evaluation.language_model import evaluate_language_model
    from gnomon.training.grafting import SpreadWindows, train_graft

    held_out = {
        name: SpreadWindows(pack(text.validation, tokenizer, length, allow_short=True), sequences)
        for name, text in texts.items()
    }
    train = pack(next(iter(texts.values())).train, tokenizer, length)

    def scores() -> dict[str, Any]:
        return {name: evaluate_language_model(model, text, batch_size=8).to_dict() for name, text in held_out.items()}

    before = scores()
    progress = _progress(options["steps"])
    train_graft(model, train, pad_token_id=tokenizer.pad_token_id or 0, progress=progress, **options)
    after = scores()
    return {name: {"before": before[name], "after": after[name]} for name in texts}


def _load(checkpoint: Path) -> tuple["PreTrainedModel", "PreTrainedTokenizerBase | None"]:
    """The base and its tokenizer."""
    from transformers.utils import logging

    from gnomon.training.grafting import load_base, load_base_tokenizer

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    path = checkpoint.resolve()  # which a graft remembers
    return load_base(path), load_base_tokenizer(path)


def _progress(steps: int) -> Any:
    """Prints a line for every tenth of the training on stderr."""

    def show(step: int, loss: float) -> None:
        if step % max(1, steps // 10) == 0:
            print(f"step {step} of {steps}: {loss:.4f} nats per token", file=sys.stderr, flush=True)

    return show


def _show(output: Path, summary: dict[str, Any], as_json: bool) -> None:
    """Print what was done."""
    if as_json:
        print_json(summary)
        return
    print_table(
        str(output),
        ["measured on a probe batch", "value"],
        [
            ["exact", "yes" if summary["exact"] else "no"],
            ["relative change of the outputs", f"{summary['gap_relative']:.3g}"],
            ["grafted layers", f"{len(summary['parts']):,}"],
            ["parameters before", f"{summary['parameters_before']:,}"],
            ["parameters after", f"{summary['parameters_after']:,}"],
        ],
    )
    if "training" in summary:
        print_table(
            f"after {summary['training']['steps']} steps",
            ["held-out text", "bits per byte before", "after", "nats per token before", "after"],
            [
                [name, *(f"{row[when][key]:.4f}" for key in ("bits_per_byte", "loss") for when in ("before", "after"))]
                for name, row in summary["training"]["held_out"].items()
            ],
        )
