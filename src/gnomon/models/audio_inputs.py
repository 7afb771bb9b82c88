"""From filterbanks to embeddings: fewer frames by convolutions, a projection, and positions by a convolution."""

import torch
from torch import Tensor, nn

from gnomon.models.audio_fields import subsampled_length
from gnomon.models.config import GnomonConfig
from gnomon.nn.convolutions import Convolution
from gnomon.nn.feedforward import ACTIVATIONS
from gnomon.nn.projections import Linear


class FilterbankEmbedding(nn.Module):
    """Filterbanks of sound as a sequence of embeddings, one for every few frames.

        h_0 = features,   h_{i+1} = phi(Conv_stride 2(h_i)),   x = W h,   output = x + phi(Conv_positions(x))

    Source: Wang et al. 2020 (arXiv 2010.05171), section 3 (the two convolutions); Baevski et al. 2020 (arXiv
    2006.11477), section 2, and its code for the positions' first standard deviation, 2 / sqrt(k d).

    Differs: the activation of the model stands where the one has a gated linear unit; the other normalizes the weight
    of its positions and the sum, and here the blocks' own norms follow. Padding is zero for every convolution, so that
    a row is what it would be alone.

    Args:
        config: of the model, with `num_mel_bins`.
    """

    def __init__(self, config: GnomonConfig) -> None:
        super().__init__()
        self.num_mel_bins, self.factor = config.num_mel_bins, config.subsampling_factor
        self.activation = ACTIVATIONS[config.hidden_act]
        channels, kernel = config.subsampling_conv_channels, config.subsampling_conv_kernel_size
        width = config.hidden_size
        sizes = [config.num_mel_bins] + [channels] * (self.factor.bit_length() - 1)
        self.convolutions = nn.ModuleList(
            Convolution(size, channels, kernel, stride=2, bias=config.use_bias, std=(2.0 / (size * kernel)) ** 0.5)
            for size in sizes[:-1]
        )
        self.projection = Linear(sizes[-1], width, bias=config.use_bias, std=sizes[-1] ** -0.5)
        self.positions = None
        if config.num_conv_pos_embeddings is not None:
            kernel = config.num_conv_pos_embeddings
            groups, std = config.num_conv_pos_embedding_groups, 2.0 * (kernel * width) ** -0.5
            self.positions = Convolution(width, width, kernel, groups=groups, bias=config.use_bias, std=std)

    def forward(self, input_features: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Embed filterbanks.

        Args:
            input_features: (batch, frames, mel bins).
            attention_mask: 1 for a frame, 0 for padding, which follows the frames, (batch, frames).

        Returns:
            Embeddings (batch, positions, d), ceil(frames / factor) of them, and the mask of these, if there was one.

        Raises:
            ValueError: for other bins than the model's, no frame, or a mask that does not fit.
        """
        self._check(input_features, attention_mask)
        x, mask = input_features.to(self.projection.weight.dtype), None
        if attention_mask is not None:
            mask = attention_mask.to(x.device).bool()
        for convolution in self.convolutions:
            x = self.activation(convolution(x, mask))
            mask = None if mask is None else mask[:, ::2]
        x = self.projection(x)
        if self.positions is not None:
            x = x + self.activation(self.positions(x, mask))
        return x, None if mask is None or attention_mask is None else mask.to(attention_mask.dtype)

    def shorten(self, attention_mask: Tensor | None) -> Tensor | None:
        """The mask of the positions, of that of the frames."""
        return None if attention_mask is None else attention_mask[:, :: self.factor]

    def output_length(self, frames: int) -> int:
        """How many positions there are of so many frames."""
        length: int = subsampled_length(frames, self.factor)
        return length

    def _check(self, features: Tensor, mask: Tensor | None) -> None:
        """Refuse what does not fit; where padding stands is looked at on the CPU alone, where looking is free."""
        if features.dim() != 3 or features.shape[2] != self.num_mel_bins or features.shape[1] < 1:
            raise ValueError(
                f"input_features must be (batch, at least 1 frame, {self.num_mel_bins} mel bins); "
                f"got {tuple(features.shape)}: use the feature extractor that was saved with the model"
            )
        if mask is None:
            return
        if mask.shape != features.shape[:2]:
            raise ValueError(
                f"attention_mask must have one number a frame, {tuple(features.shape[:2])}; got {tuple(mask.shape)}"
            )
        if mask.device.type == "cpu" and not torch.compiler.is_compiling() and bool((mask[:, 1:] > mask[:, :-1]).any()):
            raise ValueError("padding of sound follows its frames, so attention_mask is 1 and then 0; pad on the right")


__all__ = ["FilterbankEmbedding"]
