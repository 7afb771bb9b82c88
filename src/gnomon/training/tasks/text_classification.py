"""The class of a text."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gnomon.data.classification import LabeledText, collate_labeled, encode_labeled, label_names, majority_label
from gnomon.data.tables import Row, TableSplits, load_table
from gnomon.evaluation.classification import ClassificationScore, evaluate_classifier, macro_f1
from gnomon.training.data_options import DataOptions
from gnomon.training.options import Recipe
from gnomon.training.tasks import ORIGIN_KEYS
from gnomon.training.tasks.task import Collate, Task
from gnomon.training.tasks.text import pad_id, recipe_tokenizer


def load(data: DataOptions) -> TableSplits:
    """Rows of text and label."""
    columns = (data.column, data.label_column or "label")
    return load_table(columns, **data.model_dump(include=set(ORIGIN_KEYS)))


def build_processor(recipe: Recipe, rows: Sequence[Row]) -> PreTrainedTokenizerBase:
    """The recipe's tokenizer."""
    return recipe_tokenizer(recipe, {str(number): text for number, (text, _) in enumerate(rows)})


def encode(
    rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase, data: DataOptions, labels: Sequence[str], training: bool
) -> LabeledText:
    """Every text with its label's number."""
    assert data.sequence_length is not None
    return encode_labeled(rows, tokenizer, data.sequence_length, labels)


def make_collate(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> Collate:
    """Texts are filled on the right."""
    return partial(collate_labeled, pad_token_id=pad_id(tokenizer))


def evaluate(
    model: PreTrainedModel, rows: Any, tokenizer: PreTrainedTokenizerBase, batch_size: int
) -> ClassificationScore:
    """Accuracy and macro F1."""
    return evaluate_classifier(model, rows, collate=make_collate(tokenizer, model), batch_size=batch_size)


def baselines(train: LabeledText, validation: LabeledText) -> dict[str, dict[str, float]]:
    """The most frequent class for everything."""
    answer = majority_label(train.labels)
    answers = np.full(len(validation), answer)
    return {
        "majority class": {
            "accuracy": float((validation.labels == answer).mean()),
            "macro_f1": macro_f1(answers, validation.labels),
        }
    }


TASK = Task(
    measures=("accuracy", "macro_f1"),
    load=load,
    build_processor=build_processor,
    encode=encode,
    collate=make_collate,
    evaluate=evaluate,
    labels=label_names,
    baselines=baselines,
    classes=lambda config: config.num_labels,
)
