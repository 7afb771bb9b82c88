"""Configurations of transformers' own models, translated by one table of keys that is read both ways."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedConfig

from gnomon.convert.tables import require
from gnomon.models.config import GnomonConfig

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
    "swish": "silu",
}
"""transformers' name -> ours; the first of several is written back."""

DROPPED = ("model_type", "transformers_version", "architectures", "dtype", "torch_dtype", "_name_or_path")
"""Keys of a config.json that say nothing about what the model computes."""


@dataclass(frozen=True)
class Settings:
    """How a configuration class of transformers and ours say the same.

    Args:
        project: the model's name, for messages.
        config_class: transformers' class.
        architecture: the model class that a written config.json names.
        keys: their key -> our field.
        activation: their key for the activation.
        ours: fields of ours that such a model always has, whichever its configuration.
        theirs: keys of theirs whose only value here this is.
        rotary: `partial` where rope_parameters say which share of a head turns, `whole` where all of it does.
    """

    project: str
    config_class: type[PreTrainedConfig]
    architecture: str
    keys: Mapping[str, str]
    activation: str
    ours: Mapping[str, Any]
    theirs: Mapping[str, Any]
    rotary: str = ""

    def read(self, settings: Mapping[str, Any], **more: Any) -> GnomonConfig:
        """Translate a config.json.

        Args:
            settings: its mapping.
            more: fields of ours that the model's room works out itself.

        Returns:
            Our configuration.

        Raises:
            ValueError: when it is of another model, or asks for what our models do not have.
        """
        kind = settings.get("model_type", self.config_class.model_type)
        if kind != self.config_class.model_type:
            raise ValueError(
                f"the configuration is of a {kind} model, not of {self.project} ({self.config_class.model_type}): "
                "name the format that belongs to it"
            )
        if settings.get("quantization_config"):
            method = dict(settings["quantization_config"]).get("quant_method", "some method")
            raise ValueError(
                f"the configuration asks for quantization ({method}), which computes other outputs than plain weights: "
                "take a checkpoint of plain weights, or remove quantization_config to convert the weights as they are"
            )
        theirs = self.config_class(**{key: value for key, value in settings.items() if key not in DROPPED})
        for key, wanted in self.theirs.items():
            found = getattr(theirs, key)
            if found != wanted:
                raise ValueError(f"{self.project} models are converted with {key} {wanted} alone; this one has {found}")
        fields = {ours: getattr(theirs, key) for key, ours in self.keys.items()}
        act = getattr(theirs, self.activation)
        if act not in ACTIVATIONS:
            raise ValueError(f"{self.activation} must be one of {', '.join(ACTIVATIONS)} to be converted; got {act!r}")
        if self.rotary:
            fields["rope_parameters"] = {"partial_rotary_factor": 1.0, **theirs.rope_parameters}
        return GnomonConfig(**fields, **self.ours, hidden_act=ACTIVATIONS[act], is_decoder=True, **more)

    def write(self, config: GnomonConfig, **more: Any) -> dict[str, Any]:
        """Translate our configuration.

        Args:
            config: of a model that such a model can be.
            more: keys of theirs that the model's room works out itself.

        Returns:
            The mapping of a config.json.

        Raises:
            ValueError: when the model is of another form.
        """
        heads = config.num_attention_heads
        usual = {"num_key_value_heads": heads, "head_dim": config.hidden_size // heads}
        fixed = {field: value for field, value in usual.items() if field not in self.keys.values()}
        require(config, self.project, {**self.ours, **fixed})
        theirs = {key: getattr(config, ours) for key, ours in self.keys.items()}
        theirs[self.activation] = next(name for name, ours in ACTIVATIONS.items() if ours == config.hidden_act)
        if self.rotary:
            theirs["rope_parameters"] = self._turning(config)
        return self.config_class(**theirs, **self.theirs, architectures=[self.architecture], **more).to_dict()

    def _turning(self, config: GnomonConfig) -> dict[str, Any]:
        rope = dict(config.rope_parameters)
        if self.rotary == "whole" and (share := rope.pop("partial_rotary_factor")) != 1.0:
            raise ValueError(
                f"the {self.project} layout turns whole heads, partial_rotary_factor 1.0; this model has {share}"
            )
        return rope


__all__ = ["ACTIVATIONS", "Settings"]
