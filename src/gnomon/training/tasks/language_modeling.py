"""The next token of plain text, packed into windows."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gnomon.data.packing import PackedText, collate, pack
from gnomon.data.text import TextSplits, load_text
from gnomon.evaluation.language_model import LanguageModelScore, evaluate_language_model
from gnomon.models.losses import token_loss
from gnomon.training.data_options import DataOptions
from gnomon.training.options import Recipe
from gnomon.training.tasks import ORIGIN_KEYS
from gnomon.training.tasks.task import Collate, EvenRows, Task
from gnomon.training.tasks.text import pad_id, recipe_tokenizer


def load(data: DataOptions) -> TextSplits:
    """The documents of both sides."""
    return load_text(column=data.column, **data.model_dump(include=set(ORIGIN_KEYS)))


def build_processor(recipe: Recipe, documents: Mapping[str, str]) -> PreTrainedTokenizerBase:
    """The recipe's tokenizer."""
    return recipe_tokenizer(recipe, documents)


def encode(
    documents: Mapping[str, str],
    tokenizer: PreTrainedTokenizerBase,
    data: DataOptions,
    labels: Sequence[str],
    training: bool,
) -> PackedText:
    """Windows that share one id with the next; a text to evaluate on may be shorter than one."""
    assert data.sequence_length is not None
    return pack(documents, tokenizer, data.sequence_length, allow_short=not training)


def make_collate(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> Collate:
    """Windows of one length are stacked."""
    return partial(collate, pad_token_id=pad_id(tokenizer))


def next_token_loss(
    model: Any, batch: Mapping[str, Tensor], num_targets: Tensor | int, label_smoothing: float
) -> Tensor:
    """The model's own loss; with smoothing that of `aligned_loss`, where every label is one place further on."""
    if not label_smoothing:
        loss: Tensor = model(**batch, num_items_in_batch=num_targets).loss
        return loss
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    logits, labels = model(**inputs).logits[:, :-1], batch["labels"][:, 1:]
    return token_loss(logits, labels, smoothing=label_smoothing, num_items=num_targets)


def evaluate(
    model: PreTrainedModel, windows: Any, tokenizer: PreTrainedTokenizerBase, batch_size: int
) -> LanguageModelScore:
    """Loss, perplexity and bits per byte."""
    return evaluate_language_model(model, windows, batch_size=batch_size)


class SomeWindows(EvenRows):
    """Some windows of a text; their bytes and characters are the whole's in proportion.

    Args:
        rows: All of them.
        count: How many are taken.
    """

    def __init__(self, rows: PackedText, count: int) -> None:
        super().__init__(rows, count)
        share = self.count / len(rows)
        self.num_bytes = max(1, round(rows.num_bytes * share))
        self.num_characters = max(1, round(rows.num_characters * share))
        self.num_unknown = round(rows.num_unknown * share)


TASK = Task(
    measures=("perplexity", "bits_per_byte"),
    load=load,
    build_processor=build_processor,
    encode=encode,
    collate=make_collate,
    evaluate=evaluate,
    loss=next_token_loss,
    part=SomeWindows,
)
