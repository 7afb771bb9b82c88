"""What a model has to beat: guesses that need no learning, on the same rows."""

from collections.abc import Sequence

import numpy as np


def majority_accuracy(train_labels: Sequence[int], labels: Sequence[int]) -> float:
    """The accuracy of always answering the commonest class of training; of equals, the lowest.

    >>> majority_accuracy([0, 1, 1], [1, 0])
    0.5
    """
    return float((np.asarray(labels) == np.bincount(np.asarray(train_labels)).argmax()).mean())


def nearest_centroid_accuracy(
    train: np.ndarray, train_labels: np.ndarray, rows: np.ndarray, labels: np.ndarray
) -> float:
    """The accuracy of answering the class whose mean is nearest.

    Args:
        train: Training vectors (rows, size).
        train_labels: Their classes.
        rows: The vectors that are answered (rows, size).
        labels: Their classes.
    """
    classes = np.unique(train_labels)
    means = np.stack([train[train_labels == label].mean(axis=0) for label in classes])
    return float((classes[nearest(means, rows)] == labels).mean())


def nearest_neighbor_accuracy(
    train: np.ndarray, train_labels: np.ndarray, rows: np.ndarray, labels: np.ndarray
) -> float:
    """The accuracy of answering the class of the nearest training row.

    Of images against images of the same things by others, this is the recall@1 of comparing pixels.

    Args:
        train: Training vectors (rows, size).
        train_labels: Their classes.
        rows: The vectors that are answered (rows, size).
        labels: Their classes.
    """
    return float((np.asarray(train_labels)[nearest(train, rows)] == labels).mean())


def nearest(points: np.ndarray, rows: np.ndarray, batch_size: int = 512) -> np.ndarray:
    """Which point is nearest to each row by Euclidean distance; of equals, the first.

    Args:
        points: (points, size).
        rows: (rows, size).
        batch_size: How many rows are compared at once, which bounds the memory.
    """
    points = points.astype(np.float64)
    squares = (points**2).sum(axis=1)
    found = [
        (squares - 2 * rows[start : start + batch_size].astype(np.float64) @ points.T).argmin(axis=1)
        for start in range(0, len(rows), batch_size)
    ]
    return np.concatenate(found)
