"""How good the transcripts are that a decoder writes: their error rates, and the loss of the references."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from gnomon.evaluation.batches import Rows, batches_by_length, check_batch_size, evaluation_mode, move
from gnomon.evaluation.speech import SpeechScore, error_rates


def evaluate_transcription(
    model: Any,
    rows: Rows,
    *,
    collate: Callable[[Sequence[Any]], Mapping[str, torch.Tensor]],
    decode: Callable[[list[int]], str],
    batch_size: int = 16,
    generation: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SpeechScore:
    """Score a speech encoder-decoder of transformers on a whole set: write every transcript, compare what was said.

    Args:
        model: Has `generate`, and returns `.logits` for a batch with labels; runs in evaluation mode, restored
            afterwards.
        rows: Each with `input_features`, `attention_mask` and `labels`, and all with `texts`.
        collate: Makes a batch of rows, labels padded with -100.
        decode: Makes text of ids, without special tokens.
        batch_size: How many rows go through the model at once.
        generation: Options of `generate` over the model's own generation settings.
        progress: Called after each batch with the rows done and the rows in all.

    Raises:
        ValueError: The batch size is not positive, or there are no rows.
    """
    check_batch_size(batch_size)
    if not len(rows):
        raise ValueError("a recognizer is scored on at least one clip, and there is none: hold some out")
    heard = [""] * len(rows)
    nats, targets, done = 0.0, 0, 0
    with evaluation_mode(model):
        for numbers, batch in batches_by_length(rows, batch_size):
            inputs = move(collate(batch), model.device)
            labels, kept = inputs["labels"], inputs["labels"] != -100
            logits = model(**inputs, use_cache=False).logits
            nats += F.cross_entropy(logits[kept].float(), labels[kept], reduction="none").cpu().double().sum().item()
            targets += int(kept.sum())
            written = model.generate(
                inputs["input_features"], attention_mask=inputs["attention_mask"], **dict(generation or {})
            )
            for number, ids in zip(numbers, written.tolist(), strict=True):
                heard[number] = " ".join(decode(ids).split())
            done += len(batch)
            if progress is not None:
                progress(done, len(rows))
    rates = error_rates(rows.texts, heard)
    return SpeechScore(nats / targets, rates.word_error_rate, rates.character_error_rate, len(rows), tuple(heard))
