"""How good translations are: BLEU and chrF of whole sets through sacreBLEU, and the loss of the references."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
from torch.nn import functional as F

from gnomon.evaluation.batches import (
    Rows,
    batches_by_length,
    check_batch_size,
    check_vocabulary,
    evaluation_mode,
    move,
)


class Pairs(Rows, Protocol):
    """Rows of ids, and every pair as text."""

    texts: Sequence[tuple[str, ...]]


@dataclass(frozen=True)
class TranslationScore:
    """A model's translations of a whole set.

    Attributes:
        loss: Nats per token of the references, their ends included, given what stands before.
        perplexity: exp(loss).
        bleu: From 0 to 100.
        chrf: chrF2, from 0 to 100.
        sentences: How many were translated.
        bleu_signature: How sacreBLEU computed it, version and tokenization included.
    """

    loss: float
    perplexity: float
    bleu: float
    chrf: float
    sentences: int
    bleu_signature: str

    def to_dict(self) -> dict[str, Any]:
        """The fields, for JSON."""
        return asdict(self)


def evaluate_translation(
    model: Any,
    pairs: Pairs,
    *,
    collate: Callable[[Sequence[Any]], Mapping[str, torch.Tensor]],
    decode: Callable[[list[int]], str],
    batch_size: int = 16,
    generation: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> TranslationScore:
    """Score an encoder-decoder of transformers on a whole set: translate every source, compare with its reference.

    Args:
        model: Has `generate`, and returns `.logits` for a batch; runs in evaluation mode, restored afterwards.
        pairs: The sentences.
        collate: Makes a batch of rows, with `labels` and `decoder_input_ids`.
        decode: Makes text of ids, without special tokens.
        batch_size: How many sentences go through the model at once.
        generation: Options of `generate` over the model's own generation settings.
        progress: Called after each batch with the sentences done and the sentences in all.

    Raises:
        ValueError: The batch size is not positive, there are no pairs, or an id lies outside the model's vocabulary.
    """
    check_batch_size(batch_size)
    if not len(pairs):
        raise ValueError("a translation is scored on at least one pair, and there is none: hold some out")
    rows = model.get_input_embeddings().weight.shape[0]
    nats, tokens, done = 0.0, 0, 0
    translations = [""] * len(pairs)
    with evaluation_mode(model):
        for numbers, batch in batches_by_length(pairs, batch_size):
            inputs = move(collate(batch), model.device)
            labels = inputs.pop("labels")
            for ids in (inputs["input_ids"], inputs["decoder_input_ids"], labels):
                check_vocabulary(ids, rows)
            logits = model(**inputs, use_cache=False).logits
            kept = labels != -100
            losses = F.cross_entropy(logits[kept].float(), labels[kept], reduction="none")
            nats += losses.cpu().double().sum().item()
            tokens += len(losses)
            # Training switches the cache off in the model's own configuration.
            options = {"use_cache": True, **(generation or {})}
            ids = model.generate(inputs["input_ids"], attention_mask=inputs["attention_mask"], **options)
            for number, row in zip(numbers, ids.tolist(), strict=True):
                translations[number] = decode(row)
            done += len(batch)
            if progress is not None:
                progress(done, len(pairs))
    loss = nats / tokens
    bleu, chrf, signature = corpus_scores(translations, [pairs.texts[number][1] for number in range(len(pairs))])
    # exp overflows a float at 709.8 nats.
    return TranslationScore(loss, math.exp(loss) if loss < 709 else math.inf, bleu, chrf, done, signature)


def corpus_scores(translations: Sequence[str], references: Sequence[str]) -> tuple[float, float, str]:
    """BLEU, chrF2 and BLEU's signature of a whole set, one reference a sentence.

    Source: sacreBLEU (Post 2018, arXiv 1804.08771) at its defaults: tokenizer 13a, exponential smoothing, case kept.
    """
    from sacrebleu.metrics import BLEU, CHRF

    bleu = BLEU()
    score = bleu.corpus_score(list(translations), [list(references)]).score
    chrf = CHRF().corpus_score(list(translations), [list(references)]).score
    return float(score), float(chrf), str(bleu.get_signature())
