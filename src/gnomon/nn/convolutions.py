"""Convolutions over time that never look at padding, and over images that halve them."""

from collections.abc import Callable, Sequence

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from gnomon.nn.norms import build_norm


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


class HalvingConvolution(nn.Conv2d):
    """A convolution that halves an image, with zeros around it.

        y_rs = b + sum_{i, j = -1 .. 1} W_ij x_{2r + i, 2s + j}

    Args:
        in_channels: of the image.
        out_channels: of the result.
        bias: whether to add b.
    """

    def __init__(self, in_channels: int, out_channels: int, *, bias: bool = False) -> None:
        self.std = (2.0 / (9 * in_channels)) ** 0.5
        super().__init__(in_channels, out_channels, 3, stride=2, padding=1, bias=bias)

    def reset_parameters(self) -> None:
        """Draw fresh weights, of standard deviation sqrt(2 / inputs); the bias becomes zero."""
        nn.init.normal_(self.weight, std=self.std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class ConvolutionalStem(nn.Module):
    """Convolutions that halve an image, before it is cut into patches.

        h_0 = image,   h_{i+1} = phi(Norm(Conv(h_i)))

    Source: Xiao et al. 2021 (arXiv 2106.14881), section 4.1: 3 x 3, stride 2, a norm and an activation.
    Differs: the norm is the model's own, over the channels of a pixel, where theirs is over the batch, so that a row
    does not depend on the others; the width of the last step is left to the patches' projection.

    Args:
        num_channels: of the image.
        channels: of each convolution.
        norm: a name of `gnomon.nn.norms.NORMS`.
        eps: of the norms.
        activation: phi.
        bias: whether the convolutions have one.
    """

    def __init__(
        self,
        num_channels: int,
        channels: Sequence[int],
        *,
        norm: str,
        eps: float,
        activation: Callable[[Tensor], Tensor],
        bias: bool,
    ) -> None:
        super().__init__()
        self.activation = activation
        sizes = zip([num_channels, *channels], channels, strict=False)
        self.convolutions = nn.ModuleList(HalvingConvolution(size, count, bias=bias) for size, count in sizes)
        self.norms = nn.ModuleList(build_norm(norm, count, eps=eps) for count in channels)

    def forward(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch more lower narrower"]:
        """Apply all convolutions, to images of sizes that 2 to their number divides."""
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            images = norm(convolution(images).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
            images = self.activation(images)
        return images
