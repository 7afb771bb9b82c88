"""Images and texts in one space: two towers, and the contrast that trains them."""

import difflib
import math
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from typing import Any, Unpack

import torch
import torch.nn.functional as F
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForZeroShotImageClassification, PreTrainedConfig
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.utils import ModelOutput, TransformersKwargs
from transformers.utils.generic import can_return_tuple

from gnomon.models.backbone import GnomonModel, GnomonPreTrainedModel
from gnomon.models.classification import pool
from gnomon.models.config import TRANSFORMERS_KEYS, GnomonConfig, plain_errors
from gnomon.nn.projections import Linear

LARGEST_LOGIT_SCALE = math.log(100.0)
"""Of the logarithm: no cosine is scaled by more than 100. Source: Radford et al. 2021, section 2.5."""


@plain_errors
@strict
class GnomonImageTextConfig(PreTrainedConfig):
    """Configuration of a model with a tower for images and one for texts.

    Args:
        text_config: of the tower of texts: a `GnomonConfig` or its fields.
        vision_config: of the tower of images, which needs an image_size.
        projection_dim: width of the space in which both meet.
        use_cache: no tower has a cache; false.
        tie_word_embeddings: no tower has a head to tie its table to; false.
        logit_scale_init_value: logarithm of the factor on the cosines, at the start; 2.6592 is 1 / 0.07.

    Raises:
        ValueError: for an unknown key, a tower of the wrong kind, or a width below 1.

    >>> GnomonImageTextConfig(text_config={"vocab_size": 9}, vision_config={"image_size": 32}).vision_config.patch_size
    16
    """

    model_type = "gnomon_image_text"
    sub_configs_defaults = {"text_config": GnomonConfig, "vision_config": GnomonConfig}

    text_config: dict | GnomonConfig | None = None
    vision_config: dict | GnomonConfig | None = None
    projection_dim: int = 512
    logit_scale_init_value: float | int = 2.6592
    use_cache: bool = False
    tie_word_embeddings: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        """Refuse unknown keys, then build the towers' configurations."""
        known = {field.name for field in dataclass_fields(self)}
        for key in kwargs:
            if key not in TRANSFORMERS_KEYS:
                near = difflib.get_close_matches(key, known, n=1)
                hint = (
                    f"did you mean {near[0]!r}?" if near else "put a tower's fields into text_config or vision_config"
                )
                raise ValueError(f"unknown configuration key {key!r}; {hint}")
        super().__post_init__(**kwargs)

    @property
    def vocab_size(self) -> int:
        """Of the texts."""
        return int(self.text_config.vocab_size)

    @vocab_size.setter
    def vocab_size(self, value: int) -> None:
        self.text_config.vocab_size = value

    @property
    def max_position_embeddings(self) -> int:
        """Of the texts."""
        return int(self.text_config.max_position_embeddings)

    def validate_architecture(self) -> None:
        """Check that the fields fit together (called by the strict dataclass)."""
        if self.vision_config.image_size is None:
            raise ValueError("vision_config needs image_size, in pixels, which makes a model of images; got none")
        for name in ("image_size", "num_mel_bins"):
            if getattr(self.text_config, name) is not None:
                raise ValueError(f"text_config is of a model of text; got {name}: move it, or remove it")
        if self.text_config.is_encoder_decoder:
            raise ValueError("a tower is one stack; got encoder_layers and decoder_layers: give num_hidden_layers")
        if self.projection_dim < 1:
            raise ValueError(f"projection_dim must be at least 1; got {self.projection_dim}")
        if not -LARGEST_LOGIT_SCALE <= self.logit_scale_init_value <= LARGEST_LOGIT_SCALE:
            raise ValueError(
                f"logit_scale_init_value is a logarithm from {-LARGEST_LOGIT_SCALE:.2f} to {LARGEST_LOGIT_SCALE:.2f}; "
                f"got {self.logit_scale_init_value}"
            )


@dataclass
class ImageTextOutput(ModelOutput):
    """Images against texts, in the words of transformers' CLIP.

    Args:
        loss: nats a choice, where it is asked for.
        logits_per_image: scaled cosines, (images, texts).
        logits_per_text: the same turned round, (texts, images).
        text_embeds: of length 1, (texts, projection_dim).
        image_embeds: of length 1, (images, projection_dim).
        text_model_output: of the tower of texts, with the vectors before they are made of length 1.
        vision_model_output: of the tower of images, likewise.
    """

    loss: Tensor | None = None
    logits_per_image: Tensor | None = None
    logits_per_text: Tensor | None = None
    text_embeds: Tensor | None = None
    image_embeds: Tensor | None = None
    text_model_output: BaseModelOutputWithPooling | None = None
    vision_model_output: BaseModelOutputWithPooling | None = None

    def to_tuple(self) -> tuple[Any, ...]:
        """What there is, in order; the towers' outputs as tuples too."""
        return tuple(value.to_tuple() if isinstance(value, ModelOutput) else value for value in self.values())


