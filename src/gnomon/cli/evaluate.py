"""`gnomon evaluate`: a model's score by its own task over a whole set, or tasks of lm-evaluation-harness."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gnomon.cli.loading import load_model, load_tokenizer
from gnomon.cli.outputs import print_json, print_table

if TYPE_CHECKING:
    from gnomon.training.tasks.task import Score

TITLES = {
    "loss": "loss (nats per target)",
    "perplexity": "perplexity (per token)",
    "bits_per_byte": "bits per byte",
    "pseudo_perplexity": "pseudo-perplexity (per token)",
    "accuracy": "accuracy (share)",
    "macro_f1": "F1, mean of the classes",
    "character_error_rate": "character error rate (share)",
    "word_error_rate": "word error rate (share)",
    **{
        f"{way}_recall_at_{rank}": f"{way.replace('_', ' ')}, recall@{rank} (share)"
        for way in ("image_to_text", "text_to_image")
        for rank in (1, 5, 10)
    },
    "chance": "recall@1 of guessing (share)",
    "level_error": "mean error of a hidden pixel (levels of 255)",
    "bleu": "BLEU (0 to 100)",
    "chrf": "chrF (0 to 100)",
    "bleu_signature": "BLEU as computed",
    "tokens": "tokens scored",
    "unknown": "of which unknown to the tokenizer",
}
"""How the table names the numbers of a score."""


def evaluate(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="A checkpoint's folder.")],
    data: Annotated[str | None, typer.Option(help="A data set of `gnomon data list`.")] = None,
    source: Annotated[str | None, typer.Option(help="A file, a folder, or a name on the hub.")] = None,
    tasks: Annotated[
        str | None, typer.Option(metavar="NAME,NAME", help="Tasks of lm-evaluation-harness, in place of text.")
    ] = None,
    column: Annotated[str, typer.Option(help="The column of the source that holds the text.")] = "text",
    label_column: Annotated[str | None, typer.Option(help="Of a classifier: the column of the class.")] = None,
    source_column: Annotated[str | None, typer.Option(help="Of a translation: the column it begins from.")] = None,
    target_column: Annotated[str | None, typer.Option(help="Of a translation: the column it ends in.")] = None,
    audio_column: Annotated[str | None, typer.Option(help="Of sounds: the column of the sound.")] = None,
    text_column: Annotated[str | None, typer.Option(help="Of speech: the column of the transcript.")] = None,
    image_column: Annotated[str | None, typer.Option(help="Of images: the column of the image.")] = None,
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
    baselines: Annotated[
        bool, typer.Option("--baselines", help="Score what a model has to beat as well: frequencies, or copying.")
    ] = False,
    samples: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Of sounds and images: write a sheet of predictions, HTML or PNG."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Score a model by its own measure on text it was not trained on, or a language model on tasks.

    A language model is asked for each token once, a masked one for each hidden token once; a classifier is scored by
    accuracy and F1, a translation by BLEU and chrF, transcripts of speech by their error rates.

    Examples:

    gnomon evaluate runs/shakespeare/model --data shakespeare --sequence-length 128

    gnomon evaluate runs/shakespeare/model --source letters.txt --split all --json

    gnomon evaluate runs/classification/model --data wordnet --sequence-length 64 --baselines

    gnomon evaluate runs/speech-ctc/model --data prompts-en --baselines --samples sheet.html

    gnomon evaluate runs/image-digits/model --data digits --baselines --samples sheet.png

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
    named = {
        "name": data,
        "source": source,
        "column": column,
        "label_column": label_column,
        "source_column": source_column,
        "target_column": target_column,
        "audio_column": audio_column,
        "text_column": text_column,
        "image_column": image_column,
        "sequence_length": sequence_length,
    }
    score, floors, rows = _score(checkpoint, tokenizer, named, split, batch_size, baselines, samples)
    if as_json:
        about = {"checkpoint": str(checkpoint), "split": split, "sequence_length": sequence_length}
        print_json({**about, **score.to_dict()} | ({"baselines": floors} if baselines else {}))
        return
    print_table(
        f"{checkpoint} on {data or source}, {split}"
        + (f", up to {sequence_length} tokens at a time" if isinstance(rows, list | dict) else ""),
        ["measure", "value"],
        [
            *([TITLES.get(name, name), format_measure(value)] for name, value in score.to_dict().items()),
            ["documents" if isinstance(rows, dict) else "rows", f"{len(rows):,}"],
            *(
                [f"{floor}: {TITLES.get(name, name)}", format_measure(value)]
                for floor, values in floors.items()
                for name, value in values.items()
            ),
        ],
    )


def format_measure(value: object) -> str:
    """A number of a score as a reader wants it."""
    return f"{value:.4f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _score(
    checkpoint: Path,
    tokenizer: Path | None,
    named: dict[str, Any],
    split: str,
    batch_size: int,
    baselines: bool,
    samples: Path | None,
) -> tuple["Score", dict[str, dict[str, float]], Any]:
    """The checkpoint's score by its own task, what it has to beat, and the rows that were read.

    Raises:
        ValueError: The model is of no task that can be scored so.
    """
    from gnomon.report.sheets import check_sheet, write_sheet
    from gnomon.training.data_options import DataOptions
    from gnomon.training.tasks import TASKS, find_task, task_of_head

    model = load_model(checkpoint, is_any=True)
    name = task_of_head(type(model).__name__)
    if name is None:
        raise ValueError(f"{checkpoint} holds a {type(model).__name__}, which gnomon evaluate has no score for.")
    task = find_task(name)
    if samples is not None:
        check_sheet(name, samples)
    given = {key: value for key, value in named.items() if value is not None}
    if "sequence_length" not in TASKS[name].needs:
        del given["sequence_length"]
    options = DataOptions(**task.settled(model.config) | given)
    options.check_for(name)
    if task.load_processor is None:
        chosen: Any = load_tokenizer(tokenizer or checkpoint, model)
    elif tokenizer is None:
        chosen = task.load_processor(checkpoint, model)
    else:
        raise ValueError(f"--tokenizer is given, but the model has a processor for task {name}; leave it out.")
    splits = task.load(options)
    rows = task.join(splits) if split == "all" else getattr(splits, split)
    labels = [label for _, label in sorted(model.config.id2label.items())]
    encoded = task.encode(rows, chosen, options, labels, False)
    floors = {}
    if baselines:
        floors = task.baselines(task.encode(splits.train, chosen, options, labels, False), encoded)
        if not floors:
            raise ValueError(f"task {name} has no baseline to compare with; leave --baselines out.")
    score = task.evaluate(model, encoded, chosen, batch_size)
    if samples is not None:
        title = f"{checkpoint.parent.name}/{checkpoint.name} on {named['name'] or named['source']}, {split}"
        write_sheet(samples, name, model, encoded, chosen, score, title)
    return score, floors, rows


def _evaluate_tasks(checkpoint: Path, tokenizer: Path | None, tasks: str, as_json: bool, **options: Any) -> None:
    """Print a line a metric of a task."""
    from gnomon.evaluation.harness import evaluate_tasks

    model = load_model(checkpoint, is_any=True)
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
