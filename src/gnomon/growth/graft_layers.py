"""Layers with a graft: each keeps its name, its parameters and its own forward, and has something new beside it.

Three roles are enough. `tokens` adds Pattention beside a linear layer. `write` and `read` are the two ends of a wider
feed-forward: the new neurons' keys are new rows of the layers that write the hidden units, their values new columns of
the layer that reads them, and whatever stands between (activation, gate, dropout) acts on old and new units alike:

    tokens:  y = W x + b + Theta(x K^T) V                     Theta an L2 score, a softmax or a GELU
    neurons: y = W_2 f(W_1 x + b_1) + b_2 + V f(K x + b_K)    f the model's own, gated or not

The values V start at zero, so the outputs do not move at first. The keys K start random: V has a gradient from the
first step and K, whose gradient is a product with V, from the second. Zero keys would leave the outputs alone too, but
they are worse: under an L2 score a row of zero scores has no direction, and the gradient of the norm is 1 / sqrt(eps)
there; under softmax a zero key is not neutral; and ReLU passes no gradient at zero. Both at zero learn nothing, ever.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from gnomon.nn.projections import Pattention

LAYERS = (nn.Linear, Conv1D)
"""What counts as a linear layer: torch's, and GPT-2's, whose weight is transposed."""

CHILD = "graft"
"""The name of what is new, below the layer that it stands beside."""


@dataclass(frozen=True)
class Part:
    """One grafted layer, as an adapter's file describes it.

    Args:
        name: of the layer in its model.
        role: `tokens`, `write` or `read`.
        in_features: width of the layer's input, without the graft.
        out_features: width of its output, without the graft.
        num_tokens: parameter tokens beside it, or new neurons.
        score: of the tokens; None for neurons.
        bias: whether the new neurons have a bias, as their layer has.
        group: what has to be grafted together: the name of the reading layer, for neurons.
    """

    name: str
    role: str
    in_features: int
    out_features: int
    num_tokens: int
    score: str | None = None
    bias: bool = False
    group: str | None = None

    def __post_init__(self) -> None:
        if self.role not in CLASSES:
            raise ValueError(f"the role of a part must be one of {', '.join(CLASSES)}; {self.name} has {self.role!r}")

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for JSON."""
        return asdict(self)

    def build(self) -> nn.Module:
        """What is new, on the CPU in float32, its values at zero and its keys not drawn yet."""
        if self.role == "tokens":
            graft = Pattention(
                self.in_features, self.out_features, self.num_tokens, score=str(self.score), value_std=0.0
            )
            return graft
        if self.role == "write":
            return nn.Linear(self.in_features, self.num_tokens, bias=self.bias)
        return nn.Linear(self.num_tokens, self.out_features, bias=False)

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """The names and shapes of what is new, as the model's state has them."""
        with torch.device("meta"):
            state = self.build().state_dict()
        return {f"{self.name}.{CHILD}.{name}": tuple(tensor.shape) for name, tensor in state.items()}


class Grafted:
    """Mixed into the class of a layer that has a graft."""

    graft: nn.Module
    graft_part: Part


class BesideTokens(Grafted):
    """A layer with parameter tokens beside it."""

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output and the tokens', added."""
        return super().forward(x) + self.graft(x)  # type: ignore[misc]


class WritesNeurons(Grafted):
    """A layer of a feed-forward that writes new hidden units after its own."""

    def forward(self, x: Tensor) -> Tensor:
        """The layer's hidden units, then the new ones."""
        return torch.cat((super().forward(x), self.graft(x)), dim=-1)  # type: ignore[misc]


class ReadsNeurons(Grafted):
    """The layer of a feed-forward that reads its own hidden units and the new ones after them."""

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output from its own units and the contribution of the new ones, added."""
        new = self.graft.in_features
        own, added = x.split((x.shape[-1] - new, new), dim=-1)
        return super().forward(own.contiguous()) + self.graft(added)  # type: ignore[misc]


CLASSES: dict[str, type[Grafted]] = {"tokens": BesideTokens, "write": WritesNeurons, "read": ReadsNeurons}
"""Role -> what is mixed into the layer's class."""


@cache
def grafted_class(own: type[nn.Module], role: str) -> type[nn.Module]:
    """The class of a grafted layer: its own class with the role mixed in, as torch's parametrizations do it.

    Args:
        own: the layer's class.
        role: a name of `CLASSES`.

    Returns:
        The class.
    """
    return type(f"Grafted{own.__name__}", (CLASSES[role], own), {"__module__": own.__module__})


def attach(layer: nn.Module, part: Part, graft: nn.Module) -> None:
    """Put a graft beside a layer, in the layer's dtype (the score scale stays float32) and on its device.

    Args:
        layer: of `LAYERS`.
        part: what the graft is.
        graft: built by `part.build()`.
    """
    layer.graft = graft.to(layer.weight.device, layer.weight.dtype)
    layer.graft_part = part
    layer.__class__ = grafted_class(type(layer), part.role)


def detach(layer: nn.Module) -> None:
    """Make a grafted layer again what it was.

    Args:
        layer: a grafted one.
    """
    layer.__class__ = type(layer).__bases__[1]
    del layer.graft, layer.graft_part


def grafted_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every grafted layer with its name.

    Args:
        model: any model.

    Returns:
        An iterator in the order of the model.
    """
    return ((name, layer) for name, layer in model.named_modules() if isinstance(layer, Grafted))


def widths(layer: nn.Module) -> tuple[int, int]:
    """The widths of a layer's input and output.

    Args:
        layer: of `LAYERS`.

    Returns:
        Both.
    """
    return (layer.nx, layer.nf) if isinstance(layer, Conv1D) else (layer.in_features, layer.out_features)


@torch.no_grad()
def draw(layer: nn.Module, part: Part, key_std: float | None, generator: torch.Generator | None) -> nn.Module:
    """Build a part's graft with random keys and zero values.

    Args:
        layer: that it will stand beside.
        part: what it is.
        key_std: of the keys; None for 1 / sqrt(in_features) of tokens, so that a score has the size of an entry of
            x, and for the standard deviation of the layer's own weights of neurons, so that new ones are like old ones.
        generator: of the random numbers.

    Returns:
        The graft.

    Raises:
        ValueError: the keys would be zero like the values.
    """
    graft = part.build()
    if part.role == "read":
        nn.init.zeros_(graft.weight)
        return graft
    if key_std is None:
        key_std = float(layer.weight.float().std()) if part.role == "write" else 1 / math.sqrt(part.in_features)
    if not 0.0 < key_std < math.inf:
        raise ValueError(
            f"key_std must be above 0 and finite, since new values start at zero, and zero keys beside zero values get "
            f"no gradient, ever; got {key_std} for {part.name}"
        )
    if isinstance(graft, Pattention):
        nn.init.normal_(graft.key_tokens, std=key_std, generator=generator)
        return graft
    nn.init.normal_(graft.weight, std=key_std, generator=generator)
    if graft.bias is not None:
        nn.init.zeros_(graft.bias)
    return graft
