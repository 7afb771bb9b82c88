"""The heads for images: their class, and their hidden patches."""

from typing import Unpack

import torch
from torch import Tensor, nn
from transformers import AutoModelForImageClassification, AutoModelForMaskedImageModeling
from transformers.modeling_outputs import ImageClassifierOutput, MaskedImageModelingOutput
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple

from gnomon.models.backbone import GnomonModel, GnomonPreTrainedModel, initialization_rule
from gnomon.models.classification import check_labels, classification_loss
from gnomon.models.config import GnomonConfig
from gnomon.models.inputs import image_to_patches, pad_to_patches, patches_to_image, random_mask
from gnomon.nn.projections import Embedding, Linear

DEFAULT_MASK_RATIO = 0.6
"""Share of an image's patches that are hidden where nothing else is asked for. Source: SimMIM, table 1."""


def check_images(config: GnomonConfig) -> GnomonConfig:
    """Refuse a configuration without images.

    Raises:
        ValueError: it has no image_size.
    """
    if config.image_size is None:
        raise ValueError("a model of images needs image_size in its config; got none: set it, in pixels")
    return config


class GnomonForImageClassification(GnomonPreTrainedModel):
    """The class of an image.

        logits = W dropout(pool(h))

    Source: Dosovitskiy et al. 2021 (arXiv 2010.11929), section 3.1: the class token's output, or the patches' mean.

    Args:
        config: of the model; `num_labels` and `classifier_pooling` say what is predicted from what.

    Raises:
        ValueError: for a config without image size or without labels.
    """

    main_input_name = "pixel_values"
    input_modalities = ("image",)
    _input_embed_layer = "embed_patches"

    def __init__(self, config: GnomonConfig) -> None:
        super().__init__(check_images(config))
        self.num_labels = check_labels(config.num_labels)
        self.model = GnomonModel(config)
        self.dropout = nn.Dropout(config.hidden_dropout)
        std = initialization_rule(config)("embedding", "weight", self.num_labels, config.hidden_size)
        self.classifier = Linear(config.hidden_size, self.num_labels, bias=config.use_bias, std=std)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        pixel_values: torch.FloatTensor | None = None,
        labels: Tensor | None = None,
        interpolate_pos_encoding: bool = True,
        **kwargs: Unpack[TransformersKwargs],
    ) -> ImageClassifierOutput:
        """Classify every image.

        Args:
            pixel_values: (batch, channels, height, width).
            labels: class numbers (batch,), -100 for none; or shares of the classes (batch, labels), as of mixup; or
                numbers (batch,) or (batch, labels) as `problem_type` says.
            interpolate_pos_encoding: take images of other sizes than the model's; else they are refused.
            kwargs: passed on; `label_smoothing` spreads a share of each target over all labels, `num_items_in_batch`
                divides the summed loss instead of the count of targets here.

        Returns:
            Logits (batch, labels), and the loss in nats an image when labels are given.

        Raises:
            ValueError: without images, or for images that do not fit.
        """
        if pixel_values is None:
            raise ValueError("pixel_values are missing; give images (batch, channels, height, width)")
        smoothing, num_items = kwargs.pop("label_smoothing", 0.0), kwargs.pop("num_items_in_batch", None)
        embeds = self.model.embed_patches(pixel_values, interpolate_pos_encoding=interpolate_pos_encoding)
        outputs = self.model(inputs_embeds=embeds, **kwargs)
        logits = self.classifier(self.dropout(self._pool(outputs.last_hidden_state)))
        loss = None
        if labels is not None:
            kind = self.config.problem_type
            loss = classification_loss(logits, labels, kind, smoothing=smoothing, num_items=num_items)
        return ImageClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )

    def _pool(self, hidden: Tensor) -> Tensor:
        """The class token's output, or the mean of the patches'."""
        has_token = self.config.use_class_token
        how = self.config.classifier_pooling or ("first" if has_token else "mean")
        return hidden[:, 0] if how == "first" else hidden[:, int(has_token) :].mean(dim=1)


