"""One stack for images and texts, each with parameters of its own, pretrained by filling in what is hidden."""

from dataclasses import dataclass
from typing import Unpack

import torch
from torch import Tensor
from transformers.utils import ModelOutput, TransformersKwargs
from transformers.utils.generic import can_return_tuple

from gnomon.models.backbone import GnomonModel, GnomonPreTrainedModel, initialization_rule
from gnomon.models.config import GnomonConfig
from gnomon.models.inputs import image_to_patches, pad_to_patches, patches_to_image, random_mask
from gnomon.models.losses import token_loss
from gnomon.nn.projections import Embedding, Linear

IMAGE, TEXT = 0, 1
"""The modality ids of patches and of tokens; the order is torchscale's (`.A` and `.B`)."""

JOINT_POSITIONS = ("rotary", "xpos", "none")
"""Position schemes that number patches and tokens each from 0 without a table."""


@dataclass
class ImageTextMaskedOutput(ModelOutput):
    """What was hidden, as the model fills it in.

    Args:
        loss: nats a hidden token plus the mean distance of hidden pixels, of what there is of both.
        logits: of every token, (batch, length, vocabulary); None without texts.
        reconstruction: whole images as painted; None without images.
        hidden_states: of every layer, where they are asked for.
        attentions: of every layer, where they are asked for.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    reconstruction: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


def check_both(config: GnomonConfig) -> GnomonConfig:
    """Refuse a configuration that is not of images and texts in one stack.

    Raises:
        ValueError: naming the field.
    """
    for name in ("image_size", "vocab_size"):
        if getattr(config, name) is None:
            raise ValueError(f"a model of images and texts in one stack needs {name} in its config; got none: set it")
    if config.num_modalities not in (None, 2):
        raise ValueError(f"images and texts are 2 modalities; got num_modalities {config.num_modalities}: set it to 2")
    if config.positions not in JOINT_POSITIONS:
        raise ValueError(
            f"patches and tokens are numbered apart, which positions {', '.join(JOINT_POSITIONS)} can do; "
            f"got {config.positions}: set one of them"
        )
    return config


class GnomonForImageTextMaskedModeling(GnomonPreTrainedModel):
    """Fill in hidden tokens of texts and hidden patches of images: texts alone, images alone, or pairs of both.

        h = Stack([patches; tokens]),   loss = -log p[hidden token] + |hidden pixel - (W h)_pixel|

    Source: BEiT-3 (arXiv 2208.10442), section 2.2. Without `num_modalities` both share all parameters of the stack.
    Differs: BEiT-3 predicts visual tokens of a separate tokenizer; here pixels are painted, as in SimMIM.

    Args:
        config: of the model, with vocab_size and image_size.

    Raises:
        ValueError: for a config without one of them, of other modalities, or with positions that need one table.
    """

    input_modalities = ("image", "text")
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: GnomonConfig) -> None:
        super().__init__(check_both(config))
        self.model = GnomonModel(config)
        rule, width = initialization_rule(config), config.hidden_size
        pixels = self.model.embed_patches.pixels
        self.mask_token = Embedding(1, width, std=rule("embedding", "weight", 1, width))
        self.pixel_head = Linear(width, pixels, bias=config.use_bias, std=rule("embedding", "weight", pixels, width))
        std = rule("embedding", "weight", config.vocab_size, width)
        self.lm_head = Linear(width, config.vocab_size, bias=False, std=std)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: Tensor | None = None,
        pixel_values: torch.FloatTensor | None = None,
        bool_masked_pos: Tensor | None = None,
        labels: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> ImageTextMaskedOutput:
        """Fill in what is hidden.

        Args:
            input_ids: token ids with some hidden, (batch, length).
            attention_mask: 1 for a token, 0 for padding, (batch, length).
            pixel_values: whole images, (batch, channels, height, width).
            bool_masked_pos: true where a patch is hidden, (batch, patches); none is if None.
            labels: the hidden tokens' ids at their own places, -100 everywhere else.
            kwargs: passed to the stack.

        Returns:
            Logits, painted images, and the loss where something is hidden.

        Raises:
            ValueError: with neither images nor texts, or for unequal numbers of them.
        """
        given = [part for part in (pixel_values, input_ids) if part is not None]
        if not given or len({len(part) for part in given}) > 1:
            raise ValueError(
                "give images (pixel_values), texts (input_ids), or a text for each image; got "
                f"{' and '.join(str(len(part)) for part in given) or 'neither'}"
            )
        parts: list[tuple[Tensor, Tensor, int]] = []
        if pixel_values is not None:
            embeds = self.model.embed_patches(pixel_values, bool_masked_pos, self.mask_token.weight)
            parts.append((embeds, torch.ones(embeds.shape[:2], dtype=torch.long, device=embeds.device), IMAGE))
        if input_ids is not None:
            embeds = self.model.embed_tokens(self.model._check_ids(input_ids))
            mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask.long()
            parts.append((embeds, mask, TEXT))
        places = [(mask.cumsum(-1) - 1).clamp(min=0) for _, mask, _ in parts]
        modality_ids = torch.cat([torch.full_like(mask, modality) for _, mask, modality in parts], dim=1)
        outputs = self.model(
            inputs_embeds=torch.cat([embeds for embeds, _, _ in parts], dim=1),
            attention_mask=torch.cat([mask for _, mask, _ in parts], dim=1),
            position_ids=torch.cat(places, dim=1),
            modality_ids=None if self.config.num_modalities is None else modality_ids,
            **kwargs,
        )
        hidden, losses, logits, reconstruction = outputs.last_hidden_state, [], None, None
        if pixel_values is not None:
            count = parts[0][0].shape[1]
            reconstruction, loss = self._paint(hidden[:, :count], pixel_values, bool_masked_pos)
            losses.append(loss)
            hidden = hidden[:, count:]
        if input_ids is not None:
            logits = self.lm_head(hidden)
            losses.append(None if labels is None else token_loss(logits, labels))
        asked = [loss for loss in losses if loss is not None]
        return ImageTextMaskedOutput(
            loss=sum(asked[1:], asked[0]) if asked else None,
            logits=logits,
            reconstruction=reconstruction,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def random_inputs(self, *, seed: int = 0, rows: int = 4, length: int = 32) -> dict[str, Tensor]:
        """Pairs that mean nothing, half of the patches hidden (see `GnomonPreTrainedModel.random_inputs`)."""
        inputs, grid = super().random_inputs(seed=seed, rows=rows, length=length), self.model.embed_patches.grid
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(self.config.vocab_size, (rows, length), generator=generator).to(self.device)
        hidden = random_mask(rows, grid[0] * grid[1], 0.5, generator).to(self.device)
        return {**inputs, "input_ids": ids, "bool_masked_pos": hidden}

    def _paint(
        self, hidden: Tensor, pixel_values: Tensor, bool_masked_pos: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """The painted images, and the mean distance of what was hidden of them."""
        embed = self.model.embed_patches
        images = pad_to_patches(pixel_values, embed.patch)
        grid = (images.shape[2] // embed.patch[0], images.shape[3] // embed.patch[1])
        painted = self.pixel_head(hidden[:, -grid[0] * grid[1] :])
        whole = patches_to_image(painted, embed.patch, grid)[:, :, : pixel_values.shape[2], : pixel_values.shape[3]]
        if bool_masked_pos is None:
            return whole, None
        distance = (painted.float() - image_to_patches(images, embed.patch).float()).abs().mean(dim=-1)
        return whole, (distance * bool_masked_pos).sum() / bool_masked_pos.sum()


__all__ = ["GnomonForImageTextMaskedModeling"]
