"""From images to embeddings: patches, their projection, and positions that fit images of any size."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gnomon.models.checks import check_divides
from gnomon.models.config import GnomonConfig
from gnomon.models.sizes import extents, image_grid
from gnomon.nn.convolutions import ConvolutionalStem
from gnomon.nn.feedforward import ACTIVATIONS
from gnomon.nn.initialization import Rule
from gnomon.nn.projections import Embedding, build_projection


def image_to_patches(images: Tensor, patch: tuple[int, int]) -> Tensor:
    """Cut images into patches, row by row.

        (batch, C, R h, S w) -> (batch, R S, C h w),  a patch's numbers in the order channel, row, column

    Source: Dosovitskiy et al. 2021 (arXiv 2010.11929), eq. 1; the order is that of a convolution's weight.

    Args:
        images: of whole patches.
        patch: h and w.

    Returns:
        The patches.
    """
    batch, channels, height, width = images.shape
    down, across = height // patch[0], width // patch[1]
    cut = images.view(batch, channels, down, patch[0], across, patch[1])
    return cut.permute(0, 2, 4, 1, 3, 5).reshape(batch, down * across, channels * patch[0] * patch[1])


def patches_to_image(patches: Tensor, patch: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """Put patches together again, the inverse of `image_to_patches`.

    Args:
        patches: (batch, R S, C h w).
        patch: h and w.
        grid: R and S.

    Returns:
        Images (batch, C, R h, S w).
    """
    down, across = grid
    cut = patches.view(len(patches), down, across, -1, *patch).permute(0, 3, 1, 4, 2, 5)
    return cut.reshape(len(patches), -1, down * patch[0], across * patch[1])


def pad_to_patches(images: Tensor, patch: tuple[int, int]) -> Tensor:
    """Fill images up to whole patches with zeros, below and to the right.

    Args:
        images: (batch, channels, height, width).
        patch: height and width of a patch.

    Returns:
        The images, the same tensor where nothing is missing.
    """
    below, right = -images.shape[2] % patch[0], -images.shape[3] % patch[1]
    return F.pad(images, (0, right, 0, below)) if below or right else images


def interpolate_positions(table: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """A table of positions for another grid of patches; rows before those of the patches stay as they are.

    Source: Dosovitskiy et al. 2021, section 3.2 (2-d interpolation); bicubic, as in transformers' ViT.

    Args:
        table: (own + R S, d), its last R S rows those of a grid, row by row.
        old: R and S.
        new: those of the images.

    Returns:
        (own + new R * new S, d); the same table where the grids are equal.
    """
    if old == new:
        return table
    own = len(table) - old[0] * old[1]
    grid = table[own:].view(1, *old, -1).permute(0, 3, 1, 2)
    resized = F.interpolate(grid.float(), size=new, mode="bicubic", align_corners=False).to(table.dtype)
    return torch.cat((table[:own], resized[0].permute(1, 2, 0).reshape(new[0] * new[1], -1)))


def sinusoidal_positions_2d(
    grid: tuple[int, int], width: int, *, trained: tuple[int, int] | None = None, device: torch.device | None = None
) -> Tensor:
    """Sines and cosines of a patch's row and column.

        p_rs = [ sin(s w), cos(s w), sin(r w), cos(r w) ],   w_j = 10000^(-j / q),  j = 0 .. q - 1,  q = d/4

    Another grid than the trained one spans the same image: r becomes (r + 1/2) R_trained / R - 1/2.

    Source: Chen et al. 2021 (arXiv 2104.02057), section 5, as in its code.

    Args:
        grid: R and S, how many patches there are down and across.
        width: d, which 4 divides.
        trained: the grid that the model is trained for; `grid` if None.
        device: of the result.

    Returns:
        (R S, d), float32.
    """
    quarter = width // 4
    frequencies = 10000.0 ** (-torch.arange(quarter, device=device, dtype=torch.float32) / quarter)

    def waves(count: int, span: int) -> Tensor:
        places = (torch.arange(count, device=device, dtype=torch.float32) + 0.5) * (span / count) - 0.5
        angles = places.unsqueeze(-1) * frequencies
        return torch.cat((angles.sin(), angles.cos()), dim=-1)

    span = trained or grid
    rows, columns = waves(grid[0], span[0]), waves(grid[1], span[1])
    both = (columns.expand(grid[0], -1, -1), rows.unsqueeze(1).expand(-1, grid[1], -1))
    return torch.cat(both, dim=-1).flatten(0, 1)


def random_mask(rows: int, patches: int, ratio: float, generator: torch.Generator | None = None) -> Tensor:
    """Which patches are hidden: as many in every row, drawn without replacement.

    Source: SimMIM (arXiv 2111.09886), section 3.2.

    Args:
        rows: of the batch.
        patches: of an image.
        ratio: share that is hidden, above 0 and below 1; at least one patch is, and at least one is not.
        generator: of the choice; torch's own if None.

    Returns:
        (rows, patches), true where a patch is hidden.

    Raises:
        ValueError: for a ratio out of range, or an image of a single patch.
    """
    if not 0.0 < ratio < 1.0 or patches < 2:
        raise ValueError(
            f"mask_ratio hides some of an image's patches and shows others, so it lies above 0 and below 1 and there "
            f"are at least 2; got {ratio} and {patches}"
        )
    hidden = min(max(round(ratio * patches), 1), patches - 1)
    ranks = torch.rand(rows, patches, generator=generator).argsort(dim=1).argsort(dim=1)
    return ranks < hidden


def patch_pixels(chosen: Tensor, patch: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """Which pixels lie in chosen patches.

    Args:
        chosen: true for a chosen patch, (batch, R S).
        patch: h and w.
        grid: R and S.

    Returns:
        (batch, 1, R h, S w).
    """
    places = chosen.bool().view(len(chosen), 1, *grid)
    return places.repeat_interleave(patch[0], dim=2).repeat_interleave(patch[1], dim=3)


class PatchEmbedding(nn.Module):
    """Images as a sequence of embeddings: a class token, if there is one, and the patches.

        x_p W + position_p,   x a patch of the image, or of what the stem's convolutions make of it

    Source: Dosovitskiy et al. 2021, eq. 1; its code starts W from a standard deviation of 1 / sqrt(pixels of a patch).

    Args:
        config: of the model, with an image_size.
        rule: the initialization rule.
    """

    def __init__(self, config: GnomonConfig, rule: Rule) -> None:
        super().__init__()
        self.config, width = config, config.hidden_size
        self.patch, self.grid = extents(config.patch_size), image_grid(config.to_dict())
        std, channels = rule("embedding", "weight", 1, width), config.stem_conv_channels
        self.stem, self.cut, in_channels = None, self.patch, config.num_channels
        if channels is not None:
            activation, step = ACTIVATIONS[config.hidden_act], 2 ** len(channels)
            options = {"norm": config.norm, "eps": config.norm_eps, "activation": activation, "bias": config.use_bias}
            self.stem = ConvolutionalStem(config.num_channels, channels, **options)
            self.cut, in_channels = (self.patch[0] // step, self.patch[1] // step), channels[-1]
        lecun = Rule(lambda site, kind, fan_in, fan_out: fan_in**-0.5, is_uniform=rule.is_uniform)
        tokens = {"num_tokens": config.num_patch_tokens, "score": config.score}
        self.projection = build_projection(
            config.patch_projection,
            in_channels * self.cut[0] * self.cut[1],
            width,
            site="patch",
            rule=lecun if config.patch_projection == "linear" else rule,
            bias=config.use_bias,
            **(tokens if config.patch_projection == "pattention" else {}),
        )
        self.class_token = Embedding(1, width, std=std) if config.use_class_token else None
        self.positions = None
        if config.positions == "learned":
            self.positions = Embedding(int(config.use_class_token) + self.grid[0] * self.grid[1], width, std=std)

    def forward(
        self,
        pixel_values: Tensor,
        bool_masked_pos: Tensor | None = None,
        mask_token: Tensor | None = None,
        interpolate_pos_encoding: bool = True,
    ) -> Tensor:
        """Embed images.

        Args:
            pixel_values: (batch, channels, height, width).
            bool_masked_pos: true where a patch is hidden, (batch, patches).
            mask_token: what stands in the place of hidden ones, (1, d).
            interpolate_pos_encoding: take images of other sizes than the model's; else they are refused.

        Returns:
            (batch, class token + patches, d).

        Raises:
            ValueError: for other channels than the model's, or a size that does not fit.
        """
        if pixel_values.dim() != 4 or pixel_values.shape[1] != self.config.num_channels:
            raise ValueError(
                f"pixel_values must be (batch, {self.config.num_channels} channels, height, width); "
                f"got {tuple(pixel_values.shape)}: use the image processor that was saved with the model"
            )
        size = (pixel_values.shape[2], pixel_values.shape[3])
        if not interpolate_pos_encoding and size != extents(self.config.image_size):
            raise ValueError(
                f"images must be {' x '.join(map(str, extents(self.config.image_size)))} pixels; got {size[0]} x "
                f"{size[1]}: resize them, or set interpolate_pos_encoding"
            )
        check_divides(size, self.config)
        images = pad_to_patches(pixel_values.to(self.dtype), self.patch)
        grid = (images.shape[2] // self.patch[0], images.shape[3] // self.patch[1])
        if bool_masked_pos is not None and self.stem is not None:  # its convolutions see beyond a patch
            images = images.masked_fill(patch_pixels(bool_masked_pos, self.patch, grid).to(images.device), 0.0)
        embeds = self.projection(image_to_patches(images if self.stem is None else self.stem(images), self.cut))
        if bool_masked_pos is not None and mask_token is not None:
            embeds = torch.where(bool_masked_pos.bool().unsqueeze(-1), mask_token.to(embeds.dtype), embeds)
        if self.class_token is not None:
            embeds = torch.cat((self.class_token.weight.expand(len(embeds), -1, -1), embeds), dim=1)
        return embeds + positions if (positions := self._positions(grid, embeds)) is not None else embeds

    @property
    def pixels(self) -> int:
        """Numbers of a patch of the image."""
        size: int = self.config.num_channels * self.patch[0] * self.patch[1]
        return size

    @property
    def dtype(self) -> torch.dtype:
        """Of the projection's parameters."""
        return next(self.projection.parameters()).dtype

    def tables(self) -> list[Embedding]:
        """The tables whose rows are embeddings, which widen with the model."""
        return [table for table in (self.class_token, self.positions) if table is not None]

    def _positions(self, grid: tuple[int, int], embeds: Tensor) -> Tensor | None:
        """What is added to the embeddings; nothing to the class token in the 2-d sine scheme."""
        if self.positions is not None:
            return interpolate_positions(self.positions.weight, self.grid, grid)
        if self.config.positions != "sinusoidal_2d":
            return None
        waves = sinusoidal_positions_2d(grid, self.config.hidden_size, trained=self.grid, device=embeds.device)
        return F.pad(waves, (0, 0, embeds.shape[1] - len(waves), 0)).to(embeds.dtype)


__all__ = [
    "PatchEmbedding",
    "image_to_patches",
    "interpolate_positions",
    "pad_to_patches",
    "patch_pixels",
    "patches_to_image",
    "random_mask",
    "sinusoidal_positions_2d",
]