class GnomonForMaskedImageModeling(GnomonPreTrainedModel):
    """Fill in hidden patches of an image, to pretrain an encoder.

        loss = mean over the pixels of hidden patches of |pixel - (W h)_pixel|

    Source: SimMIM (arXiv 2111.09886), section 3: a mask token in place of hidden patches, one linear layer to pixels.
    With use_image_padding the zeros that fill up a hidden patch are to be painted as well.

    Args:
        config: of the model.

    Raises:
        ValueError: for a config without image size.
    """

    main_input_name = "pixel_values"
    input_modalities = ("image",)
    _input_embed_layer = "embed_patches"

    def __init__(self, config: GnomonConfig) -> None:
        super().__init__(check_images(config))
        self.model = GnomonModel(config)
        rule, patches = initialization_rule(config), self.model.embed_patches
        self.mask_token = Embedding(1, config.hidden_size, std=rule("embedding", "weight", 1, config.hidden_size))
        pixels = patches.pixels
        std = rule("embedding", "weight", pixels, config.hidden_size)
        self.pixel_head = Linear(config.hidden_size, pixels, bias=config.use_bias, std=std)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        pixel_values: torch.FloatTensor | None = None,
        bool_masked_pos: Tensor | None = None,
        interpolate_pos_encoding: bool = True,
        mask_ratio: float = DEFAULT_MASK_RATIO,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MaskedImageModelingOutput:
        """Fill in the hidden patches.

        Args:
            pixel_values: whole images (batch, channels, height, width).
            bool_masked_pos: true where a patch is hidden, (batch, patches); drawn at random if None.
            interpolate_pos_encoding: take images of other sizes than the model's; else they are refused.
            mask_ratio: share of the patches that is hidden where they are drawn.
            kwargs: passed on; `num_items_in_batch`, in hidden patches, divides the summed loss instead of their count
                here.

        Returns:
            The loss, and whole images as the model paints them, `reconstruction`.

        Raises:
            ValueError: without images, for images or a mask that do not fit, or a mask that hides nothing.
        """
        if pixel_values is None:
            raise ValueError("pixel_values are missing; give images (batch, channels, height, width)")
        num_items, embed = kwargs.pop("num_items_in_batch", None), self.model.embed_patches
        images = pad_to_patches(pixel_values, embed.patch)
        grid = (images.shape[2] // embed.patch[0], images.shape[3] // embed.patch[1])
        shape = (len(images), grid[0] * grid[1])
        if bool_masked_pos is None:
            bool_masked_pos = random_mask(*shape, mask_ratio)
        elif tuple(bool_masked_pos.shape) != shape:
            raise ValueError(
                f"bool_masked_pos must be (batch, patches), here {shape}; got {tuple(bool_masked_pos.shape)}"
            )
        hidden = bool_masked_pos.to(images.device).bool()
        embeds = embed(pixel_values, hidden, self.mask_token.weight, interpolate_pos_encoding)
        outputs = self.model(inputs_embeds=embeds, **kwargs)
        painted = self.pixel_head(outputs.last_hidden_state[:, -shape[1] :])
        reconstruction = patches_to_image(painted, embed.patch, grid)
        return MaskedImageModelingOutput(
            loss=self._loss(painted, images, hidden, num_items),
            reconstruction=reconstruction[:, :, : pixel_values.shape[2], : pixel_values.shape[3]],
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def random_inputs(self, *, seed: int = 0, rows: int = 4, length: int = 32) -> dict[str, Tensor]:
        """Images that mean nothing, half of their patches hidden (see `GnomonPreTrainedModel.random_inputs`)."""
        inputs, grid = super().random_inputs(seed=seed, rows=rows, length=length), self.model.embed_patches.grid
        generator = torch.Generator().manual_seed(seed)
        hidden = random_mask(rows, grid[0] * grid[1], 0.5, generator).to(self.device)
        return {**inputs, "bool_masked_pos": hidden}

    def _loss(self, painted: Tensor, images: Tensor, hidden: Tensor, num_items: Tensor | int | None) -> Tensor:
        patches = image_to_patches(images, self.model.embed_patches.patch).to(painted.device)
        distance = (painted.float() - patches.float()).abs().mean(dim=-1)
        return (distance * hidden).sum() / (hidden.sum() if num_items is None else num_items)


AutoModelForImageClassification.register(GnomonConfig, GnomonForImageClassification, exist_ok=True)
AutoModelForMaskedImageModeling.register(GnomonConfig, GnomonForMaskedImageModeling, exist_ok=True)

__all__ = ["GnomonForImageClassification", "GnomonForMaskedImageModeling"]
