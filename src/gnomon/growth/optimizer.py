"""Carrying an optimizer across a growth: its state keeps the old rows and gets zeros for the new ones.

The parameter objects stay the same (growth replaces their data), so param groups, schedulers and hooks need nothing.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

FIRST_MOMENTS = frozenset({"exp_avg", "momentum_buffer", "mu", "m"})
SECOND_MOMENTS = frozenset({"exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum", "nu", "v"})


def check_optimizer(optimizer: Optimizer, model: nn.Module, grown: Iterable[tuple[str, nn.Parameter]]) -> None:
    """Refuse an optimizer that is not this model's, or whose state has a form that cannot grow.

    Args:
        optimizer: to be carried along.
        model: to be grown.
        grown: names and parameters that are about to change their shape.

    Raises:
        ValueError: naming the parameter, and the state that cannot be padded.
    """
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    own = {id(parameter) for parameter in model.parameters()}
    if not held & own:
        raise ValueError(
            "the optimizer holds no parameter of this model; give the one that was built from model.parameters()"
        )
    for name, parameter in grown:
        if id(parameter) not in held and parameter.requires_grad:
            raise ValueError(f"the optimizer does not hold {name}; give the one that trains this model")
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor) and value.numel() > 1 and value.shape != parameter.shape:
                raise ValueError(
                    f"the optimizer keeps {key} of {name} with shape {tuple(value.shape)}, which does not follow the "
                    f"parameter's {tuple(parameter.shape)} and cannot grow with it; grow without the optimizer "
                    "(optimizer=None) and start a fresh one"
                )


def grow_parameter(
    parameter: nn.Parameter,
    data: Tensor,
    source: Tensor,
    *,
    optimizer: Optimizer | None = None,
    moment: float = 1.0,
    drop_state: bool = False,
) -> None:
    """Replace a parameter's rows and let the optimizer's state follow, row by row.

    Args:
        parameter: keeps its identity; its data is replaced and its gradient dropped.
        data: the rows after growth.
        source: for each of them, the old row whose state it takes, -1 for none (zeros).
        optimizer: whose state follows.
        moment: factor on first moments, its square on second moments, where the copies' gradients are smaller.
        drop_state: forget the state instead.
    """
    shape = parameter.shape
    parameter.data = data.to(parameter.data)
    parameter.grad = None
    if optimizer is None or parameter not in optimizer.state:
        return
    if drop_state:
        del optimizer.state[parameter]
        return
    for key, value in optimizer.state[parameter].items():
        if isinstance(value, Tensor) and value.shape == shape and value.numel() > 1:
            factor = moment if key in FIRST_MOMENTS else moment**2 if key in SECOND_MOMENTS else 1.0
            optimizer.state[parameter][key] = take_rows(value, source) * factor


def take_rows(value: Tensor, source: Tensor) -> Tensor:
    """Rows of a tensor by index, zeros where the index is -1.

    Args:
        value: one row a token.
        source: indices.

    Returns:
        A new tensor with `len(source)` rows.
    """
    source = source.to(value.device)
    rows = value[source.clamp(min=0)]
    return torch.where((source < 0).view(-1, *[1] * (value.dim() - 1)), torch.zeros_like(rows), rows)
