"""Read transcripts out of CTC's scores, greedily or with a beam, and count their errors."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

import torch
from torch.nn import functional as F

from gnomon.evaluation.batches import Rows, batches_by_length, check_batch_size, evaluation_mode, move
from gnomon.optional import import_optional

TOKENS_A_FRAME = 20
"""A beam goes on with so many of a frame's likeliest tokens."""


@dataclass(frozen=True)
class ErrorRates:
    """How many words and characters have to be changed, added or dropped, per word and character that was said.

    Attributes:
        word_error_rate: (Substitutions + deletions + insertions) / words; it can exceed 1.
        character_error_rate: The same of characters, spaces included.
    """

    word_error_rate: float
    character_error_rate: float


@dataclass(frozen=True)
class SpeechScore:
    """A recognizer's transcripts of a whole set.

    Attributes:
        loss: Nats a label, of CTC; None if the model gives none.
        word_error_rate: See `ErrorRates`.
        character_error_rate: See `ErrorRates`.
        clips: How many clips there were.
        transcripts: What the model heard, in the order of the rows.
    """

    loss: float | None
    word_error_rate: float
    character_error_rate: float
    clips: int
    transcripts: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The figures, for JSON."""
        return {key: value for key, value in asdict(self).items() if key != "transcripts"}


def error_rates(references: Sequence[str], transcripts: Sequence[str]) -> ErrorRates:
    """Word and character error rate over a whole set, all errors over all that was said.

    Args:
        references: What was said; none is empty.
        transcripts: What was heard.

    Raises:
        ValueError: The numbers differ, or nothing was said.
        MissingPackageError: jiwer is not installed.

    >>> error_rates(["press one", "goodbye"], ["press on", "goodbye"])
    ErrorRates(word_error_rate=0.3333333333333333, character_error_rate=0.0625)
    """
    if len(references) != len(transcripts):
        raise ValueError(f"{len(references)} references cannot be compared with {len(transcripts)} transcripts")
    if not references or not all(text.strip() for text in references):
        raise ValueError("error rates are of what was said, and a reference is empty: leave out clips without words")
    jiwer = import_optional("jiwer", "speech")
    said, heard = list(references), list(transcripts)
    return ErrorRates(float(jiwer.wer(said, heard)), float(jiwer.cer(said, heard)))


def empty_transcript_rates(references: Sequence[str]) -> ErrorRates:
    """The error rates of hearing nothing, which is what CTC learns first: every word and character is missing.

    >>> empty_transcript_rates(["press one"])
    ErrorRates(word_error_rate=1.0, character_error_rate=1.0)
    """
    return error_rates(references, [""] * len(references))


def greedy_decode(logits: torch.Tensor, lengths: Sequence[int], blank: int) -> list[list[int]]:
    """The likeliest token of every frame; repeats are joined, then blanks dropped.

    Source: Connectionist Temporal Classification (Graves et al. 2006), section 3.2, best path decoding.

    Args:
        logits: (batch, frames, tokens), or their logarithms of probabilities.
        lengths: How many frames of each row are real.
        blank: The blank's token id.

    Returns:
        Each row's token ids.
    """
    paths = logits.argmax(-1).tolist()
    return [
        [token for token, _ in groupby(path[:length]) if token != blank]
        for path, length in zip(paths, lengths, strict=True)
    ]


def beam_decode(log_probabilities: torch.Tensor, blank: int, beam_size: int = 8) -> list[int]:
    """The likeliest labels of one row, all their alignments together, among those that a beam keeps.

    Source: First-Pass Large Vocabulary Continuous Speech Recognition (Hannun et al. 2014), algorithm 1, without a
    language model.

    Args:
        log_probabilities: (frames, tokens), the logarithms of every frame's probabilities.
        blank: The blank's token id.
        beam_size: How many prefixes are kept after a frame.

    Raises:
        ValueError: The beam is empty.
    """
    if beam_size < 1:
        raise ValueError(f"a beam keeps at least 1 prefix, not {beam_size}")
    count = min(TOKENS_A_FRAME, log_probabilities.shape[1])
    scores, tokens = log_probabilities.double().topk(count, dim=1)
    # Prefix -> the logarithms of its probability with the last frame blank, and with it not blank.
    beam: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, -math.inf)}
    for frame_scores, frame_tokens in zip(scores.tolist(), tokens.tolist(), strict=True):
        longer: dict[tuple[int, ...], tuple[float, float]] = {}
        for prefix, (in_blank, in_token) in beam.items():
            total = _add(in_blank, in_token)
            for score, token in zip(frame_scores, frame_tokens, strict=True):
                if token == blank:
                    _put(longer, prefix, total + score, -math.inf)
                elif prefix and token == prefix[-1]:
                    # The same token again is the same label, unless a blank stands between.
                    _put(longer, prefix, -math.inf, in_token + score)
                    _put(longer, (*prefix, token), -math.inf, in_blank + score)
                else:
                    _put(longer, (*prefix, token), -math.inf, total + score)
        kept = sorted(longer.items(), key=lambda item: -_add(*item[1]))[:beam_size]
        beam = dict(kept)
    return list(next(iter(beam)))


def _put(beam: dict[tuple[int, ...], tuple[float, float]], prefix: tuple[int, ...], blank: float, token: float) -> None:
    """Add the probabilities of one more way to a prefix."""
    before = beam.get(prefix, (-math.inf, -math.inf))
    beam[prefix] = (_add(before[0], blank), _add(before[1], token))


def _add(left: float, right: float) -> float:
    """log(exp(left) + exp(right))."""
    largest = max(left, right)
    if largest == -math.inf:
        return largest
    return largest + math.log1p(math.exp(min(left, right) - largest))


def evaluate_ctc(
    model: Any,
    rows: Rows,
    *,
    collate: Callable[[Sequence[Any]], Mapping[str, torch.Tensor]],
    tokenizer: Any,
    output_length: Callable[[int], int],
    batch_size: int = 16,
    beam_size: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> SpeechScore:
    """Score a CTC model of transformers on a whole set.

    Args:
        model: Returns `.logits` (batch, frames, tokens); runs in evaluation mode, restored afterwards.
        rows: Each with `input_features`, `attention_mask` and `labels`, and all with `texts`.
        collate: Makes a batch of rows, labels padded with -100.
        tokenizer: Turns token ids into text; its padding is the blank.
        output_length: Frames of features -> frames of logits.
        batch_size: How many rows go through the model at once.
        beam_size: How many prefixes are kept; 1 decodes greedily.
        progress: Called after each batch with the rows done and the rows in all.

    Raises:
        ValueError: The batch size is not positive, or there are no rows.
    """
    check_batch_size(batch_size)
    if not len(rows):
        raise ValueError("a recognizer is scored on at least one clip, and there is none: hold some out")
    blank = tokenizer.pad_token_id
    heard = [""] * len(rows)
    nats, labels_seen, done = 0.0, 0, 0
    with evaluation_mode(model):
        for numbers, batch in batches_by_length(rows, batch_size):
            inputs = move(collate(batch), model.device)
            labels = inputs.pop("labels")
            log_probabilities = F.log_softmax(model(**inputs).logits.float(), dim=-1)
            lengths = [output_length(frames) for frames in inputs["attention_mask"].sum(-1).tolist()]
            nats += _ctc_loss(log_probabilities, lengths, labels, blank)
            labels_seen += int((labels >= 0).sum())
            if beam_size == 1:
                found = greedy_decode(log_probabilities, lengths, blank)
            else:
                pairs = zip(log_probabilities.cpu(), lengths, strict=True)
                found = [beam_decode(scores[:length], blank, beam_size) for scores, length in pairs]
            for number, ids in zip(numbers, found, strict=True):
                heard[number] = " ".join(tokenizer.decode(ids, group_tokens=False).split())
            done += len(batch)
            if progress is not None:
                progress(done, len(rows))
    rates = error_rates(rows.texts, heard)
    return SpeechScore(nats / labels_seen, rates.word_error_rate, rates.character_error_rate, len(rows), tuple(heard))


def _ctc_loss(log_probabilities: torch.Tensor, lengths: Sequence[int], labels: torch.Tensor, blank: int) -> float:
    """The sum of a batch's losses, in nats; rows that cannot be aligned count nothing."""
    targets = labels[labels >= 0]
    losses = F.ctc_loss(
        log_probabilities.transpose(0, 1),
        targets,
        torch.tensor(lengths),
        (labels >= 0).sum(-1),
        blank=blank,
        reduction="none",
        zero_infinity=True,
    )
    return losses.cpu().double().sum().item()
