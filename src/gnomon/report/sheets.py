"""Which samples a task's sheet of predictions shows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gnomon.evaluation.retrieval import embed_pairs
from gnomon.report.paintings import painted_samples
from gnomon.report.samples import Sample, classified_samples, retrieved_samples, transcribed_samples, write_samples
from gnomon.training.tasks import find_task

Samples = tuple[list[Sample], str]


def _classes(task: str, model: Any, rows: Any, processor: Any, score: Any) -> Samples:
    names = [name for _, name in sorted(model.config.id2label.items())]
    return classified_samples(model, rows, names, collate=find_task(task).collate(processor, model))


def _transcripts(task: str, model: Any, rows: Any, processor: Any, score: Any) -> Samples:
    return transcribed_samples(rows, score.transcripts)


def _paintings(task: str, model: Any, rows: Any, processor: Any, score: Any) -> Samples:
    return painted_samples(model, rows)


def _texts(task: str, model: Any, rows: Any, processor: Any, score: Any) -> Samples:
    images, words, _, _ = embed_pairs(model, rows, collate=find_task(task).collate(processor, model))
    return retrieved_samples(rows, images @ words.T, list(dict.fromkeys(rows.texts)))


SHEETS: dict[str, Callable[..., Samples]] = {
    "audio-classification": _classes,
    "image-classification": _classes,
    "image-text-contrastive": _texts,
    "masked-image-modeling": _paintings,
    "speech-recognition": _transcripts,
    "speech-to-text": _transcripts,
}
"""What makes the samples of a task, by the task's name."""


def check_sheet(task: str, file: Path) -> None:
    """Refuse a sheet that cannot be made, before anything is computed.

    Args:
        task: Its name.
        file: Where the sheet goes.

    Raises:
        ValueError: The task has no samples, or the file's ending is another one.
        FileExistsError: There is a folder of this name, or a file where its folder should be.
    """
    if task not in SHEETS:
        raise ValueError(f"task {task} has no sheet of samples; leave --samples out (there are {', '.join(SHEETS)}).")
    if file.suffix not in (".html", ".png"):
        raise ValueError(f"a sheet of samples must end in .html or .png, not {file.suffix or 'nothing'!r} ({file}).")
    if file.is_dir():
        raise FileExistsError(f"the sheet of samples {file} is a folder: name a file.")
    if blocked := [place for place in file.parents if place.exists() and not place.is_dir()]:
        raise FileExistsError(f"the sheet of samples {file} would lie in {blocked[0]}, which is a file: name another.")


def write_sheet(file: Path, task: str, model: Any, rows: Any, processor: Any, score: Any, title: str) -> Path:
    """Write a sheet of a model's predictions.

    Args:
        file: Ends in `.html` or `.png`; a file of that name is replaced.
        task: Its name, one of `SHEETS`.
        model: Whose predictions they are.
        rows: What was predicted, as encoded for the evaluation.
        processor: What encoded it.
        score: Of the evaluation.
        title: Stands above.
    """
    samples, summary = SHEETS[task](task, model, rows, processor, score)
    return write_samples(file, samples, title, summary)
