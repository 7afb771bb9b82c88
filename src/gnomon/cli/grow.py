"""`gnomon grow` and `gnomon shrink`: a larger checkpoint that computes the same, and the way back."""

from pathlib import Path
from typing import Annotated, Any

import typer

from gnomon.cli.outputs import print_json, print_table, refuse_existing

Checkpoint = Annotated[Path, typer.Argument(help="A checkpoint's folder; its optimizer's state goes along.")]
Output = Annotated[Path, typer.Argument(metavar="OUT", help="The new checkpoint's folder.")]
AttentionTokens = Annotated[int | None, typer.Option(min=1, help="Of query, key and value, after the change.")]
OutputTokens = Annotated[int | None, typer.Option(min=1, help="Of the output projection.")]
FeedForwardTokens = Annotated[int | None, typer.Option(min=1, help="Of the feed-forward layer.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def grow(
    checkpoint: Checkpoint,
    output: Output,
    attention_tokens: AttentionTokens = None,
    output_tokens: OutputTokens = None,
    feed_forward_tokens: FeedForwardTokens = None,
    layers: Annotated[int | None, typer.Option(min=1, help="Layers; new ones start as the identity.")] = None,
    intermediate_size: Annotated[int | None, typer.Option(min=1, help="Width of a linear feed-forward.")] = None,
    heads: Annotated[int | None, typer.Option(min=1, help="Attention heads.")] = None,
    head_dim: Annotated[int | None, typer.Option(min=1, help="Width of a head.")] = None,
    hidden_size: Annotated[int | None, typer.Option(min=1, help="Width of the residual stream.")] = None,
    encoder_layers: Annotated[int | None, typer.Option(min=1, help="Layers of an encoder-decoder's encoder.")] = None,
    decoder_layers: Annotated[int | None, typer.Option(min=1, help="Layers of its decoder.")] = None,
    tower: Annotated[str | None, typer.Option(help="Of a model of two towers: text or vision.")] = None,
    init: Annotated[
        str,
        typer.Option(help="exact, replicate, random, reference; of widths exact, net2net, hypercloning."),
    ] = "exact",
    score_scale: Annotated[
        str | None, typer.Option(help="tau of tokens: hold or count; the init's own if unset.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the new parameters.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Make a checkpoint larger without changing what it computes, and measure that.

    Examples:

    gnomon grow runs/small/model larger --attention-tokens 256 --feed-forward-tokens 1024

    gnomon grow runs/small/stage-0/checkpoint-1000 deeper --layers 8
    """
    sizes = given(
        num_attention_tokens=attention_tokens,
        num_output_tokens=output_tokens,
        num_feed_forward_tokens=feed_forward_tokens,
        num_hidden_layers=layers,
        encoder_layers=encoder_layers,
        decoder_layers=decoder_layers,
        intermediate_size=intermediate_size,
        num_attention_heads=heads,
        head_dim=head_dim,
        hidden_size=hidden_size,
    )
    refuse_existing(output)
    from gnomon.growth.api import grow as grow_model

    def change(model: Any, optimizer: Any) -> Any:
        options = {"init": init, "score_scale": score_scale, "seed": seed, "tower": tower}
        return grow_model(model, optimizer=optimizer, **options, **sizes)

    run(checkpoint, output, change, as_json)


def shrink(
    checkpoint: Checkpoint,
    output: Output,
    attention_tokens: AttentionTokens = None,
    output_tokens: OutputTokens = None,
    feed_forward_tokens: FeedForwardTokens = None,
    importance: Annotated[str, typer.Option(help="contribution, or last to drop the last tokens.")] = "contribution",
    as_json: AsJson = False,
) -> None:
    """Drop the parameter tokens that matter least, and measure what that changed.

    Example: gnomon shrink larger smaller --feed-forward-tokens 512
    """
    sizes = given(
        num_attention_tokens=attention_tokens,
        num_output_tokens=output_tokens,
        num_feed_forward_tokens=feed_forward_tokens,
    )
    refuse_existing(output)
    from gnomon.growth.shrink import shrink as shrink_model

    def change(model: Any, optimizer: Any) -> Any:
        return shrink_model(model, importance=importance, optimizer=optimizer, **sizes)

    run(checkpoint, output, change, as_json)


def given(**sizes: int | None) -> dict[str, int]:
    """The sizes that were named."""
    return {name: value for name, value in sizes.items() if value is not None}


def run(checkpoint: Path, output: Path, change: Any, as_json: bool) -> None:
    """Change a checkpoint and show the report."""
    from transformers.utils import logging

    from gnomon.training.regrow import change_checkpoint

    logging.disable_progress_bar()
    _, summary = change_checkpoint(checkpoint, output, change)
    if as_json:
        print_json(summary)
        return
    columns = ("tokens_before", "tokens_after", "score_scale_before", "score_scale_after")
    rows = [
        [part["name"], *(cell(part.get(name)) for name in columns), "yes" if part["exact"] else "no"]
        for part in summary["parts"]
    ]
    print_table(str(output), ["part", "before", "after", "tau before", "tau after", "exact"], rows)
    print_table(
        "",
        ["measured on a probe batch", "value"],
        [
            ["exact", "yes" if summary["exact"] else "no"],
            ["relative change of the outputs, float64", f"{summary['gap_relative']:.3g}"],
            [
                f"relative change of the outputs, {summary['stored_dtype']} as stored",
                f"{summary['gap_relative_stored']:.3g}",
            ],
            ["parameters before", f"{summary['parameters_before']:,}"],
            ["parameters after", f"{summary['parameters_after']:,}"],
            ["parameters that nothing can train", f"{summary['dead_parameters']:,}"],
        ],
    )


def cell(value: object) -> str:
    """A value as a table shows it."""
    return "" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)
