"""Interpolated n-gram language models: the floor that a trained model has to get below."""

from typing import Self

import numpy as np


class NGramModel:
    r"""An n-gram model with Witten-Bell interpolation, in vectorised numpy.

    With c(h) the number of times that the context h was followed by anything in training, c(h, w) by w, and t(h)
    the number of different tokens that followed it:

        P(w | h) = (c(h, w) + t(h) P(w | h')) / (c(h) + t(h))

    where h' is h without its oldest token, P(w | h) = P(w | h') for a context never seen, and the recursion ends
    in the uniform distribution 1 / vocab_size. The first tokens of a text have shorter contexts.
    Source: Witten & Bell 1991, method C, in the recursive form of Chen & Goodman 1998, section 2.6.

    Args:
        order: n, at least 1; the context is n - 1 tokens.
        vocab_size: How many ids there are; each, seen or not, has a probability above 0.
    """

    def __init__(self, order: int, vocab_size: int):
        if order < 1 or vocab_size < 1:
            raise ValueError(
                f"an n-gram model needs an order and a vocabulary of at least 1, not {order} and {vocab_size}"
            )
        self.order = order
        self.vocab_size = vocab_size
        # For each length k = 1..order, by the rank of a k-gram among those of its length: its key, which is the
        # rank of its first k - 1 tokens times vocab_size, plus its last token; and its count.
        self._keys: list[np.ndarray] = []
        self._counts: list[np.ndarray] = []
        # For each length k, by the rank of the k-gram as a context: how often it was followed, by how many.
        self._followed: list[np.ndarray] = []
        self._followers: list[np.ndarray] = []

    def fit(self, ids: np.ndarray) -> Self:
        """Count the n-grams of one stream of ids, in place of any counted before."""
        ids = self._check(ids)
        if not len(ids):
            raise ValueError("an n-gram model learns from at least one token, and there is none")
        self._keys, self._counts, self._followed, self._followers = [], [], [], []
        # ranks[i] is the rank of the (k-1)-gram that starts at i: the context of the k-gram that starts there.
        ranks, num_contexts = np.zeros(len(ids) + 1, dtype=np.int64), 1
        for length in range(1, min(self.order, len(ids)) + 1):
            contexts = ranks[: len(ids) - length + 1]
            keys, inverse, counts = np.unique(
                contexts * self.vocab_size + ids[length - 1 :], return_inverse=True, return_counts=True
            )
            owners = keys // self.vocab_size
            self._keys.append(keys)
            self._counts.append(counts)
            self._followed.append(np.bincount(owners, weights=counts, minlength=num_contexts))
            self._followers.append(np.bincount(owners, minlength=num_contexts).astype(np.float64))
            ranks, num_contexts = inverse, len(keys)
        return self

    def probabilities(self, ids: np.ndarray) -> np.ndarray:
        """The probability of every token of a stream given those before it, (len(ids),) in float64."""
        ids = self._check(ids)
        if not self._keys:
            raise ValueError("an n-gram model has to be fitted before it predicts: call fit first")
        result = np.full(len(ids), 1 / self.vocab_size)
        # ranks[i] is the rank of the context of the k-gram that ENDS at i, or -1 if training never saw it.
        ranks = np.zeros(len(ids), dtype=np.int64)
        for level, (keys, counts) in enumerate(zip(self._keys, self._counts, strict=True)):
            known = ranks >= 0
            found = self._find(keys, ranks, ids)
            hits = np.where(found >= 0, counts[found], 0)
            followed = np.where(known, self._followed[level][ranks], 0.0)
            followers = np.where(known, self._followers[level][ranks], 0.0)
            seen = followed > 0
            weight = np.where(seen, followed + followers, 1.0)
            result = np.where(seen, (hits + followers * result) / weight, result)
            # The k-gram that ends one position earlier is the next context; the first token has none so long.
            ranks = np.concatenate([np.array([-1]), found[:-1]])
        return result

    def loss(self, ids: np.ndarray) -> float:
        """Nats per token of a stream, over every token but the first, which is given as it is to a model.

        Raises:
            ValueError: There are fewer than two tokens, or an id lies outside the vocabulary.
        """
        if len(ids) < 2:
            raise ValueError(f"a loss needs at least two tokens, one to read and one to predict, not {len(ids)}")
        return float(-np.log(self.probabilities(ids)[1:]).mean())

    def _find(self, keys: np.ndarray, ranks: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """The rank of each (context rank, token) among the keys, or -1, as for every context of rank -1."""
        wanted = ranks * self.vocab_size + ids
        places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return np.where(keys[places] == wanted, places, -1)

    def _check(self, ids: np.ndarray) -> np.ndarray:
        ids = np.asarray(ids, dtype=np.int64)
        if len(ids) and not 0 <= ids.min() <= ids.max() < self.vocab_size:
            raise ValueError(
                f"ids must lie in 0..{self.vocab_size - 1}, but they reach from {ids.min()} to {ids.max()}: "
                "use one tokenizer for both texts"
            )
        return ids
