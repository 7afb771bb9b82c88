"""Every model class of the library as the peer's tests make and feed it; a new class joins with one entry here."""

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel

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
SOUNDS = {"num_mel_bins": 8, "num_conv_pos_embeddings": 4, "vocab_size": 20}
CLASSES_OF_SOUNDS = {**SOUNDS, "vocab_size": None, "num_labels": 5}


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


MODELS = {
    "language model": Model(gnomon.GnomonForCausalLM),
    "masked language model": Model(gnomon.GnomonForMaskedLM, ENCODER),
    "translator": Model(gnomon.GnomonForSeq2SeqLM, ENCODER_DECODER),
    "classifier of texts": Model(gnomon.GnomonForSequenceClassification, ENCODER),
    "causal classifier of texts": Model(gnomon.GnomonForSequenceClassification, {"is_decoder": True}),
    "classifier of tokens": Model(gnomon.GnomonForTokenClassification, ENCODER),
    "classifier of images": Model(gnomon.GnomonForImageClassification, IMAGES),
    "painter of hidden patches": Model(gnomon.GnomonForMaskedImageModeling, IMAGES),
    "classifier of sounds": Model(gnomon.GnomonForAudioClassification, CLASSES_OF_SOUNDS),
    "transcriber by CTC": Model(gnomon.GnomonForCTC, SOUNDS),
    "transcriber with a decoder": Model(gnomon.GnomonForSpeechSeq2Seq, SOUNDS | ENCODER_DECODER),
    "decoder": Model(gnomon.GnomonModel),
    "encoder": Model(gnomon.GnomonModel, ENCODER),
    "encoder-decoder": Model(gnomon.GnomonEncoderDecoderModel, ENCODER_DECODER),
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

    def __init__(self, model: Model, form: str) -> None:
        self.model, self.form = model, form
        config = self.get_config()
        self.is_training = model.has_loss
        self.vocab_size, self.hidden_size = config.vocab_size, config.hidden_size
        self.image_size, self.patch_size = config.image_size, config.patch_size
        self.num_hidden_layers = config.encoder_layers or config.num_hidden_layers
        self.num_attention_heads = config.num_attention_heads
        self.causal_lm_class = model.cls if model.cls is gnomon.GnomonForCausalLM else None
        # nine tokens of text, nine positions of sound, nine patches and the class token
        self.seq_length = self.encoder_seq_length = self.decoder_seq_length = 10 if config.image_size else 9

    def get_config(self) -> gnomon.GnomonConfig:
        """A new configuration."""
        fields = {**FORMS[self.form], **self.model.fields}
        return gnomon.GnomonConfig(**fields, **({} if fields["vocab_size"] is None else {"pad_token_id": 0}))

    def prepare_config_and_inputs_for_common(self) -> tuple[gnomon.GnomonConfig, dict[str, torch.Tensor]]:
        """A configuration and a batch without targets; masks hide nothing, and ids leave out the special ones."""
        config = self.get_config()
        # a config of its own, since a model settles the attention implementation in the one that it is made of
        inputs = self.model.cls(self.get_config()).random_inputs(rows=self.batch_size, length=9)
        for name, tensor in list(inputs.items()):
            if name.endswith("input_ids"):
                inputs[name] = tensor.clamp(min=3)
            if name != "pixel_values" and name != "bool_masked_pos":
                side = "decoder_" if name.startswith("decoder_") else ""
                inputs[f"{side}attention_mask"] = torch.ones(tensor.shape[:2], dtype=torch.long)
        return config, inputs
