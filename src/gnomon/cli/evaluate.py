"""`gnomon evaluate`: loss, perplexity and bits per byte over a whole set of text, or tasks of lm-evaluation-harness."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gnomon.cli.loading import load_model, load_tokenizer
from gnomon.cli.outputs import print_json, print_table

if TYPE_CHECKING:
    from gnomon.evaluation.language_model import LanguageModelScore


def evaluate(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="A checkpoint's folder.")],
    data: Annotated[str | None, typer.Option(help="A data set of `gnomon data list`.")] = None,
    source: Annotated[str | None, typer.Option(help="A file, a folder, or a name on the hub.")] = None,
    tasks: Annotated[
        str | None, typer.Option(metavar="NAME,NAME", help="Tasks of lm-evaluation-harness, in place of text.")
    ] = None,
    column: Annotated[str, typer.Option(help="The column of the source that holds the text.")] = "text",
    split: Annotated[
        Literal["validation", "train", "all"], typer.Option(help="Which documents to score.")
    ] = "validation",
    sequence_length: Annotated[int, typer.Option(min=2, help="Tokens of a window.")] = 1024,
    batch_size: Annotated[int, typer.Option(min=1, help="Sequences at a time.")] = 8,
    tokenizer: Annotated[Path | None, typer.Option(help="A tokenizer's folder, if not the checkpoint's.")] = None,
    num_fewshot: Annotated[
        int | None, typer.Option(min=0, help="With --tasks: solved examples before each question.")
    ] = None,
    include_path: Annotated[
        Path | None, typer.Option(help="With --tasks: a folder with YAML files of further tasks.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Score a language model on text it was not trained on, each token exactly once, or on tasks.

    Examples:

    gnomon evaluate runs/shakespeare/model --data shakespeare --sequence-length 128

    gnomon evaluate runs/shakespeare/model --source letters.txt --split all --json

    gnomon evaluate runs/large/model --tasks lambada_openai,hellaswag,piqa,arc_easy,arc_challenge,winogrande
    """
    if sum(choice is not None for choice in (data, source, tasks)) != 1:
        raise ValueError("name what to score on by one of --data NAME, --source FILE and --tasks NAME,NAME.")
    if tasks is None and (num_fewshot is not None or include_path is not None):
        raise ValueError("--num-fewshot and --include-path belong to --tasks; name the tasks, or leave them out.")
    if tasks is not None:
        options = {"num_fewshot": num_fewshot, "batch_size": batch_size, "include_path": include_path}
        _evaluate_tasks(checkpoint, tokenizer, tasks, as_json, **options)
        return
    documents = _read(data, source, column, split)
    score = _score(checkpoint, tokenizer, documents, sequence_length, batch_size)
    if as_json:
        about = {"checkpoint": str(checkpoint), "split": split, "sequence_length": sequence_length}
        print_json({**about, **score.to_dict()})
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


def _read(data: str | None, source: str | None, column: str, split: str) -> dict[str, str]:
    """The documents to score."""
    from gnomon.data.text import load_text

    splits = load_text(name=data, source=source, column=column)
    documents = {} if split == "validation" else dict(splits.train)
    if split != "train":
        for name, text in splits.validation.items():
            documents[name] = documents.get(name, "") + text  # a single document is held out by its last part
    return documents


def _score(
    checkpoint: Path, tokenizer: Path | None, documents: dict[str, str], sequence_length: int, batch_size: int
) -> "LanguageModelScore":
    """The checkpoint's predictions of the documents."""
    from gnomon.data.packing import pack
    from gnomon.evaluation.language_model import evaluate_language_model

    model = load_model(checkpoint)
    windows = pack(documents, load_tokenizer(tokenizer or checkpoint, model), sequence_length, allow_short=True)
    return evaluate_language_model(model, windows, batch_size=batch_size)


def _evaluate_tasks(checkpoint: Path, tokenizer: Path | None, tasks: str, as_json: bool, **options: Any) -> None:
    """Print a line a metric of a task."""
    from gnomon.evaluation.harness import evaluate_tasks

    model = load_model(checkpoint)
    names = [name.strip() for name in tasks.split(",") if name.strip()]
    scores = evaluate_tasks(model, load_tokenizer(tokenizer or checkpoint, model), names, **options)
    if as_json:
        print_json({"checkpoint": str(checkpoint), "scores": [score.to_dict() for score in scores]})
        return
    print_table(
        f"{checkpoint} on tasks of lm-evaluation-harness",
        ["task", "metric", "value", "standard error", "examples in the prompt", "questions"],
        [
            [
                score.task,
                score.metric,
                f"{score.value:.4f}",
                "-" if score.standard_error is None else f"{score.standard_error:.4f}",
                score.num_fewshot,
                score.examples,
            ]
            for score in scores
        ],
    )
