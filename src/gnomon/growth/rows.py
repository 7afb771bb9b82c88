"""Rates, freezing and bias correction of single rows: they act on the optimizer's UPDATE, never on gradients.

Adam divides a gradient by its own size, so a factor on the gradient does not change the step; and decoupled weight
decay and warm moments move rows whose gradient is zero. What the optimizer did to a row is known only after its step.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


@dataclass
class RowRule:
    """What happens to a parameter's rows after each step.

    Args:
        old_rows: how many rows, from the first, are old; the others are new.
        old_rate: factor on the old rows' updates; 0 freezes them, bit for bit.
        new_rate: factor on the new rows' updates.
        born: steps that the optimizer had counted for this parameter when the new rows came; None to leave Adam's
            bias correction of the new rows as it is.
        warmup_steps: steps over which the new rows' factor rises linearly to `new_rate`.
        warmup_from: the optimizer's count at which that rise began.
    """

    old_rows: int
    old_rate: float = 1.0
    new_rate: float = 1.0
    born: float | None = None
    warmup_steps: int = 0
    warmup_from: float = 0.0

    def new_factor(self, count: float) -> float:
        """The factor on the new rows' updates in the step that brings the optimizer's count to `count`.

        >>> [RowRule(1, new_rate=2.0, warmup_steps=4, warmup_from=10.0).new_factor(count) for count in (11, 12, 14, 19)]
        [0.5, 1.0, 2.0, 2.0]
        """
        if not self.warmup_steps:
            return self.new_rate
        return self.new_rate * min(1.0, (count - self.warmup_from) / self.warmup_steps)


class RowUpdates:
    """Applies rules to the rows of an optimizer's parameters, in hooks before and after each step.

        u_old <- old_rate * u,    u_new <- new_rate * c(t) * u,    u the change that the optimizer made

    torch keeps one step count T a tensor, and a carried count makes Adam take new rows' zero moments for long
    averages: with beta2 0.999 they move up to 5 times too far. With t = T - born their own count,

        c(t) = (1 - beta1^T) / (1 - beta1^t) * sqrt( (1 - beta2^t) / (1 - beta2^T) )

    turns Adam's step into the one that a fresh optimizer would have made (its epsilon aside). Decoupled weight decay
    is part of the update and so follows the rates, but not c(t).

    Args:
        optimizer: the optimizer to watch; `detach` ends it.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.rules: dict[str, tuple[nn.Parameter, RowRule]] = {}
        self._before: dict[str, Tensor] = {}
        self._hooks = [
            optimizer.register_step_pre_hook(self._remember),
            optimizer.register_step_post_hook(self._adjust),
        ]

    def add(self, name: str, parameter: nn.Parameter, rule: RowRule) -> None:
        """Rule over a parameter of the optimizer.

        Args:
            name: of the parameter, the key under which the rule is saved.
            parameter: held by the optimizer.
            rule: for its rows.

        Raises:
            ValueError: when the rule has a negative rate, or an optimizer without Adam's counts cannot be corrected.
        """
        if min(rule.old_rate, rule.new_rate) < 0:
            raise ValueError(f"rates of rows must be at least 0; got {rule.old_rate} and {rule.new_rate} for {name}")
        self.rules[name] = (parameter, rule)

    def detach(self) -> None:
        """Stop watching."""
        for hook in self._hooks:
            hook.remove()

    def state_dict(self) -> dict[str, Any]:
        """The rules by parameter name, as plain types."""
        return {name: asdict(rule) for name, (_, rule) in self.rules.items()}

    def load_state_dict(self, state: dict[str, Any], model: nn.Module) -> None:
        """Take up saved rules again.

        Args:
            state: from `state_dict`.
            model: has the parameters that the names mean.

        Raises:
            ValueError: when the model has no such parameter.
        """
        parameters = dict(model.named_parameters())
        for name, rule in state.items():
            if name not in parameters:
                raise ValueError(
                    f"a row rule was saved for {name}, which the model does not have; load the model it fits"
                )
            self.add(name, parameters[name], RowRule(**rule))

    def _remember(self, *_: Any) -> None:
        self._before = {
            name: parameter.detach().clone()
            for name, (parameter, _) in self.rules.items()
            if parameter.grad is not None
        }

    @torch.no_grad()
    def _adjust(self, *_: Any) -> None:
        groups = {id(parameter): group for group in self.optimizer.param_groups for parameter in group["params"]}
        for name, before in self._before.items():
            parameter, rule = self.rules[name]
            group = groups[id(parameter)]
            old, new = slice(0, rule.old_rows), slice(rule.old_rows, None)
            if rule.old_rate != 1.0:
                scale_update(parameter[old], before[old], rule.old_rate, 0.0, 1.0)
            state = self.optimizer.state.get(parameter, {})
            correction = bias_correction(rule, state, group)
            rate = rule.new_factor(float(state.get("step", math.inf)))
            if rate != 1.0 or correction != 1.0:
                decay = decoupled_decay(self.optimizer, group)
                scale_update(parameter[new], before[new], rate, decay, correction)
        self._before = {}


def scale_update(rows: Tensor, before: Tensor, rate: float, decay: float, correction: float) -> None:
    """Replace rows by before + rate * (decay part + correction * rest) of their update, in place.

    Args:
        rows: after the optimizer's step.
        before: the same before it.
        rate: factor on all of the update; 0 brings the rows back bit for bit.
        decay: what decoupled weight decay took, as a fraction of `before`.
        correction: factor on the rest.
    """
    if rate == 0.0:
        rows.copy_(before)
        return
    decayed = before * (1.0 - decay)
    rows.copy_(before + rate * ((decayed - before) + correction * (rows - decayed)))


def bias_correction(rule: RowRule, state: dict[str, Any], group: dict[str, Any]) -> float:
    """c(t) of new rows, 1.0 where the optimizer is no Adam or the rule wants none.

    Args:
        rule: tells when the rows were born.
        state: the optimizer's, of this parameter, after its step.
        group: the optimizer's, of this parameter.

    Returns:
        The factor.
    """
    if rule.born is None or "step" not in state or "betas" not in group:
        return 1.0
    total = float(state["step"])
    own = total - rule.born
    if own <= 0 or rule.born == 0:
        return 1.0
    first, second = (float(beta) for beta in group["betas"])
    return float((1 - first**total) / (1 - first**own) * math.sqrt((1 - second**own) / (1 - second**total)))


def decoupled_decay(optimizer: Optimizer, group: dict[str, Any]) -> float:
    """The fraction of a parameter that one step's decoupled weight decay takes away.

    Args:
        optimizer: AdamW, or Adam with `decoupled_weight_decay`; others decay through the gradient.
        group: of the parameter.

    Returns:
        lr * weight_decay, or 0.
    """
    decoupled = isinstance(optimizer, torch.optim.AdamW) or group.get("decoupled_weight_decay", False)
    return float(group["lr"]) * float(group.get("weight_decay", 0.0)) if decoupled else 0.0
