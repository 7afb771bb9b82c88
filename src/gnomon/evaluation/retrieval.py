"""How often the right text is found for an image, and the right image for a text."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from gnomon.evaluation.batches import Rows, check_batch_size, evaluation_mode, move

RANKS = (1, 5, 10)


@dataclass(frozen=True)
class RetrievalScore:
    """How often something right is among the first k that are found.

    Attributes:
        image_to_text: k -> the share of images with a right text among the k most similar ones.
        text_to_image: k -> the share of texts with a right image among the k most similar ones.
        images: How many images there were.
        texts: How many different texts there were.
        chance: recall@1 from image to text of guessing.
        loss: Nats a choice within a batch, as the model is trained; NaN if unknown.
    """

    image_to_text: dict[int, float]
    text_to_image: dict[int, float]
    images: int
    texts: int
    chance: float
    loss: float = math.nan

    @property
    def recall_at_1(self) -> float:
        """The share of images whose right text is the most similar one."""
        return self.image_to_text[1]

    def to_dict(self) -> dict[str, float | int]:
        """The fields, for JSON."""
        recalls = {
            f"{direction}_recall_at_{k}": value
            for direction in ("image_to_text", "text_to_image")
            for k, value in getattr(self, direction).items()
        }
        return {**recalls, "images": self.images, "texts": self.texts, "chance": self.chance, "loss": self.loss}


def recall_at(similarity: np.ndarray, relevant: np.ndarray, ranks: Sequence[int] = RANKS) -> dict[int, float]:
    """The share of queries with something relevant among the k most similar candidates, for every k.

    Equal similarities count as if the irrelevant came first, so that a model that says the same of all finds nothing.

    Args:
        similarity: (queries, candidates).
        relevant: (queries, candidates), true where a candidate is right; every query has one.
        ranks: The ks.

    Raises:
        ValueError: A query has nothing relevant, or the shapes differ.

    >>> recall_at(np.array([[0.9, 0.1], [0.8, 0.7]]), np.eye(2, dtype=bool), (1, 2))
    {1: 0.5, 2: 1.0}
    """
    if similarity.shape != relevant.shape or not relevant.any(axis=1).all():
        raise ValueError("every query must have a relevant candidate, and a similarity to each: check the labels")
    best = np.where(relevant, similarity, -np.inf).max(axis=1, keepdims=True)
    before = (~relevant & ~(similarity < best)).sum(axis=1)
    return {k: float((before < k).mean()) for k in ranks}


def score_retrieval(
    image_embeddings: np.ndarray,
    text_embeddings: np.ndarray,
    texts: Sequence[int],
    ranks: Sequence[int] = RANKS,
    loss: float = math.nan,
) -> RetrievalScore:
    """Recall in both directions, by the cosine between embeddings.

    Args:
        image_embeddings: (images, size).
        text_embeddings: (different texts, size).
        texts: Each image's text, as a row of `text_embeddings`; every text has an image.
        ranks: The ks.
        loss: Goes into the score.
    """
    images, words = (
        embeddings / np.maximum(np.linalg.norm(embeddings, axis=1, keepdims=True), 1e-12)
        for embeddings in (image_embeddings.astype(np.float64), text_embeddings.astype(np.float64))
    )
    similarity = images @ words.T
    relevant = np.asarray(texts)[:, None] == np.arange(len(words))
    return RetrievalScore(
        recall_at(similarity, relevant, ranks),
        recall_at(similarity.T, relevant.T, ranks),
        len(images),
        len(words),
        1 / len(words),
        loss,
    )


def evaluate_retrieval(
    model: Any,
    rows: Rows,
    *,
    collate: Callable[[Sequence[Any]], Mapping[str, torch.Tensor]],
    batch_size: int = 64,
    ranks: Sequence[int] = RANKS,
    progress: Callable[[int, int], None] | None = None,
) -> RetrievalScore:
    """Score a two-tower model of transformers on a whole set: every image against every different text.

    Args:
        model: Returns `.image_embeds` and `.text_embeds` (batch, size), and `.logits_per_image` (batch, batch); runs
            in evaluation mode, restored afterwards.
        rows: Each with `pixel_values`, `input_ids` and `attention_mask`, and all with `texts`.
        collate: Makes a batch of rows.
        batch_size: How many rows go through the model at once.
        ranks: The ks.
        progress: Called after each batch with the rows done and the rows in all.

    Raises:
        ValueError: The batch size is not positive, or there are no rows.
    """
    images, words, numbers, nats = embed_pairs(model, rows, collate=collate, batch_size=batch_size, progress=progress)
    return score_retrieval(images, words, numbers, ranks, nats)


def embed_pairs(
    model: Any,
    rows: Rows,
    *,
    collate: Callable[[Sequence[Any]], Mapping[str, torch.Tensor]],
    batch_size: int = 64,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[np.ndarray, np.ndarray, list[int], float]:
    """What a two-tower model makes of a whole set.

    Args:
        model: As for `evaluate_retrieval`.
        rows: As for `evaluate_retrieval`.
        collate: Makes a batch of rows.
        batch_size: How many rows go through the model at once.
        progress: Called after each batch with the rows done and the rows in all.

    Returns:
        Unit vectors of the images and of the different texts, each image's text among these, and nats a choice.

    Raises:
        ValueError: The batch size is not positive, or there are no rows.
    """
    check_batch_size(batch_size)
    if not len(rows):
        raise ValueError("retrieval is scored on at least one image, and there is none: hold some out")
    images: list[torch.Tensor] = []
    words: list[torch.Tensor] = []
    distinct = {text: number for number, text in enumerate(dict.fromkeys(rows.texts))}
    numbers = [distinct[text] for text in rows.texts]
    nats = 0.0
    with evaluation_mode(model):
        for start in range(0, len(rows), batch_size):
            batch = [rows[row] for row in range(start, min(start + batch_size, len(rows)))]
            output = model(**move(collate(batch), model.device))
            images.append(F.normalize(output.image_embeds.float(), dim=-1).cpu())
            words.append(F.normalize(output.text_embeds.float(), dim=-1).cpu())
            nats += _choice_loss(output.logits_per_image.float(), numbers[start : start + len(batch)]) * len(batch)
            if progress is not None:
                progress(start + len(batch), len(rows))
    first = [numbers.index(number) for number in range(len(distinct))]
    return torch.cat(images).numpy(), torch.cat(words).numpy()[first], numbers, nats / len(rows)


def _choice_loss(logits: torch.Tensor, texts: Sequence[int]) -> float:
    """The mean cross-entropy of choosing among a batch's texts and among its images; equal texts are equally right."""
    numbers = torch.tensor(texts, device=logits.device)
    right = (numbers[:, None] == numbers).float()
    shares = right / right.sum(dim=1, keepdim=True)
    return float((F.cross_entropy(logits, shares) + F.cross_entropy(logits.T, shares)) / 2)
