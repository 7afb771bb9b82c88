"""What runs through a model, one number a layer: the size of its activations and of its gradients."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from gnomon.nn.blocks import Block


def model_blocks(model: nn.Module) -> list[Block]:
    """The blocks of a model in the order in which they are built, an encoder's before its decoder's.

    Args:
        model: any model of the library.

    Returns:
        The blocks.

    Raises:
        ValueError: when the model has none.
    """
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    if not blocks:
        raise ValueError(f"an analysis needs a model made of gnomon's blocks; {type(model).__name__} has none")
    return blocks


@contextmanager
def record_activations(model: nn.Module) -> Iterator[list[float]]:
    """Record the root mean square of the residual stream behind every block, while the context lasts.

        RMS_l = sqrt( mean over batch, positions and width of x_l^2 )

    The statistic is taken in float32 or wider, whatever the model runs in.

    Args:
        model: any model of the library.

    Yields:
        One number a block, filled by each forward pass (the last one counts); NaN before the first.

    >>> from gnomon.models.config import GnomonConfig
    >>> from gnomon.models.backbone import GnomonModel
    >>> model = GnomonModel(GnomonConfig(vocab_size=8, hidden_size=16, num_hidden_layers=3, num_attention_heads=2))
    >>> with record_activations(model) as sizes:
    ...     output = model(torch.tensor([[1, 2, 3]]))
    >>> len(sizes)
    3
    """
    blocks = model_blocks(model)
    sizes = [float("nan")] * len(blocks)

    def hook(layer: int) -> Callable[[nn.Module, object, Tensor], None]:
        def record(block: nn.Module, inputs: object, stream: Tensor) -> None:
            sizes[layer] = root_mean_square(stream)

        return record

    handles = [block.register_forward_hook(hook(layer)) for layer, block in enumerate(blocks)]
    try:
        yield sizes
    finally:
        for handle in handles:
            handle.remove()


def gradient_norms(model: nn.Module) -> list[float]:
    """The Euclidean norm of each block's gradient, over all its parameters.

    Args:
        model: after a backward pass.

    Returns:
        One number a block; parameters without a gradient count as zero.
    """
    norms = []
    for block in model_blocks(model):
        squares = [
            parameter.grad.detach().float().square().sum()
            for parameter in block.parameters()
            if parameter.grad is not None
        ]
        norms.append(float(torch.stack(squares).sum().sqrt()) if squares else 0.0)
    return norms


def root_mean_square(values: Tensor) -> float:
    """sqrt(mean of squares), in float32 or wider.

    Args:
        values: of any shape and dtype.

    Returns:
        One number.
    """
    wide = values.detach().to(torch.promote_types(values.dtype, torch.float32))
    return float(wide.square().mean().sqrt())
