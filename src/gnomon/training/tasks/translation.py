"""Sentences in another language, written by an encoder-decoder."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gnomon.data.tables import Row, TableSplits, load_table
from gnomon.data.translation import SentencePairs, collate_pairs, encode_pairs
from gnomon.evaluation.translation import TranslationScore, corpus_scores, evaluate_translation
from gnomon.optional import import_optional
from gnomon.training.data_options import DataOptions
from gnomon.training.options import Recipe
from gnomon.training.tasks import ORIGIN_KEYS
from gnomon.training.tasks.task import Collate, EvenRows, Task
from gnomon.training.tasks.text import pad_id, recipe_tokenizer


def load(data: DataOptions) -> TableSplits:
    """Rows of source and target; that the score's package is missing is said here, not after training."""
    import_optional("sacrebleu", "translation")
    assert data.source_column is not None
    assert data.target_column is not None
    return load_table((data.source_column, data.target_column), **data.model_dump(include=set(ORIGIN_KEYS)))


def build_processor(recipe: Recipe, rows: Sequence[Row]) -> PreTrainedTokenizerBase:
    """One tokenizer for both languages, so that the two stacks share a vocabulary."""
    return recipe_tokenizer(recipe, {f"{number}": "\n".join(row) for number, row in enumerate(rows)})


def encode(
    rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase, data: DataOptions, labels: Sequence[str], training: bool
) -> SentencePairs:
    """Pairs of ids; what is too long is left out of training, and cut for an evaluation."""
    assert data.sequence_length is not None
    return encode_pairs(rows, tokenizer, data.sequence_length, cut=not training)


def make_collate(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> Collate:
    """Pairs are filled on the right, and the decoder reads the labels one place late."""
    return partial(collate_pairs, pad_token_id=pad_id(tokenizer), start_token_id=model.config.decoder_start_token_id)


def finish_model(model: PreTrainedModel, recipe: Recipe) -> None:
    """A translation may be as long as the longest that was learned from, where the recipe does not say."""
    lengths = [recipe.stage_data(stage).sequence_length or 0 for stage in range(len(recipe.stages))]
    if recipe.generation is None or recipe.generation.max_new_tokens is None:
        model.generation_config.max_new_tokens = max(lengths)


def evaluate(
    model: PreTrainedModel, pairs: Any, tokenizer: PreTrainedTokenizerBase, batch_size: int
) -> TranslationScore:
    """BLEU and chrF of translations written as the model's generation settings say."""
    return evaluate_translation(
        model,
        pairs,
        collate=make_collate(tokenizer, model),
        decode=partial(tokenizer.decode, skip_special_tokens=True),
        batch_size=batch_size,
    )


def baselines(train: SentencePairs, validation: SentencePairs) -> dict[str, dict[str, float]]:
    """The source itself as its translation."""
    sources, references = zip(*validation.texts, strict=True)
    bleu, chrf, _ = corpus_scores(sources, references)
    return {"copying the source": {"bleu": bleu, "chrf": chrf}}


def count(batch: Mapping[str, Tensor]) -> int:
    """Tokens of the sources and of the targets."""
    return int(batch["attention_mask"].sum()) + int((batch["labels"] != -100).sum())


class SomePairs(EvenRows):
    """Some pairs, evenly spread, with their texts.

    Args:
        rows: All of them.
        count: How many are taken.
    """

    def __init__(self, rows: SentencePairs, count: int) -> None:
        super().__init__(rows, count)
        self.texts = [rows.texts[self.place(index)] for index in range(self.count)]


TASK = Task(
    measures=("perplexity", "bleu", "chrf"),
    load=load,
    build_processor=build_processor,
    encode=encode,
    collate=make_collate,
    evaluate=evaluate,
    finish_model=finish_model,
    baselines=baselines,
    count=count,
    part=SomePairs,
)
