"""What a growth did, measured on a probe batch before and after."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

TOLERANCE = {torch.float64: 1e-12, torch.float32: 5e-6}
"""Largest relative L2 gap of an exact growth; half precisions get 2^-6, a few of their own rounding errors."""


@dataclass(frozen=True)
class GrowthReport:
    """What a growth changed.

    Args:
        exact: the function is unchanged by construction AND the measured gap is rounding error.
        gap_relative: L2 norm of the change of the outputs over that of the outputs, on the probe batch.
        gap_max: largest change of an output.
        parts: one row a grown part: name, counts before and after, tau before and after, whether it is exact.
        parameters_before: of the whole model.
        parameters_after: of the whole model.
        bytes_added: by parameters in the model's dtype.
        dead_parameters: new parameters that no gradient can ever reach.
        init: how the new parameters started.
    """

    exact: bool
    gap_relative: float
    gap_max: float
    parameters_before: int
    parameters_after: int
    bytes_added: int
    dead_parameters: int
    init: str
    parts: list[dict[str, Any]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain types, for JSON."""
        return asdict(self)

    def summary(self) -> str:
        """The report in one line."""
        return (
            f"grown from {self.parameters_before:,} to {self.parameters_after:,} parameters, init {self.init}, "
            f"outputs changed by {self.gap_relative:.2g} ({'exact' if self.exact else 'not exact'})"
        )


def tolerance(dtype: torch.dtype) -> float:
    """The largest relative gap that counts as rounding.

    Args:
        dtype: of the model.

    Returns:
        The bound.
    """
    return TOLERANCE.get(dtype, 2**-6)


@torch.no_grad()
def probe_outputs(model: PreTrainedModel, batch: Mapping[str, Tensor]) -> Tensor:
    """The model's outputs on a batch, dropout off, in float64 for the comparison.

    Args:
        model: any model of the library.
        batch: keyword arguments of its forward pass.

    Returns:
        What the model names as its `main_output_name`; else logits or painted images, or the last hidden state where
        there is no head; of other models the first output.
    """
    training = model.training
    model.eval()
    try:
        outputs = model(**batch)
    finally:
        model.train(training)
    first = getattr(model, "main_output_name", "logits")
    named = (outputs.get(name) for name in (first, "logits", "reconstruction", "last_hidden_state"))
    others = (value for value in outputs.to_tuple() if isinstance(value, Tensor) and value.is_floating_point())
    return next(tensor for tensor in (*named, *others) if tensor is not None).double()


def gap(before: Tensor, after: Tensor) -> tuple[float, float]:
    """How far apart two outputs are.

    Args:
        before: the outputs.
        after: the same after a change.

    Returns:
        ||after - before|| / ||before|| and max |after - before|.
    """
    change = after - before
    return float(change.norm() / before.norm().clamp(min=1e-300)), float(change.abs().max())


def count(model: nn.Module) -> int:
    """The number of parameters, each counted once.

    Args:
        model: any module.

    Returns:
        The count.
    """
    return sum(parameter.numel() for parameter in model.parameters())


def measured(
    model: PreTrainedModel,
    change: Callable[[], list[dict[str, Any]]],
    *,
    init: str,
    probe: Mapping[str, Tensor] | None,
) -> GrowthReport:
    """Change a model and report the difference that this made on a probe batch.

    Args:
        model: to be changed.
        change: does it, and returns one row a part.
        init: for the report.
        probe: keyword arguments of a forward pass; random ids if None.

    Returns:
        The report.
    """
    batch = model.random_inputs() if probe is None else probe
    before, parameters = probe_outputs(model, batch), count(model)
    rows = change()
    relative, largest = gap(before, probe_outputs(model, batch))
    added = count(model) - parameters
    return GrowthReport(
        exact=all(row["exact"] for row in rows) and relative <= tolerance(model.dtype),
        gap_relative=relative,
        gap_max=largest,
        parameters_before=parameters,
        parameters_after=parameters + added,
        bytes_added=added * torch.finfo(model.dtype).bits // 8,
        dead_parameters=sum(row["dead"] for row in rows),
        init=init,
        parts=rows,
    )