def contrastive_loss(logits: Tensor, same: Tensor | None = None) -> Tensor:
    r"""Each image chooses its text, and each text its image.

        L = 1/2 mean_i [ -\sum_j T_ij log softmax_j(Z_ij) - \sum_j T_ij log softmax_j(Z_ji) ],   T = same / row sums

    Source: Radford et al. 2021 (arXiv 2103.00020), figure 3, where T is the identity.
    Differs: equal texts of a batch are equally right (Yang et al. 2022, arXiv 2204.03610, eq. 1), where CLIP counts a
    second drawing of the same thing as wrong.

    Args:
        logits: Z, images in rows, (batch, batch); taken in float32.
        same: true where text j is that of image i, symmetric; the diagonal if None.

    Returns:
        The loss in nats a choice.
    """
    right = torch.eye(len(logits), device=logits.device) if same is None else same.to(logits.device).float()
    shares, wide = right / right.sum(dim=1, keepdim=True), logits.float()
    return (F.cross_entropy(wide, shares) + F.cross_entropy(wide.T, shares)) / 2


def equal_rows(input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
    """Which rows hold the same text, wherever their padding is filled.

    Args:
        input_ids: (batch, length).
        attention_mask: 1 for a token, 0 for padding.

    Returns:
        (batch, batch), true on the diagonal.
    """
    ids = input_ids if attention_mask is None else input_ids.masked_fill(attention_mask == 0, -1)
    return (ids.unsqueeze(1) == ids.unsqueeze(0)).all(dim=-1)


class GnomonTower(GnomonPreTrainedModel):
    """One stack, one vector a row: the inputs of a modality in the shared space.

        e = W pool(h)

    Source: Radford et al. 2021, section 2.4: the class token's output, or a causal text's last token's; else the mean.

    Args:
        config: of the stack.
        projection_dim: width of the shared space.
    """

    main_output_name = "pooler_output"

    def __init__(self, config: GnomonConfig, projection_dim: int) -> None:
        super().__init__(config)
        self.model = GnomonModel(config)
        self.main_input_name = self.model.main_input_name
        self.projection = Linear(config.hidden_size, projection_dim, std=config.hidden_size**-0.5)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: Tensor | None = None,
        pixel_values: torch.FloatTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPooling:
        """Embed every row.

        Args:
            input_ids: token ids, (batch, length), of a tower of texts; or give `inputs_embeds`.
            attention_mask: 1 for a token, 0 for padding.
            pixel_values: (batch, channels, height, width), of a tower of images.
            inputs_embeds: embeddings in place of ids.
            kwargs: passed to the stack.

        Returns:
            The stack's last hidden state, and a vector a row, not normalized, (batch, projection_dim), as the
            `pooler_output`.
        """
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            pixel_values=pixel_values,
            inputs_embeds=inputs_embeds,
            use_cache=False,
            **kwargs,
        )
        embeds = self.projection(self._pool(outputs.last_hidden_state, attention_mask))
        return BaseModelOutputWithPooling(
            last_hidden_state=outputs.last_hidden_state,
            pooler_output=embeds,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def _pool(self, hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
        config = self.config
        has_token = bool(config.image_size is not None and config.use_class_token)
        how = config.classifier_pooling or ("first" if has_token else "last" if self.model.is_causal else "mean")
        return pool(hidden[:, int(has_token and how == "mean") :], attention_mask, how)


class GnomonForImageTextContrastive(GnomonPreTrainedModel):
    """Two towers whose vectors of an image and of its text are made alike, and of others unlike.

        Z_ij = exp(t) cos(e_i, e_j),   t at most log 100

    Source: Radford et al. 2021 (CLIP, arXiv 2103.00020), section 2. Each tower grows by itself, and the configuration
    follows: `gnomon.grow(model.text_model, ...)`, `gnomon.grow(model.vision_model, ...)`.

    Args:
        config: of both towers.
    """

    config_class = GnomonImageTextConfig
    config: GnomonImageTextConfig
    input_modalities = ("image", "text")

    def __init__(self, config: GnomonImageTextConfig) -> None:
        super().__init__(config)
        self.text_model = GnomonTower(config.text_config, config.projection_dim)
        self.vision_model = GnomonTower(config.vision_config, config.projection_dim)
        self.logit_scale = nn.Parameter(torch.empty(()))
        self.post_init()

    def reset_parameters(self) -> None:
        """Set the scale of the logits to its start."""
        nn.init.constant_(self.logit_scale, self.config.logit_scale_init_value)

    def get_input_embeddings(self) -> nn.Module:
        """The texts' table of tokens, the only one (transformers resizes it for a larger tokenizer)."""
        return self.text_model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Put another table in its place."""
        self.text_model.set_input_embeddings(value)

    @can_return_tuple
    def get_text_features(
        self, input_ids: torch.LongTensor, attention_mask: Tensor | None = None, **kwargs: Unpack[TransformersKwargs]
    ) -> BaseModelOutputWithPooling:
        """Embed texts; their vectors, (batch, projection_dim), not normalized, are the `pooler_output`."""
        output: BaseModelOutputWithPooling = self.text_model(input_ids, attention_mask=attention_mask, **kwargs)
        return output

    @can_return_tuple
    def get_image_features(
        self, pixel_values: torch.FloatTensor, **kwargs: Unpack[TransformersKwargs]
    ) -> BaseModelOutputWithPooling:
        """Embed images; their vectors, (batch, projection_dim), not normalized, are the `pooler_output`."""
        output: BaseModelOutputWithPooling = self.vision_model(pixel_values=pixel_values, **kwargs)
        return output

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        pixel_values: torch.FloatTensor | None = None,
        attention_mask: Tensor | None = None,
        return_loss: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> ImageTextOutput:
        """Compare images with texts.

        Args:
            input_ids: token ids, (texts, length).
            pixel_values: (images, channels, height, width).
            attention_mask: 1 for a token, 0 for padding, (texts, length).
            return_loss: whether image i belongs to text i, and the loss of telling so is wanted.
            kwargs: passed to both towers, such as output_hidden_states.

        Returns:
            Logits in both directions, the vectors, and the loss where it is asked for.

        Raises:
            ValueError: without images or without texts, or for a loss of unequal numbers of them.
        """
        if input_ids is None or pixel_values is None:
            missing = "input_ids" if input_ids is None else "pixel_values"
            raise ValueError(
                f"{missing} are missing, and images are compared with texts; give both, or call get_text_features or "
                "get_image_features"
            )
        if return_loss and len(input_ids) != len(pixel_values):
            raise ValueError(
                f"the loss needs a text for each image; got {len(pixel_values)} images and {len(input_ids)} texts"
            )
        text = self.text_model(input_ids, attention_mask=attention_mask, **kwargs)
        vision = self.vision_model(pixel_values=pixel_values, **kwargs)
        text_embeds, image_embeds = (F.normalize(tower.pooler_output, dim=-1) for tower in (text, vision))
        if self.training:
            with torch.no_grad():  # CLIP's way: a bound inside the product would stop the gradient for ever
                self.logit_scale.clamp_(max=LARGEST_LOGIT_SCALE)
        scale = self.logit_scale.clamp(max=LARGEST_LOGIT_SCALE).exp()
        logits = image_embeds @ text_embeds.T.to(image_embeds.device) * scale.to(image_embeds.device)
        return ImageTextOutput(
            loss=contrastive_loss(logits, equal_rows(input_ids, attention_mask)) if return_loss else None,
            logits_per_image=logits,
            logits_per_text=logits.T,
            text_embeds=text_embeds,
            image_embeds=image_embeds,
            text_model_output=text,
            vision_model_output=vision,
        )

    def random_inputs(self, *, seed: int = 0, rows: int = 4, length: int = 32) -> dict[str, Tensor]:
        """Images and texts that mean nothing (see `GnomonPreTrainedModel.random_inputs`)."""
        options = {"seed": seed, "rows": rows, "length": length}
        return self.text_model.random_inputs(**options) | self.vision_model.random_inputs(**options)


AutoConfig.register(GnomonImageTextConfig.model_type, GnomonImageTextConfig, exist_ok=True)
AutoModel.register(GnomonImageTextConfig, GnomonForImageTextContrastive, exist_ok=True)
AutoModelForZeroShotImageClassification.register(GnomonImageTextConfig, GnomonForImageTextContrastive, exist_ok=True)

__all__ = ["GnomonForImageTextContrastive", "GnomonImageTextConfig"]
