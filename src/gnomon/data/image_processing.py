"""What turns an image into pixel values, saved with a checkpoint: transformers' own, and its twin for gray images."""

from typing import Any

import numpy as np
from transformers import AutoImageProcessor, ViTImageProcessorPil
from transformers.image_processing_backends import PilBackend

from gnomon.models.config import GnomonConfig

MEAN, DEVIATION = 0.5, 0.5
"""Pixel values are (level / 255 - MEAN) / DEVIATION, from -1 to 1, as transformers' ViT has them."""

LUMINANCE = (0.299, 0.587, 0.114)
"""How much red, green and blue count in gray. Source: ITU-R BT.601."""


class GnomonGrayImageProcessor(PilBackend):
    """An image processor for models with one channel: color images become gray, whoever passes them.

    transformers' pipelines pass every image as color, which ViTImageProcessorPil leaves as it is.
    """

    resample = ViTImageProcessorPil.resample
    image_mean = [MEAN]
    image_std = [DEVIATION]
    size = {"height": 224, "width": 224}
    do_resize = True
    do_rescale = True
    do_normalize = True

    def process_image(self, image: Any, **options: Any) -> np.ndarray:
        """One image as (1, height, width)."""
        array = super().process_image(image, **options)
        if len(array) == 1:
            return array
        color = array[:3].astype(np.float64)
        gray = np.round(np.tensordot(np.array(LUMINANCE), color, axes=1)) if array.dtype == np.uint8 else None
        if gray is None:
            return np.tensordot(np.array(LUMINANCE), color, axes=1)[None].astype(array.dtype)
        return gray[None].astype(np.uint8)


AutoImageProcessor.register(GnomonConfig, image_processor_classes={"pil": GnomonGrayImageProcessor}, exist_ok=True)


def build_image_processor(image_size: tuple[int, int], num_channels: int) -> PilBackend:
    """The image processor of a model, which any of transformers' pipelines can load from the checkpoint.

    Args:
        image_size: Height and width in pixels; other images are resized to it, whatever their shape.
        num_channels: 1 (gray) or 3 (color).

    Raises:
        ValueError: A size is not positive, or there is another number of channels.
    """
    height, width = image_size
    if min(height, width) < 1:
        raise ValueError(f"an image must be at least 1 x 1 pixels, not {height} x {width}")
    if num_channels not in (1, 3):
        raise ValueError(f"images have 1 channel (gray) or 3 (color), not {num_channels}: change num_channels")
    size = {"height": height, "width": width}
    if num_channels == 1:
        return GnomonGrayImageProcessor(size=size)
    return ViTImageProcessorPil(size=size, image_mean=[MEAN] * 3, image_std=[DEVIATION] * 3, do_convert_rgb=True)
