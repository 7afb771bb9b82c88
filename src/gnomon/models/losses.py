"""The loss of heads whose labels stand where their predictions do."""

import torch.nn.functional as F
from torch import Tensor


def token_loss(
    logits: Tensor, labels: Tensor, *, smoothing: float = 0.0, num_items: Tensor | int | None = None
) -> Tensor:
    """Cross-entropy of logits and labels at the same places.

        mean over targets of  -(1 - s) log p[target] - s / V sum_v log p[v]

    Source: Vaswani et al. 2017, section 5.4 (s, label smoothing).

    Args:
        logits: (..., vocabulary), taken in float32.
        labels: (...), -100 where nothing is to be predicted; or the share of every answer (..., vocabulary), as mixup
            makes them, when they are floating-point numbers.
        smoothing: s.
        num_items: divides the summed loss instead of the count of targets here, so that micro-batches of different
            sizes add up to one batch.

    Returns:
        The loss in nats a target.
    """
    flat, labels = logits.flatten(0, -2).float(), labels.to(logits.device)
    targets = labels.flatten(0, -2).float() if labels.is_floating_point() else labels.flatten()
    if num_items is None:
        return F.cross_entropy(flat, targets, ignore_index=-100, label_smoothing=smoothing)
    total = F.cross_entropy(flat, targets, ignore_index=-100, label_smoothing=smoothing, reduction="sum")
    return total / num_items
