"""Change training data at random so that a model learns what does not matter: images through kornia, and speech."""

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from gnomon.optional import import_optional

GROUP_SIZE = 8
"""So many images of a batch share the operations of one draw of RandAugment; their strengths differ in sign."""


@dataclass(frozen=True)
class ImageAugmentation:
    """Random changes of a batch of images; everything is drawn from torch's own generator.

    Differs: kornia draws RandAugment's operations a batch; here they are drawn for every 8 images.

    Args:
        crop_padding: By how many pixels an image is padded (mirrored) on every side before a crop of its own size.
        flip: The probability that an image is mirrored left to right.
        rotation: The largest angle that an image is turned by to either side, in degrees.
        shear: The largest slant that it is given along each axis, in degrees.
        shift: The farthest that it is moved along each axis, as a share of its size, 0 to 1.
        zoom: How much larger or smaller it is made at most, as a share of its size, 0 to below 1.
        color_jitter: How far brightness, contrast and saturation change at most, 0 to 1; the hue a quarter as far.
        grayscale: The probability that an image loses its colors.
        rand_augment_operations: How many operations of RandAugment are applied; none if 0.
        rand_augment_magnitude: Their strength, above 0 and below 30.
        mixup: The largest share of another image of the batch that is mixed in, 0 to 1; the share is uniform.

    Raises:
        ValueError: A setting is out of range.
    """

    crop_padding: int = 0
    flip: float = 0.0
    rotation: float = 0.0
    shear: float = 0.0
    shift: float = 0.0
    zoom: float = 0.0
    color_jitter: float = 0.0
    grayscale: float = 0.0
    rand_augment_operations: int = 0
    rand_augment_magnitude: int = 9
    mixup: float = 0.0

    def __post_init__(self) -> None:
        if self.crop_padding < 0 or self.rand_augment_operations < 0:
            raise ValueError(
                "crop_padding and rand_augment_operations must be 0 or more, not "
                f"{self.crop_padding} and {self.rand_augment_operations}"
            )
        if not 0 < self.rand_augment_magnitude < 30:
            raise ValueError(f"rand_augment_magnitude must be above 0 and below 30, not {self.rand_augment_magnitude}")
        for name in ("flip", "shift", "color_jitter", "grayscale", "mixup"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be from 0 to 1, not {getattr(self, name)}")
        if not 0 <= self.rotation <= 180:
            raise ValueError(f"rotation must be from 0 to 180 degrees, not {self.rotation}")
        if not 0 <= self.shear < 90:
            raise ValueError(f"shear must be from 0 to below 90 degrees, not {self.shear}")
        if not 0 <= self.zoom < 1:
            raise ValueError(f"zoom must be from 0 to below 1, not {self.zoom}")

    def __call__(
        self, images: torch.Tensor, labels: torch.Tensor, num_classes: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Change a batch.

        Args:
            images: (batch, channels, height, width) from 0 to 1, with 1 or 3 channels.
            labels: (batch,).
            num_classes: How many classes there are.

        Returns:
            The images, and the labels: (batch,), or with mixup the share of every class (batch, classes).

        Raises:
            MissingPackageError: kornia is not installed.
        """
        augmentation = import_optional("kornia.augmentation", "vision")
        if self.crop_padding:
            size = (images.shape[2], images.shape[3])
            mode = "reflect" if self.crop_padding < min(size) else "constant"
            images = augmentation.RandomCrop(size, padding=self.crop_padding, padding_mode=mode)(images)
        if self.flip:
            images = augmentation.RandomHorizontalFlip(p=self.flip)(images)
        if self.rotation or self.shear or self.shift or self.zoom:
            images = self._move(augmentation, images)
        if self.color_jitter and images.shape[1] == 3:
            strength = self.color_jitter
            change = augmentation.ColorJitter(strength, strength, strength, strength / 4, p=1)
            images = change(images).clamp(0, 1)
        if self.grayscale and images.shape[1] == 3:
            images = augmentation.RandomGrayscale(p=self.grayscale)(images)
        if self.rand_augment_operations:
            images = self._rand_augment(images)
        if not self.mixup:
            return images, labels
        mix = augmentation.RandomMixUpV2(lambda_val=(0.0, self.mixup), data_keys=["input", "class"])
        images, drawn = mix(images, labels)
        own, other, share = drawn[:, 0].long(), drawn[:, 1].long(), drawn[:, 2:]
        shares = (F.one_hot(label, num_classes).to(images.dtype) for label in (own, other))
        return images, next(shares) * (1 - share) + next(shares) * share

    def _move(self, augmentation: Any, images: torch.Tensor) -> torch.Tensor:
        """Turn, slant, shift and zoom every image; what comes into view continues its border."""
        move = augmentation.RandomAffine(
            self.rotation,
            translate=(self.shift, self.shift),
            scale=(1 - self.zoom, 1 + self.zoom),
            shear=(-self.shear, self.shear, -self.shear, self.shear),
            padding_mode="border",
            p=1,
        )
        moved: torch.Tensor = move(images)
        return moved

    def _rand_augment(self, images: torch.Tensor) -> torch.Tensor:
        """RandAugment, which knows color images only: gray ones pass through it as color."""
        policies = import_optional("kornia.augmentation.auto", "vision")
        change = policies.RandAugment(n=self.rand_augment_operations, m=self.rand_augment_magnitude)
        is_gray = images.shape[1] == 1
        groups = (images.expand(-1, 3, -1, -1) if is_gray else images).split(GROUP_SIZE)
        changed = torch.cat([change(group.contiguous()) for group in groups]).clamp(0, 1)
        return changed.mean(1, keepdim=True) if is_gray else changed


def denormalize(pixel_values: torch.Tensor, mean: float, deviation: float) -> torch.Tensor:
    """Images from 0 to 1, of what a model reads."""
    return (pixel_values * deviation + mean).clamp(0, 1)


def normalize(images: torch.Tensor, mean: float, deviation: float) -> torch.Tensor:
    """What a model reads, of images from 0 to 1."""
    return (images - mean) / deviation


@dataclass(frozen=True)
class SpecAugment:
    """Hide bands of frequencies and stretches of time from a spectrogram, filled with zero, its mean.

    Source: SpecAugment (Park et al. 2019), sections 2 and 3; without time warping.

    Args:
        frequency_masks: How many bands are hidden.
        frequency_width: The most mel bins of a band; the width is uniform from 0.
        time_masks: How many stretches are hidden.
        time_width: The most frames of a stretch.
        time_share: The most of an utterance that one stretch hides, 0 to 1.

    Raises:
        ValueError: A setting is out of range.
    """

    frequency_masks: int = 2
    frequency_width: int = 15
    time_masks: int = 2
    time_width: int = 30
    time_share: float = 0.1

    def __post_init__(self) -> None:
        for name in ("frequency_masks", "frequency_width", "time_masks", "time_width"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}")
        if not 0 <= self.time_share <= 1:
            raise ValueError(f"time_share must be from 0 to 1, not {self.time_share}")

    def __call__(self, features: torch.Tensor) -> torch.Tensor:
        """A changed copy of one utterance's features (frames, mel bins)."""
        features = features.clone()
        frames, bins = features.shape
        widest = min(self.time_width, int(self.time_share * frames))
        for _ in range(self.frequency_masks):
            start, width = _draw(bins, min(self.frequency_width, bins))
            features[:, start : start + width] = 0
        for _ in range(self.time_masks):
            start, width = _draw(frames, widest)
            features[start : start + width] = 0
        return features


def _draw(extent: int, widest: int) -> tuple[int, int]:
    """Where a mask starts and how wide it is, both uniform."""
    width = int(torch.randint(widest + 1, ()))
    return int(torch.randint(extent - width + 1, ())), width
