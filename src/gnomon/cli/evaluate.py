"""`gnomon evaluate`: loss, perplexity and bits per byte over a whole set of text."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from gnomon.cli.loading import load_model, load_tokenizer
from gnomon.cli.outputs import print_json, print_table


def evaluate(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="A checkpoint's folder.")],
    data: Annotated[str | None, typer.Option(help="A data set of `gnomon data list`.")] = None,
    source: Annotated[str | None, typer.Option(help="A file, a folder, or a name on the hub.")] = None,
    column: Annotated[str, typer.Option(help="The column of the source that holds the text.")] = "text",
    split: Annotated[
        Literal["validation", "train", "all"], typer.Option(help="Which documents to score.")
    ] = "validation",
    sequence_length: Annotated[int, typer.Option(min=2, help="Tokens of a window.")] = 1024,
    batch_size: Annotated[int, typer.Option(min=1, help="Sequences at a time.")] = 8,
    tokenizer: Annotated[Path | None, typer.Option(help="A tokenizer's folder, if not the checkpoint's.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Score a language model on text it was not trained on, each token exactly once.

    Examples:

    gnomon evaluate runs/shakespeare/model --data shakespeare --sequence-length 128

    gnomon evaluate runs/shakespeare/model --source letters.txt --split all --json
    """
    if (data is None) == (source is None):
        raise ValueError("name the text to score by either --data NAME or --source FILE, and not by both.")
    from gnomon.data.packing import pack
    from gnomon.data.text import load_text
    from gnomon.evaluation.language_model import evaluate_language_model

    splits = load_text(name=data, source=source, column=column)
    documents = {} if split == "validation" else dict(splits.train)
    if split != "train":
        for name, text in splits.validation.items():
            documents[name] = documents.get(name, "") + text  # a single document is held out by its last part
    model = load_model(checkpoint)
    chosen = load_tokenizer(tokenizer or checkpoint, model)
    windows = pack(documents, chosen, sequence_length, allow_short=True)
    score = evaluate_language_model(model, windows, batch_size=batch_size)
    if as_json:
        print_json(
            {
                "checkpoint": str(checkpoint),
                "split": split,
                "sequence_length": sequence_length,
                **score.to_dict(),
            }
        )
        return
    print_table(
        f"{checkpoint} on {data or source}, {split}, windows of {sequence_length} tokens",
        ["measure", "value"],
        [
            ["loss (nats per token)", f"{score.loss:.4f}"],
            ["perplexity (per token)", f"{score.perplexity:.3f}"],
            ["bits per byte", f"{score.bits_per_byte:.4f}"],
            ["tokens scored", f"{score.tokens:,}"],
            ["of which unknown to the tokenizer", f"{score.unknown:,}"],
            ["bytes", f"{score.bytes:,}"],
            ["documents", f"{len(documents):,}"],
        ],
    )
