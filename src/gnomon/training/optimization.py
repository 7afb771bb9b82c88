"""The optimizer's side of a recipe: the learning rate's course, what decays, and the order of the data."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Sampler

from gnomon.models.inputs import PatchEmbedding
from gnomon.nn.blocks import Block
from gnomon.nn.projections import Embedding
from gnomon.training.options import TrainingOptions


def learning_rate_factor(
    step: int, *, max_steps: int, warmup_steps: int, schedule: str = "cosine", floor: float = 0.0
) -> float:
    """The learning rate of a step over its peak.

        warm-up:  (s + 1) / w                        for s < w
        cosine:   f + (1 - f) (1 + cos(pi p)) / 2    p = (s - w) / (S - w)
        linear:   f + (1 - f) (1 - p)

    Source: TF section 4 (cosine, to 0 in the paper and to 10% in its configurations). Differs: the first step
    has a learning rate above 0, so that it is not lost.

    Args:
        step: s, counted from 0.
        max_steps: S.
        warmup_steps: w.
        schedule: `cosine`, `linear` or `constant`.
        floor: f, the factor that the course ends in.

    >>> [learning_rate_factor(s, max_steps=6, warmup_steps=2) for s in (0, 1, 2, 4)]
    [0.5, 1.0, 1.0, 0.5]
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if schedule == "constant":
        return 1.0
    progress = min((step - warmup_steps) / (max_steps - warmup_steps), 1.0)
    shape = (1 + math.cos(math.pi * progress)) / 2 if schedule == "cosine" else 1 - progress
    return floor + (1 - floor) * shape


def build_schedule(
    optimizer: torch.optim.Optimizer, options: TrainingOptions, max_steps: int, before: int = 0
) -> torch.optim.lr_scheduler.LambdaLR:
    """The recipe's learning rate, step by step.

    Args:
        optimizer: Gets the rate.
        options: The stage's training values.
        max_steps: Steps of the whole schedule.
        before: Steps of it that an earlier stage has done.
    """
    warmup_steps = options.resolved_warmup_steps(max_steps)

    def factor(step: int) -> float:
        return learning_rate_factor(
            before + step,
            max_steps=max_steps,
            warmup_steps=warmup_steps,
            schedule=options.schedule,
            floor=options.minimum_learning_rate_ratio,
        )

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def decayed_parameters(model: nn.Module) -> list[str]:
    """Names of the parameters that weight decay shrinks: matrices, embeddings and parameter tokens.

    Source: TF appendix (weight decay on everything but norms). Norms' gains, biases and score scales have one
    axis; everything that multiplies a vector has two.
    """
    return [name for name, parameter in model.named_parameters() if parameter.ndim >= 2]


def layer_rates(model: nn.Module, decay: float) -> dict[nn.Parameter, float]:
    """A factor on the learning rate of every parameter, smaller the earlier it stands.

        block i of L:  decay^(L - i),  i = 0 .. L - 1,   embeddings:  decay^(L + 1),   what follows the blocks:  1

    Source: BEiT (arXiv 2106.08254), appendix on fine-tuning.

    Args:
        model: Of any kind; a decoder's blocks are counted after its encoder's.
        decay: Above 0, at most 1.
    """
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    rates: dict[nn.Parameter, float] = dict.fromkeys(model.parameters(), 1.0)
    for module in model.modules():
        if isinstance(module, Embedding | PatchEmbedding):
            rates |= dict.fromkeys(module.parameters(), decay ** (len(blocks) + 1))
    for index, block in enumerate(blocks):
        rates |= dict.fromkeys(block.parameters(), decay ** (len(blocks) - index))
    return rates


def spread_rates(optimizer: torch.optim.Optimizer, rates: dict[nn.Parameter, float]) -> None:
    """Split the groups of an optimizer that has not stepped yet, so that each parameter has its own learning rate.

    Args:
        optimizer: Changed in place; the first group keeps the full rate.
        rates: Of `layer_rates`.
    """
    groups = []
    for rate in sorted(set(rates.values()), reverse=True):
        for group in optimizer.param_groups:
            chosen = [parameter for parameter in group["params"] if rates[parameter] == rate]
            if chosen:
                groups.append({**group, "params": chosen, "lr": group["lr"] * rate})
    optimizer.param_groups[:] = groups


def steps_per_epoch(num_sequences: int, options: TrainingOptions) -> int:
    """Steps that one pass over the data takes; the last one may see fewer sequences."""
    batches = math.ceil(num_sequences / options.batch_size)
    return math.ceil(batches / options.gradient_accumulation_steps)


class EpochSampler(Sampler[int]):
    """Every sequence once an epoch, in an order that depends on seed, stage and epoch and on nothing else.

    A data set that has `begin_epoch` is told the three numbers as well, so that what it draws at random depends on
    them too. Where lengths are given, sequences of about the same length stand together, so that little is padded:
    each `batch_size * CHUNK` of the shuffled sequences are sorted, cut into batches, and the batches shuffled.

    Args:
        dataset: What is sampled; or how many sequences there are.
        seed: The recipe's; a model of another kind sees the same order.
        stage: Number of the stage, so that a second stage does not replay the first.
        batch_size: Sequences in a forward pass, where the data set has `lengths`.
    """

    CHUNK = 64

    def __init__(self, dataset: Any, seed: int, stage: int, batch_size: int = 1) -> None:
        self.size = dataset if isinstance(dataset, int) else len(dataset)
        self.seed, self.stage, self.epoch = seed, stage, 0
        self.batch_size, self.lengths = batch_size, getattr(dataset, "lengths", None)
        self._begin = getattr(dataset, "begin_epoch", None)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next."""
        self.epoch = epoch
        if self._begin is not None:
            self._begin(self.seed, self.stage, epoch)

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        # numpy mixes the three numbers; torch's generator would read the last 32 bits of one number alone.
        generator = np.random.default_rng([self.seed, self.stage, self.epoch])
        order = generator.permutation(self.size)
        if self.lengths is not None:
            order = batches_of_equal_length(order, np.asarray(self.lengths), self.batch_size, self.CHUNK, generator)
        return iter(order.tolist())


def batches_of_equal_length(
    order: np.ndarray, lengths: np.ndarray, batch_size: int, chunk: int, generator: np.random.Generator
) -> np.ndarray:
    """Rearrange an order so that runs of `batch_size` have about the same length; the last run may be short.

    >>> lengths = np.array([5, 1, 5, 1, 3])
    >>> batches_of_equal_length(np.arange(5), lengths, 2, 9, np.random.default_rng(0)).tolist()
    [0, 2, 4, 1, 3]
    """
    parts = []
    for start in range(0, len(order), batch_size * chunk):
        part = order[start : start + batch_size * chunk]
        part = part[np.argsort(-lengths[part], kind="stable")]
        parts += [part[first : first + batch_size] for first in range(0, len(part), batch_size)]
    whole = [part for part in parts if len(part) == batch_size]
    short = [part for part in parts if len(part) < batch_size]
    return np.concatenate([*(whole[index] for index in generator.permutation(len(whole))), *short])
