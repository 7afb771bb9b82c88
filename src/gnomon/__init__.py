"""gnomon: foundation Transformers whose parameters are tokens, on one stable backbone, and a way to make them larger.

Public names are loaded when they are first used, so that importing the package costs nothing. Importing it also
makes transformers' Auto classes and pipelines know gnomon's models, as soon as these are imported themselves.
"""

import importlib
from typing import TYPE_CHECKING, Any

import wrapt

if TYPE_CHECKING:
    from gnomon.models.backbone import GnomonModel, GnomonPreTrainedModel
    from gnomon.models.config import GnomonConfig
    from gnomon.models.presets import preset, presets
    from gnomon.models.text import GnomonForCausalLM
    from gnomon.report.run import train

__version__ = "0.1.0"

_PUBLIC = {
    "GnomonConfig": "gnomon.models.config",
    "GnomonForCausalLM": "gnomon.models.text",
    "GnomonModel": "gnomon.models.backbone",
    "GnomonPreTrainedModel": "gnomon.models.backbone",
    "preset": "gnomon.models.presets",
    "presets": "gnomon.models.presets",
    "train": "gnomon.report.run",
}
"""Public name -> the module that has it."""

_REGISTERED_BY = {
    "transformers.models.auto.configuration_auto": "gnomon.models.config",
    "transformers.models.auto.modeling_auto": "gnomon.models.text",
}
"""A module of transformers -> the module of gnomon that registers itself there when imported."""

__all__ = [
    "GnomonConfig",
    "GnomonForCausalLM",
    "GnomonModel",
    "GnomonPreTrainedModel",
    "preset",
    "presets",
    "train",
]


def __getattr__(name: str) -> Any:
    """Load a public name, or a room of the house, when it is first used."""
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    if name in ("analysis", "convert", "data", "evaluation", "models", "nn", "report", "training"):
        return importlib.import_module(f"gnomon.{name}")
    raise AttributeError(f"module 'gnomon' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted((*globals(), *_PUBLIC))


for _theirs, _ours in _REGISTERED_BY.items():
    wrapt.register_post_import_hook(lambda _, name=_ours: importlib.import_module(name), _theirs)
