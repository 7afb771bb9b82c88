"""Zero-shot and few-shot tasks through lm-evaluation-harness, with its own wrapper of transformers' models."""

import contextlib
import difflib
import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnomon.optional import import_optional

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

PAPER_TASKS = ("lambada_openai", "hellaswag", "piqa", "arc_easy", "arc_challenge", "winogrande")
"""The tasks that TokenFormer's zero-shot table reports."""

BOOTSTRAP_SAMPLES = 1000


@dataclass(frozen=True)
class TaskScore:
    """One metric of one task, as lm-evaluation-harness computes it.

    Attributes:
        task: The task's name.
        metric: The metric's name.
        value: What it came to.
        standard_error: Of the value, over the task's examples; None where the metric has none.
        num_fewshot: Solved examples before each question.
        examples: How many questions were asked.
        version: The task's version; numbers of different versions cannot be compared.
    """

    task: str
    metric: str
    value: float
    standard_error: float | None
    num_fewshot: int
    examples: int
    version: str

    def to_dict(self) -> dict[str, Any]:
        """The fields, for JSON."""
        return asdict(self)


def evaluate_tasks(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    tasks: Sequence[str],
    *,
    num_fewshot: int | None = None,
    batch_size: int = 8,
    include_path: Path | None = None,
    limit: int | None = None,
) -> list[TaskScore]:
    """Score a causal language model on tasks of lm-evaluation-harness.

    Its built-in tasks load their questions from the Hugging Face hub; a task of your own is a YAML file that may name
    local data. The order of few-shot examples, and all else that is drawn, is the harness's own and fixed.

    Args:
        model: A causal language model in evaluation mode.
        tokenizer: The model's.
        tasks: Names of tasks or groups of tasks.
        num_fewshot: Solved examples before each question; each task's own number if None.
        batch_size: Requests at a time.
        include_path: A folder with YAML files of further tasks.
        limit: At most so many questions a task, for a trial.

    Returns:
        A row a metric of a task, in the order of the tasks.

    Raises:
        ValueError: There is no such task, or a number is out of range.
        FileNotFoundError: There is no such folder.
        MissingPackageError: The harness is not installed.
    """
    for name, number, least in (("num_fewshot", num_fewshot, 0), ("batch_size", batch_size, 1), ("limit", limit, 1)):
        if number is not None and number < least:
            raise ValueError(f"{name} must be at least {least}; got {number}")
    if include_path is not None and not include_path.is_dir():
        raise FileNotFoundError(f"there is no folder {include_path} with task files: name one that holds YAML files")
    with _quiet():
        harness = import_optional("lm_eval", "lm-eval")
        manager = _find_tasks(tasks, include_path)
        results = harness.simple_evaluate(
            wrap(model, tokenizer, batch_size=batch_size),
            tasks=list(tasks),
            num_fewshot=num_fewshot,
            task_manager=manager,
            limit=limit,
            bootstrap_iters=BOOTSTRAP_SAMPLES,
            log_samples=False,
        )
    return list(_rows(results))


def wrap(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", *, batch_size: int = 8) -> Any:
    """The harness's own `HFLM` around a model that is loaded already.

    Args:
        model: A causal language model; longer requests than its `max_position_embeddings` lose their beginning.
        tokenizer: The model's.
        batch_size: Requests at a time.

    Returns:
        The `HFLM`, with `loglikelihood`, `loglikelihood_rolling` and `generate_until`.

    Raises:
        MissingPackageError: The harness is not installed.
    """
    with _quiet():
        huggingface = import_optional("lm_eval.models.huggingface", "lm-eval")
        return huggingface.HFLM(model, backend="causal", tokenizer=tokenizer, batch_size=batch_size)


def _find_tasks(tasks: Sequence[str], include_path: Path | None) -> "TaskManager":
    """An index that has all the tasks; the thousands of built-in ones are only looked through when one is needed."""
    from lm_eval.tasks import TaskManager

    if not tasks:
        raise ValueError(f"name at least one task, for example {PAPER_TASKS[0]}")
    local = str(include_path) if include_path is not None else None
    manager = TaskManager(include_path=local, include_defaults=False)
    if not set(tasks) <= set(manager.all_tasks):
        manager = TaskManager(include_path=local)
    for task in tasks:
        if task not in manager.all_tasks:
            near = difflib.get_close_matches(task, manager.all_tasks, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "name one of `lm-eval ls tasks`, or a folder with its YAML"
            raise ValueError(f"lm-evaluation-harness has no task {task!r}; {hint}")
    return manager


def _rows(results: dict[str, Any]) -> Iterator[TaskScore]:
    """The metrics among what the harness returns, groups' means among them."""
    for task, found in results["results"].items():
        for key, value in found.items():
            metric, _, filtered = key.partition(",")
            if not filtered or metric.endswith("_stderr"):
                continue
            error = found.get(f"{metric}_stderr,{filtered}")
            yield TaskScore(
                task=task,
                metric=metric if filtered == "none" else f"{metric} ({filtered})",
                value=float(value),
                standard_error=float(error) if isinstance(error, int | float) else None,
                num_fewshot=int(results["n-shot"].get(task, 0)),
                examples=int(found.get("sample_len", results["n-samples"].get(task, {}).get("effective", 0))),
                version=str(results["versions"].get(task, "")),
            )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the harness's remarks off standard output, which may be a JSON document, and its log to what went wrong."""
    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        logger.setLevel(level)
