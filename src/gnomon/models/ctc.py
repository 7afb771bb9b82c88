"""The loss of CTC over a batch in which some rows may be too short for their labels."""

import torch
import torch.nn.functional as F
from torch import Tensor


def ctc_loss(
    logits: Tensor, labels: Tensor, mask: Tensor | None, *, blank: int, num_items: Tensor | int | None = None
) -> tuple[Tensor, Tensor]:
    """Nats a label that all alignments of the labels leave open; rows that have no alignment count nothing.

        loss = sum over rows of -log p(labels | logits) / labels

    A row needs a position for each label, and one more for the blank between two that are equal.

    Source: Graves et al. 2006, eq. 8.

    Args:
        logits: (batch, positions, vocabulary), taken in float32.
        labels: token ids (batch, length), then -100 or blanks.
        mask: 1 for a position, 0 for padding, which follows, (batch, positions); all are positions if None.
        blank: the id that stands for no token.
        num_items: divides the summed loss instead of the count of labels in the rows that are not skipped.

    Returns:
        The loss, and how many rows were skipped.

    Raises:
        ValueError: for a label outside the vocabulary, or one after padding.
    """
    labels, positions = labels.to(logits.device), logits.shape[1]
    real = (labels >= 0) & (labels != blank)
    check_labels(labels, real, logits.shape[2])
    if mask is None:
        lengths = torch.full((len(logits),), positions, device=logits.device)
    else:
        lengths = mask.to(logits.device).long().sum(dim=1)
    repeats = ((labels[:, 1:] == labels[:, :-1]) & real[:, 1:]).sum(dim=1)
    counts = real.sum(dim=1)
    usable = (lengths >= counts + repeats) & (lengths > 0)
    losses = F.ctc_loss(
        logits.float().log_softmax(dim=-1).transpose(0, 1),
        labels.masked_fill(~real, int(blank == 0)),  # any id but the blank: never looked at
        lengths.where(usable, positions),
        counts.where(usable, 0),
        blank=blank,
        reduction="none",
    )
    items = (counts * usable).sum().clamp(min=1) if num_items is None else num_items
    return (losses * usable).sum() / items, (~usable).sum()


def check_labels(labels: Tensor, real: Tensor, vocab_size: int) -> None:
    """Refuse labels that are no tokens; on the CPU alone, where looking costs no synchronization.

    Args:
        labels: (batch, length).
        real: which are no padding.
        vocab_size: ids lie below.

    Raises:
        ValueError: naming the id.
    """
    if labels.device.type != "cpu" or torch.compiler.is_compiling() or not labels.numel():
        return
    if int(labels.max()) >= vocab_size:
        raise ValueError(
            f"labels must lie in the vocabulary, 0 to {vocab_size - 1}; got {int(labels.max())}; use the tokenizer "
            "that was saved with the model"
        )
    if bool((real[:, 1:] > real[:, :-1]).any()):
        raise ValueError("labels must come before their padding (-100 or the blank); pad transcripts on the right")


__all__ = ["ctc_loss"]
