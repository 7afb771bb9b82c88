"""What the front end of a model of sound costs, by formula. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FrontEnd:
    """The weights in front of the blocks.

    Args:
        convolutions: of each convolution that halves the frames, in order.
        projection: to the width of the blocks.
        positions: of the convolution that adds positions.
        biases: of all of them.
    """

    convolutions: tuple[int, ...]
    projection: int
    positions: int
    biases: int

    @property
    def weights(self) -> int:
        """All weights."""
        return sum(self.convolutions) + self.projection + self.positions

    def products_per_frame(self) -> float:
        """Multiplications a frame: each convolution has half the outputs of the one before."""
        halved = sum(weights / 2 ** (number + 1) for number, weights in enumerate(self.convolutions))
        return float(halved + (self.projection + self.positions) / 2 ** len(self.convolutions))


def front_end(fields: Mapping[str, Any]) -> FrontEnd:
    """The front end that a configuration describes.

    Args:
        fields: resolved fields of a model of sound.

    Returns:
        Its weights.
    """
    width, channels = fields["hidden_size"], fields["subsampling_conv_channels"]
    count = fields["subsampling_factor"].bit_length() - 1
    sizes = [fields["num_mel_bins"], *[channels] * count]
    kernel, reach = fields["subsampling_conv_kernel_size"], fields["num_conv_pos_embeddings"]
    positions = 0 if reach is None else reach * width * (width // fields["num_conv_pos_embedding_groups"])
    biases = count * channels + width + (0 if reach is None else width)
    return FrontEnd(
        convolutions=tuple(size * kernel * channels for size in sizes[:-1]),
        projection=sizes[-1] * width,
        positions=positions,
        biases=biases if fields["use_bias"] else 0,
    )


def forward_flops_per_frame(fields: Mapping[str, Any], frames: int, non_embedding: int, head: int) -> int:
    """Operations of a forward pass, per frame of sound: one position of the blocks for every few frames.

        2 (front end + (N + V d) / s) + 4 L d T / s^2

    A decoder is counted as if it wrote a token for every position, and a classifier's head as if it read each.

    Args:
        fields: resolved fields of a model of sound.
        frames: T, of one sound.
        non_embedding: N, weights of the blocks.
        head: V d, weights of the head.
    """
    factor = fields["subsampling_factor"]
    width = fields["num_attention_heads"] * fields["head_dim"]
    products = front_end(fields).products_per_frame() + (non_embedding + head) / factor
    flops: int = round(2 * products + 4 * fields["num_hidden_layers"] * width * frames / factor**2)
    return flops
