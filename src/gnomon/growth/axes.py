"""Wider axes: which old index each new one stands for, and what that means for the weights that write and read it.

A weight matrix W (outputs, inputs) writes its output axis and reads its input axis. An axis grows in one of three ways:

| way | weights that write new entries | weights that read them | exact because |
|---|---|---|---|
| `fresh` | random | 0 | nothing reads what is new |
| `silent` | 0 | random | what is new is always 0 |
| `duplicate` | copies | divided among the copies | the copies add up to the old sum |

Source: arXiv 2308.06103 (`fresh` for inner widths, `silent` for the hidden size); Net2Net (arXiv 1511.05641) and
HyperCloning (arXiv 2409.12903) are `duplicate`, the one of random units, the other of all of them by a whole factor.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Axis:
    """One axis of the weights after growth.

    Args:
        source: for each new index the old one it stands for, -1 for none.
        share: factor with which it is read; the copies of an old index sum to 1.
        written: where there is no source, whether a weight writes random numbers there (else 0).
        read: where there is no source, whether a weight reads it with random numbers (else 0).
    """

    source: Tensor
    share: Tensor
    written: Tensor
    read: Tensor

    @property
    def is_copied(self) -> bool:
        """Whether every index has a source, and some old one has several copies."""
        return bool((self.source >= 0).all()) and len(self.source) > len(set(self.source.tolist()))


def extend(size: int, new_size: int | None = None, *, silent: bool = False) -> Axis:
    """Old indices first, then new ones without a source.

    Args:
        size: before.
        new_size: after; the same if None.
        silent: `silent` (nothing is written) instead of `fresh` (nothing is read).

    Returns:
        The axis.
    """
    added = (new_size or size) - size
    source = torch.cat((torch.arange(size), torch.full((added,), -1)))
    return Axis(source, torch.ones(size + added), torch.tensor(not silent), torch.tensor(silent))


def duplicate(source: Tensor) -> Axis:
    """Copies, each read by its share.

    Args:
        source: for each new index the old one; every old one must occur.

    Returns:
        The axis.
    """
    counts = torch.bincount(source)
    return Axis(source, 1.0 / counts[source].double(), torch.tensor(False), torch.tensor(False))


def cloned(size: int, new_size: int) -> Axis:
    """All indices copied by a whole factor (HyperCloning).

    Args:
        size: before.
        new_size: a multiple.

    Returns:
        The axis.

    Raises:
        ValueError: when it is no multiple.
    """
    if new_size % size:
        raise ValueError(f"copying grows by whole factors: from {size} to {2 * size}, not to {new_size}")
    return duplicate(torch.arange(size).repeat(new_size // size))


def random_copies(size: int, new_size: int, generator: torch.Generator | None) -> Axis:
    """All indices once, then copies of random ones (Net2Net).

    Args:
        size: before.
        new_size: after.
        generator: of the choice.

    Returns:
        The axis.
    """
    chosen = torch.randint(size, (new_size - size,), generator=generator)
    return duplicate(torch.cat((torch.arange(size), chosen)))


def entries(groups: Axis, inner: Axis, width: int) -> Axis:
    """An axis whose indices are groups of entries, such as heads, entry by entry.

    Args:
        groups: axis of the groups.
        inner: axis of the entries of one group; decides what is written where an old group gets new entries.
        width: entries a group before.

    Returns:
        The axis of all entries.
    """
    group, entry = groups.source[:, None], inner.source[None, :]
    source = torch.where((group < 0) | (entry < 0), -1, group * width + entry)
    written = torch.where(group < 0, groups.written, inner.written).expand_as(source)
    share = (groups.share[:, None] * inner.share[None, :]).flatten()
    return Axis(source.flatten(), share, written.flatten(), torch.tensor(False))


def widen(weight: Tensor, writes: Axis, reads: Axis, std: float, generator: torch.Generator | None) -> Tensor:
    """A weight matrix after its axes have grown.

        W'[o, i] = W[source(o), source(i)] * share(i), and for new o or i random or 0 as the axes say

    Args:
        weight: (outputs, inputs).
        writes: the output axis.
        reads: the input axis.
        std: of random entries.
        generator: of random entries.

    Returns:
        The new matrix in the dtype of the old.
    """
    old = take(take(weight.detach(), writes.source, 0), reads.source, 1) * reads.share.to(weight)
    rows, columns = (writes.source >= 0)[:, None], (reads.source >= 0)[None, :]
    written = rows | writes.written.view(-1, 1)
    read = columns | reads.read.view(1, -1)
    random = written & read & ~(rows & columns)
    if not bool(random.any()):
        return old
    drawn = torch.randn(old.shape, generator=generator, dtype=torch.float32) * std
    return torch.where(random.to(old.device), drawn.to(old), old)


def balanced_offsets(weight: Tensor, reads: Axis, std: float, generator: torch.Generator | None) -> Tensor:
    """Random offsets for weights that read copies, which sum to zero over the copies of each index.

    Copies that are read alike get equal gradients and stay equal for ever; read apart, they learn apart, and what they
    add up to is still the same.

    Args:
        weight: (outputs, inputs) after growth.
        reads: its input axis, every index with a source.
        std: of the offsets before they are balanced.
        generator: of the offsets.

    Returns:
        A matrix of the weight's shape and dtype, zero where an index has no copy.
    """
    drawn = (torch.randn(weight.shape, generator=generator, dtype=torch.float32) * std).to(weight)
    source = reads.source.to(weight.device)
    counts = torch.bincount(source)
    sums = drawn.new_zeros(len(weight), len(counts)).index_add(1, source, drawn)
    return torch.where((counts[source] > 1), drawn - (sums / counts)[:, source], 0.0)


def take(tensor: Tensor, source: Tensor, axis: int) -> Tensor:
    """Entries along an axis by their source, zeros where there is none.

    Args:
        tensor: any.
        source: old index of each new one, -1 for none.
        axis: which.

    Returns:
        A new tensor.
    """
    source = source.to(tensor.device)
    taken = tensor.index_select(axis, source.clamp(min=0))
    if bool((source < 0).any()):
        shape = [1] * tensor.dim()
        shape[axis] = -1
        taken = taken.masked_fill((source < 0).view(shape), 0)
    return taken
