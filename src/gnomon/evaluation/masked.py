"""How well a masked language model fills in what is hidden: nats per token, pseudo-perplexity, accuracy."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
from torch.nn import functional as F

from gnomon.evaluation.batches import Rows, check_batch_size, check_vocabulary, equal_length_batches, evaluation_mode

STRIDE = 7
"""Every so many tokens one is hidden: 14.3% at a time, close to the 15% that such models are trained with."""


class MaskableRows(Rows, Protocol):
    """Rows with `input_ids` and `maskable` (length,), True where a token of the text stands."""


@contextmanager
def head_at(model: Any, chosen: torch.Tensor) -> Iterator[None]:
    """Let a model's output head, its widest layer, run at some positions alone.

    Inside the block `.logits` are (chosen positions, vocabulary): the same numbers for a seventh of the products.

    Args:
        model: Of transformers; `get_output_embeddings` is its head.
        chosen: Which positions, (batch, length).
    """
    handle = model.get_output_embeddings().register_forward_pre_hook(lambda head, inputs: (inputs[0][chosen],))
    try:
        yield
    finally:
        handle.remove()


@dataclass(frozen=True)
class MaskedLanguageModelScore:
    """A model's guesses of a whole text, each token hidden and guessed exactly once.

    Attributes:
        loss: Nats per token of the text.
        pseudo_perplexity: exp(loss).
        accuracy: Share of the tokens that the likeliest guess gets right.
        tokens: How many tokens were guessed.
        passes: How many times the model read the text.
    """

    loss: float
    pseudo_perplexity: float
    accuracy: float
    tokens: int
    passes: int

    def to_dict(self) -> dict[str, float | int]:
        """The fields, for JSON."""
        return asdict(self)


def evaluate_masked_language_model(
    model: Any,
    windows: MaskableRows,
    *,
    mask_token_id: int,
    stride: int = STRIDE,
    batch_size: int = 16,
    progress: Callable[[int, int], None] | None = None,
) -> MaskedLanguageModelScore:
    r"""Score a masked language model of transformers on a whole text, without any chance.

    Pass p of `stride` hides the tokens p, p + stride, p + 2 stride, ... of every window and reads the loss there:

        loss = -1/T \sum_t log P(w_t | the window without the tokens hidden with it),   pseudo-perplexity = exp(loss)

    Source: Salazar et al. 2020 (arXiv 1910.14659), section 2.2. Differs: they hide one token at a time, which needs
    a pass a token, and shows the model sequences unlike those it was trained on, with a single gap. Hiding every
    7th takes seven passes, leaves each guess about as much context as in training, and is an upper estimate of
    theirs, because the other hidden tokens are unknown too. `stride` at the window's length gives theirs.

    Args:
        model: Returns `.logits` (batch, length, vocabulary) for `input_ids`; runs in evaluation mode, and every
            module's mode is restored afterwards.
        windows: The text.
        mask_token_id: What hides a token.
        stride: The distance of the tokens hidden together, at least 2.
        batch_size: How many windows go through the model at once.
        progress: Called after each batch with the windows done and the windows in all.

    Raises:
        ValueError: Stride or batch size are too small, an id lies outside the model's vocabulary, or there is no
            token to guess.
    """
    check_batch_size(batch_size)
    if stride < 2:
        raise ValueError(f"the stride of hidden tokens must be at least 2, so that some are left to see, not {stride}")
    embedding = model.get_input_embeddings().weight
    nats, right, tokens, done = 0.0, 0, 0, 0
    with evaluation_mode(model):
        for batch in equal_length_batches(windows, batch_size):
            input_ids = torch.stack([row["input_ids"] for row in batch])
            maskable = torch.stack([row["maskable"] for row in batch])
            check_vocabulary(input_ids, len(embedding))
            # The n-th token of a window, marks not counted.
            place = maskable.cumsum(1) - 1
            for first in range(stride):
                hidden = maskable & (place % stride == first)
                if not hidden.any():
                    continue
                seen = input_ids.masked_fill(hidden, mask_token_id).to(embedding.device)
                with head_at(model, hidden.to(embedding.device)):
                    logits = model(input_ids=seen).logits.float()
                targets = input_ids[hidden].to(embedding.device)
                nats += F.cross_entropy(logits, targets, reduction="none").cpu().double().sum().item()
                right += int((logits.argmax(-1) == targets).sum())
                tokens += len(targets)
            done += len(batch)
            if progress is not None:
                progress(done, len(windows))
    if not tokens:
        raise ValueError("the text holds no token to guess: evaluate on at least one character")
    loss = nats / tokens
    # exp overflows a float at 709.8 nats.
    perplexity = math.exp(loss) if loss < 709 else math.inf
    return MaskedLanguageModelScore(loss, perplexity, right / tokens, tokens, stride)
