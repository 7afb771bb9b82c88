"""Every model class of the library as the peer's tests make and feed it; a new class joins with one entry here."""

from dataclasses import dataclass, field
from typing import Any

import torch

import gnomon
from samples import BASE, TOKENS, random_ids

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
    "decoder": Model(gnomon.GnomonModel),
    "encoder": Model(gnomon.GnomonModel, ENCODER),
    "encoder-decoder": Model(gnomon.GnomonEncoderDecoderModel, ENCODER_DECODER),
}


def case_name(name: str, form: str) -> str:
    """What a test class is called in tables."""
    return f"{MODELS[name].cls.__name__} as {name}, {form}"


QUICK = [case_name(name, "TokenFormer") for name in ("language model", "masked language model", "translator")]
"""One class a topology."""


class Tester:
    """What the peer's tests ask about a model class: its tiny configuration, and inputs.

    Args:
        model: the class and its topology.
        form: of `FORMS`.
    """

    batch_size, seq_length = 7, 9

    def __init__(self, model: Model, form: str) -> None:
        self.model, self.form = model, form
        config = self.get_config()
        self.is_training = model.has_loss
        self.vocab_size, self.hidden_size = config.vocab_size, config.hidden_size
        self.num_hidden_layers = config.encoder_layers or config.num_hidden_layers
        self.num_attention_heads = config.num_attention_heads
        self.causal_lm_class = model.cls if model.cls is gnomon.GnomonForCausalLM else None
        self.encoder_seq_length = self.decoder_seq_length = self.seq_length

    def get_config(self) -> gnomon.GnomonConfig:
        """A new configuration."""
        return gnomon.GnomonConfig(**{**FORMS[self.form], **self.model.fields, "pad_token_id": 0})

    def prepare_config_and_inputs_for_common(self) -> tuple[gnomon.GnomonConfig, dict[str, torch.Tensor]]:
        """A configuration and a batch without targets; its ids leave out the special ones."""
        config, shape = self.get_config(), (self.batch_size, self.seq_length)
        sides = ("", "decoder_") if config.is_encoder_decoder else ("",)
        inputs = {}
        for seed, side in enumerate(sides):
            inputs[f"{side}input_ids"] = 3 + random_ids(*shape, seed=seed, vocab_size=self.vocab_size - 3)
            inputs[f"{side}attention_mask"] = torch.ones(shape, dtype=torch.long)
        return config, inputs
