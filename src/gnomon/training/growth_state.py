"""What outlasts a growth: the rules for rows, and the course of every score scale tau during the stage."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from gnomon.growth.measure import observe
from gnomon.growth.sites import pattentions


@dataclass
class GrowthState:
    """What outlasts the growth itself and so is part of every checkpoint of the stage.

    Attributes:
        rows: Rules for rows by parameter, as `RowUpdates.state_dict` gives them.
        anneal_steps: Steps over which tau is led to its target.
        score_scales: Name of a Pattention -> tau before and after.
        share_every: Steps between two measurements of the new tokens' shares.
        shares: Name of a Pattention -> tau before growth and the old tokens' count.
    """

    rows: dict[str, Any] = field(default_factory=dict)
    anneal_steps: int = 0
    score_scales: dict[str, list[float]] = field(default_factory=dict)
    share_every: int = 0
    shares: dict[str, list[float]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for JSON."""
        return asdict(self)

    def anneal(self, model: PreTrainedModel, step: int) -> None:
        """Lead every tau that is being annealed to where it belongs in this step.

        Args:
            model: After growth.
            step: Of the stage, from 0.
        """
        for name, _, module in pattentions(model):
            if name in self.score_scales and module.score_scale is not None:
                before, after = self.score_scales[name]
                module.score_scale.data.fill_(annealed(before, after, step, self.anneal_steps))

    def follow(self, model: PreTrainedModel, step: int, batches: Iterable[Mapping[str, Any]]) -> None:
        """Every `share_every` steps, measure the new tokens' shares on the step's own batches, and set tau by them.

        A measurement is a forward pass without dropout, which the ledger's FLOPs leave out. Between two of them tau
        is part of the saved model, and the batches depend on the step alone: a resumed run measures the same.

        Args:
            model: After growth.
            step: Of the stage, from 0.
            batches: Keyword arguments of forward passes.
        """
        if not self.shares or step % self.share_every:
            return
        inputs = [
            {name: value.to(model.device) for name, value in batch.items() if isinstance(value, Tensor)}
            for batch in batches
        ]
        if not inputs:
            return
        found = observe(model, inputs)
        for name, _, module in pattentions(model):
            if name in self.shares and module.score_scale is not None:
                before, old = self.shares[name]
                held = found[name].normalized
                assert held is not None
                share = float(held[int(old) :].sum()) / found[name].positions
                module.score_scale.data.fill_(shared(before, share))


def annealed(before: float, after: float, step: int, steps: int) -> float:
    """tau in a step counted from 0, led linearly from its old to its new value.

    >>> [annealed(2.0, 4.0, step, 4) for step in (0, 1, 4, 9)]
    [2.0, 2.5, 4.0, 4.0]
    """
    return before + (after - before) * min(step / steps, 1.0)


def shared(before: float, share: float) -> float:
    """tau at which the old tokens' scores are, on average, as large as they were before growth.

        tau = tau_old / sqrt(1 - share)

    The new tokens' share of ||A||^2 shrinks every old score by sqrt(1 - share). New tokens as large as the old ones
    hold (n_new - n_old) / n_new of it, which makes tau grow like the square root of the count.

    Args:
        before: tau_old.
        share: of ||A||^2 that the new tokens hold, from 0 to below 1.

    >>> shared(4.0, 0.0), shared(4.0, 0.75)
    (4.0, 8.0)
    """
    return before / math.sqrt(1.0 - share)
