"""The optimizer's side of a recipe: the learning rate's course, what decays, and the order of the data."""

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn
from torch.utils.data import Sampler

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


def steps_per_epoch(num_sequences: int, options: TrainingOptions) -> int:
    """Steps that one pass over the data takes; the last one may see fewer sequences."""
    batches = math.ceil(num_sequences / options.batch_size)
    return math.ceil(batches / options.gradient_accumulation_steps)


class EpochSampler(Sampler[int]):
    """Every sequence once an epoch, in an order that depends on seed, stage and epoch and on nothing else.

    Args:
        size: Number of sequences.
        seed: The recipe's; a model of another kind sees the same order.
        stage: Number of the stage, so that a second stage does not replay the first.
    """

    def __init__(self, size: int, seed: int, stage: int) -> None:
        self.size, self.seed, self.stage, self.epoch = size, seed, stage, 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        # numpy mixes the three numbers; torch's generator would read the last 32 bits of one number alone.
        generator = np.random.default_rng([self.seed, self.stage, self.epoch])
        return iter(generator.permutation(self.size).tolist())
