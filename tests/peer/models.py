"""Every model class of the library as the peer's tests make and feed it; a new class joins with one entry here."""

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

import gnomon
from samples import BASE, TOKENS

FORMS: dict[str, dict[str, Any]] = {
    "TokenFormer": {**BASE, **TOKENS},
    "Magneto": {
        **BASE,
        "projection": "linear",
        "intermediate_size": 80,
        "norm_placement": "sub",
        "initialization": "magneto",
        "use_bias": True,
    },
}
"""The two papers' models, which differ most; every class is tested as both."""

ENCODER = {"is_decoder": False}
ENCODER_DECODER = {
    "num_hidden_layers": None,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
IMAGES = {"vocab_size": None, "image_size": 12, "patch_size": 4, "num_channels": 3, "num_labels": 5}
STEM = {"stem_conv_channels": [6]}
SOUNDS = {"num_mel_bins": 8, "num_conv_pos_embeddings": 4, "vocab_size": 20}
CLASSES_OF_SOUNDS = {**SOUNDS, "vocab_size": None, "num_labels": 5}
PAIRS = {**IMAGES, **ENCODER, "vocab_size": 64, "num_modalities": 2, "positions": "rotary"}
LENGTH = PATCHES = 9
"""Of every sequence of text or sound, and of every image, which has a class token before them."""


@dataclass(frozen=True)
class Model:
    """One class in one topology.

    Attributes:
        cls: the class.
        fields: what its configuration needs besides a form's.
    """

    cls: type
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def has_loss(self) -> bool:
        """Whether it takes targets."""
        return "For" in self.cls.__name__

    @property
    def is_two_towers(self) -> bool:
        """Whether its configuration holds two others."""
        return self.cls.config_class is gnomon.GnomonImageTextConfig

    def make_config(self, form: str) -> PreTrainedConfig:
        """A new configuration in a form of `FORMS`."""
        fields = {**FORMS[form], **self.fields}
        if self.is_two_towers:
            towers = {
                "text_config": {**fields, **ENCODER, "pad_token_id": 0},
                "vision_config": {**fields, **IMAGES, **STEM},
            }
            return gnomon.GnomonImageTextConfig(**towers, projection_dim=16)
        return gnomon.GnomonConfig(**fields, **({} if fields["vocab_size"] is None else {"pad_token_id": 0}))


MODELS = {
    "language model": Model(gnomon.GnomonForCausalLM),
    "masked language model": Model(gnomon.GnomonForMaskedLM, ENCODER),
    "translator": Model(gnomon.GnomonForSeq2SeqLM, ENCODER_DECODER),
    "classifier of texts": Model(gnomon.GnomonForSequenceClassification, ENCODER),
    "causal classifier of texts": Model(gnomon.GnomonForSequenceClassification, {"is_decoder": True}),
    "classifier of tokens": Model(gnomon.GnomonForTokenClassification, ENCODER),
    "classifier of images": Model(gnomon.GnomonForImageClassification, IMAGES),
    "painter of hidden patches": Model(gnomon.GnomonForMaskedImageModeling, IMAGES | STEM),
    "classifier of sounds": Model(gnomon.GnomonForAudioClassification, CLASSES_OF_SOUNDS),
    "transcriber by CTC": Model(gnomon.GnomonForCTC, SOUNDS),
    "transcriber with a decoder": Model(gnomon.GnomonForSpeechSeq2Seq, SOUNDS | ENCODER_DECODER),
    "decoder": Model(gnomon.GnomonModel),
    "encoder": Model(gnomon.GnomonModel, ENCODER),
    "encoder-decoder": Model(gnomon.GnomonEncoderDecoderModel, ENCODER_DECODER),
    "filler of hidden tokens and patches": Model(gnomon.GnomonForImageTextMaskedModeling, PAIRS),
    "two towers": Model(gnomon.GnomonForImageTextContrastive),
}


def case_name(name: str, form: str) -> str:
    """What a test class is called in tables."""
    return f"{MODELS[name].cls.__name__} as {name}, {form}"


QUICK = [case_name(name, "TokenFormer") for name in ("language model", "masked language model", "translator")]
"""One class a topology."""


def left_out() -> list[str]:
    """The public model classes that have no entry."""
    public = {getattr(gnomon, name) for name in gnomon.__all__}
    classes = {cls for cls in public if isinstance(cls, type) and issubclass(cls, PreTrainedModel)}
    entered = {model.cls for model in MODELS.values()} | {gnomon.GnomonPreTrainedModel}
    return sorted(cls.__name__ for cls in classes - entered)


class Tester:
    """What the peer's tests ask about a model class: its tiny configuration, and inputs.

    Args:
        model: the class and its topology.
        form: of `FORMS`.
    """

    batch_size = 7
    num_masks = 4
    mask_length = PATCHES

    def __init__(self, model: Model, form: str) -> None:
        self.model, self.form = model, form
        config = self.get_config()
        text, image = (config.text_config, config.vision_config) if model.is_two_towers else (config, config)
        self.is_training = model.has_loss
        self.vocab_size, self.hidden_size = text.vocab_size, text.hidden_size
        self.image_size, self.patch_size = image.image_size, image.patch_size
        self.num_hidden_layers = text.encoder_layers or text.num_hidden_layers
        self.num_attention_heads = text.num_attention_heads
        self.causal_lm_class = model.cls if model.cls is gnomon.GnomonForCausalLM else None
        patches = PATCHES + 1 if text.image_size else 0
        self.seq_length = patches + (0 if text.image_size and not text.vocab_size else LENGTH)
        self.encoder_seq_length = self.decoder_seq_length = self.seq_length

    def get_config(self) -> PreTrainedConfig:
        """A new configuration."""
        return self.model.make_config(self.form)

    def prepare_config_and_inputs_for_common(self) -> tuple[PreTrainedConfig, dict[str, torch.Tensor]]:
        """A configuration and a batch without targets; masks hide nothing, and ids leave out the special ones."""
        config = self.get_config()
        # a config of its own, since a model settles the attention implementation in the one that it is made of
        inputs = self.model.cls(self.get_config()).random_inputs(rows=self.batch_size, length=LENGTH)
        for name, tensor in list(inputs.items()):
            if name.endswith("input_ids"):
                inputs[name] = tensor.clamp(min=3)
            if name != "pixel_values" and name != "bool_masked_pos":
                side = "decoder_" if name.startswith("decoder_") else ""
                inputs[f"{side}attention_mask"] = torch.ones(tensor.shape[:2], dtype=torch.long)
        return config, inputs
