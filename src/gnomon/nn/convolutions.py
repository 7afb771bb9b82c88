"""Convolutions over time that never look at padding."""

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn


class Convolution(nn.Conv1d):
    """A convolution along a row, with zeros before its beginning, after its end and in place of padding.

        y_t = b + sum_j W_j m_{s t + j} x_{s t + j},   j = -floor((k - 1) / 2) .. floor(k / 2)

    A row is as if it stood alone, and keeps every s-th position: its first, and ceil(T / s) of T in all.

    Args:
        in_features: width of the input.
        out_features: width of the output.
        kernel_size: k, in positions.
        stride: s.
        groups: the channels fall into so many groups that do not see each other.
        bias: whether to add b.
        std: initial standard deviation of W.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: int,
        *,
        stride: int = 1,
        groups: int = 1,
        bias: bool = False,
        std: float = 0.02,
    ) -> None:
        self.std = std
        super().__init__(in_features, out_features, kernel_size, stride=stride, groups=groups, bias=bias)

    def reset_parameters(self) -> None:
        """Draw fresh weights; the bias becomes zero."""
        nn.init.normal_(self.weight, std=self.std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(
        self, x: Float[Tensor, "batch length in_features"], mask: Bool[Tensor, "batch length"] | None = None
    ) -> Float[Tensor, "batch shorter out_features"]:
        """Apply the convolution.

        Args:
            x: the rows.
            mask: true where a position is no padding; all are none if None.

        Returns:
            The rows, every s-th position of them.
        """
        if mask is not None:
            x = x.masked_fill(~mask.unsqueeze(-1), 0.0)
        before = (self.kernel_size[0] - 1) // 2
        padded = F.pad(x.transpose(1, 2), (before, self.kernel_size[0] - 1 - before))
        return super().forward(padded).transpose(1, 2)
