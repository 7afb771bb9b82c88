"""How well a causal language model predicts a text: nats per token, perplexity, bits per byte."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
from torch.nn import functional as F

from gnomon.evaluation.batches import check_batch_size, check_vocabulary, equal_length_batches, evaluation_mode


class Windows(Protocol):
    """What is evaluated on: rows of `input_ids` and `labels`, and the size of the text they come from.

    `gnomon.data.packing.PackedText` is one.
    """

    num_characters: int
    num_bytes: int
    num_unknown: int

    def __len__(self) -> int:
        """The number of rows."""

    def __getitem__(self, index: int, /) -> Mapping[str, torch.Tensor]:
        """One row: `input_ids` (length,), and `labels` (length,) with -100 where nothing is predicted."""


@dataclass(frozen=True)
class LanguageModelScore:
    """A model's predictions of a whole text, each token predicted exactly once.

    With the windows of `gnomon.data.packing` the predicted tokens are all those of the text and one end mark a
    document. The mark that opens the text is given, not predicted, and stands for no byte of it. So the sum of the
    losses is the information content of the documents and their ends, and `bits_per_byte` divides all of it by
    all the bytes of the text: it compares models with different tokenizers.

    Attributes:
        loss: Nats per predicted token.
        perplexity: exp(loss).
        bits_per_byte: loss * tokens / (ln 2 * bytes). If there are unknown tokens it is too low, because saying
            "unknown" does not say which character it was.
        tokens: The number of predicted tokens.
        bytes: The length of the text as UTF-8.
        characters: The length of the text in characters.
        unknown: How many tokens stand for text that the tokenizer does not know.
    """

    loss: float
    perplexity: float
    bits_per_byte: float
    tokens: int
    bytes: int
    characters: int
    unknown: int

    def to_dict(self) -> dict[str, float | int]:
        """The fields, for JSON."""
        return asdict(self)


def evaluate_language_model(
    model: Any,
    windows: Windows,
    *,
    batch_size: int = 16,
    progress: Callable[[int, int], None] | None = None,
) -> LanguageModelScore:
    """Score a causal language model of transformers on a whole text.

    The losses of single tokens are summed in float64 and divided once, at the end. Only windows of one length
    share a batch, so nothing is ever padded and the batch size changes the result by float rounding alone. A
    token's context is what stands before it in its own window.

    Args:
        model: Returns `.logits` (batch, length, vocabulary) for `input_ids`; runs in evaluation mode, and every
            module's mode is restored afterwards.
        windows: The packed text.
        batch_size: How many windows go through the model at once.
        progress: Called after each batch with the windows done and the windows in all.

    Raises:
        ValueError: The batch size is not positive, nothing is predicted, or an id lies outside the model's
            vocabulary.
    """
    check_batch_size(batch_size)
    embedding = model.get_input_embeddings().weight
    nats, tokens, done = 0.0, 0, 0
    with evaluation_mode(model):
        for batch in equal_length_batches(windows, batch_size):
            input_ids = torch.stack([row["input_ids"] for row in batch])
            labels = torch.stack([row["labels"] for row in batch])
            check_vocabulary(input_ids, len(embedding))
            losses = _token_losses(model, input_ids.to(embedding.device), labels.to(embedding.device))
            nats += losses.cpu().double().sum().item()
            tokens += len(losses)
            done += len(batch)
            if progress is not None:
                progress(done, len(windows))
    if not tokens or not windows.num_bytes:
        raise ValueError("the text holds no token to predict: evaluate on at least one character")
    loss = nats / tokens
    return LanguageModelScore(
        loss=loss,
        # exp overflows a float at 709.8 nats.
        perplexity=math.exp(loss) if loss < 709 else math.inf,
        bits_per_byte=nats / math.log(2) / windows.num_bytes,
        tokens=tokens,
        bytes=windows.num_bytes,
        characters=windows.num_characters,
        unknown=windows.num_unknown,
    )


def _token_losses(model: Any, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The loss of every predicted token of a batch, (tokens,) in float32."""
    logits = model(input_ids=input_ids, use_cache=False).logits
    losses = []
    # Row by row, so that no second float32 copy of all logits is made.
    for row, targets in zip(logits[:, :-1], labels[:, 1:], strict=True):
        kept = targets != -100
        losses.append(F.cross_entropy(row[kept].float(), targets[kept], reduction="none"))
    return torch.cat(losses)
