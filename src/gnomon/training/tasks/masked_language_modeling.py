"""Hidden tokens of plain text, seen from both sides."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gnomon.data.masking import DEFAULT_MASK_PROBABILITY, MaskableText, MaskedText, mask_id_of
from gnomon.data.packing import IGNORED_LABEL, collate, pack
from gnomon.data.tokenizers import MASK
from gnomon.evaluation.masked import MaskedLanguageModelScore, evaluate_masked_language_model, head_at
from gnomon.evaluation.ngrams import NGramModel
from gnomon.models.losses import token_loss
from gnomon.training.data_options import DataOptions
from gnomon.training.options import Recipe
from gnomon.training.tasks.language_modeling import load
from gnomon.training.tasks.task import Collate, Task
from gnomon.training.tasks.text import pad_id, recipe_tokenizer


def build_processor(recipe: Recipe, documents: Mapping[str, str]) -> PreTrainedTokenizerBase:
    """The recipe's tokenizer, with a mask token."""
    tokenizer = recipe_tokenizer(recipe, documents, {"mask_token": MASK})
    mask_id_of(tokenizer)
    return tokenizer


def encode(
    documents: Mapping[str, str],
    tokenizer: PreTrainedTokenizerBase,
    data: DataOptions,
    labels: Sequence[str],
    training: bool,
) -> MaskableText | MaskedText:
    """Windows with tokens hidden at random to train on; whole ones to evaluate on."""
    assert data.sequence_length is not None
    packed = pack(documents, tokenizer, data.sequence_length, allow_short=not training)
    windows = MaskableText(packed, tokenizer.all_special_ids)
    if not training:
        return windows
    return MaskedText(windows, tokenizer, data.mask_probability or DEFAULT_MASK_PROBABILITY)


def make_collate(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> Collate:
    """Windows of one length are stacked."""
    return partial(collate, pad_token_id=pad_id(tokenizer))


def hidden_token_loss(
    model: Any, batch: Mapping[str, Tensor], num_targets: Tensor | int, label_smoothing: float
) -> Tensor:
    """The loss of `aligned_loss`, with the output head at the hidden tokens alone."""
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    hidden = batch["labels"] != IGNORED_LABEL
    with head_at(model, hidden):
        logits = model(**inputs).logits
    return token_loss(logits, batch["labels"][hidden], smoothing=label_smoothing, num_items=num_targets)


def evaluate(
    model: PreTrainedModel, windows: Any, tokenizer: PreTrainedTokenizerBase, batch_size: int
) -> MaskedLanguageModelScore:
    """Pseudo-perplexity: every token is hidden once."""
    return evaluate_masked_language_model(model, windows, mask_token_id=mask_id_of(tokenizer), batch_size=batch_size)


def baselines(train: MaskableText, validation: MaskableText) -> dict[str, dict[str, float]]:
    """What the tokens' frequencies alone say of a hidden token."""
    ids = train.text_ids
    vocab_size = int(max(ids.max(), validation.text_ids.max())) + 1
    counted = NGramModel(1, vocab_size).fit(ids)
    loss = float(-np.log(counted.probabilities(validation.text_ids)).mean())
    most_frequent = np.bincount(ids).argmax()
    return {
        "unigram": {
            "loss": loss,
            "pseudo_perplexity": float(np.exp(loss)),
            "accuracy": float((validation.text_ids == most_frequent).mean()),
        }
    }


TASK = Task(
    measures=("pseudo_perplexity", "accuracy"),
    load=load,
    build_processor=build_processor,
    encode=encode,
    collate=make_collate,
    evaluate=evaluate,
    loss=hidden_token_loss,
    baselines=baselines,
)
