"""gnomon: foundation Transformers whose parameters are tokens, on one stable backbone, and a way to make them larger.

Public names are loaded when they are first used, so that importing the package costs nothing. Importing it also
makes transformers' Auto classes and pipelines know gnomon's models, as soon as these are imported themselves.
"""

import importlib
import pkgutil
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import wrapt

if TYPE_CHECKING:
    from gnomon.growth.api import grow
    from gnomon.growth.graft import graft
    from gnomon.growth.graft_files import load_graft, save_graft
    from gnomon.growth.graft_merge import merge_graft
    from gnomon.growth.shrink import shrink
    from gnomon.models.backbone import GnomonModel, GnomonPreTrainedModel
    from gnomon.models.classification import GnomonForSequenceClassification, GnomonForTokenClassification
    from gnomon.models.config import GnomonConfig
    from gnomon.models.encoder_decoder import GnomonEncoderDecoderModel, GnomonForSeq2SeqLM
    from gnomon.models.multimodal import GnomonForImageTextContrastive, GnomonImageTextConfig
    from gnomon.models.multiway import GnomonForImageTextMaskedModeling
    from gnomon.models.presets import preset, presets
    from gnomon.models.speech import GnomonForAudioClassification, GnomonForCTC, GnomonForSpeechSeq2Seq
    from gnomon.models.text import GnomonForCausalLM, GnomonForMaskedLM
    from gnomon.models.vision import GnomonForImageClassification, GnomonForMaskedImageModeling
    from gnomon.report.run import train

__version__ = "0.1.0"

_PUBLIC = {
    "GnomonConfig": "gnomon.models.config",
    "GnomonEncoderDecoderModel": "gnomon.models.encoder_decoder",
    "GnomonForAudioClassification": "gnomon.models.speech",
    "GnomonForCTC": "gnomon.models.speech",
    "GnomonForCausalLM": "gnomon.models.text",
    "GnomonForImageClassification": "gnomon.models.vision",
    "GnomonForImageTextContrastive": "gnomon.models.multimodal",
    "GnomonForImageTextMaskedModeling": "gnomon.models.multiway",
    "GnomonForMaskedImageModeling": "gnomon.models.vision",
    "GnomonForMaskedLM": "gnomon.models.text",
    "GnomonForSeq2SeqLM": "gnomon.models.encoder_decoder",
    "GnomonForSequenceClassification": "gnomon.models.classification",
    "GnomonForSpeechSeq2Seq": "gnomon.models.speech",
    "GnomonForTokenClassification": "gnomon.models.classification",
    "GnomonImageTextConfig": "gnomon.models.multimodal",
    "GnomonModel": "gnomon.models.backbone",
    "GnomonPreTrainedModel": "gnomon.models.backbone",
    "graft": "gnomon.growth.graft",
    "grow": "gnomon.growth.api",
    "load_graft": "gnomon.growth.graft_files",
    "merge_graft": "gnomon.growth.graft_merge",
    "preset": "gnomon.models.presets",
    "presets": "gnomon.models.presets",
    "save_graft": "gnomon.growth.graft_files",
    "shrink": "gnomon.growth.shrink",
    "train": "gnomon.report.run",
}
"""Public name -> the module that has it."""

_HEADS = "gnomon.models.heads"
"""The module that makes transformers' Auto classes know every model of the library, when it is imported."""

_PROCESSORS = {"transformers.models.auto.image_processing_auto": "gnomon.data.image_processing"}
"""A module of transformers -> ours that makes it know our processors, when it is imported."""

_AUTO_CLASSES = "transformers.models.auto.configuration_auto"

_NEEDED = (
    _AUTO_CLASSES,
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.auto_factory",
    "transformers.cache_utils",
    "transformers.configuration_utils",
    "transformers.generation.utils",
    "transformers.masking_utils",
    "transformers.modeling_layers",
    "transformers.modeling_outputs",
    "transformers.modeling_utils",
    "transformers.utils",
    "transformers.utils.deprecation",
    "transformers.utils.generic",
    "transformers.utils.output_capturing",
    *(f"gnomon.models.{module.name}" for module in pkgutil.iter_modules([str(Path(__file__).parent / "models")])),
)
"""What has to be complete, where it has begun to load, before all heads can be imported."""

__all__ = [
    "GnomonConfig",
    "GnomonEncoderDecoderModel",
    "GnomonForAudioClassification",
    "GnomonForCTC",
    "GnomonForCausalLM",
    "GnomonForImageClassification",
    "GnomonForImageTextContrastive",
    "GnomonForImageTextMaskedModeling",
    "GnomonForMaskedImageModeling",
    "GnomonForMaskedLM",
    "GnomonForSeq2SeqLM",
    "GnomonForSequenceClassification",
    "GnomonForSpeechSeq2Seq",
    "GnomonForTokenClassification",
    "GnomonImageTextConfig",
    "GnomonModel",
    "GnomonPreTrainedModel",
    "graft",
    "grow",
    "load_graft",
    "merge_graft",
    "preset",
    "presets",
    "save_graft",
    "shrink",
    "train",
]


def __getattr__(name: str) -> Any:
    """Load a public name, or a room of the house, when it is first used."""
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    if name in ("analysis", "convert", "data", "evaluation", "growth", "models", "nn", "report", "training"):
        return importlib.import_module(f"gnomon.{name}")
    raise AttributeError(f"module 'gnomon' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted((*globals(), *_PUBLIC))


def _register(loaded: ModuleType) -> None:
    """Import the heads once the Auto classes are there; while something needed is loading, its own end comes later."""
    loading = (sys.modules[name] for name in _NEEDED if name in sys.modules and name != loaded.__name__)
    if _AUTO_CLASSES in sys.modules and not any(getattr(module.__spec__, "_initializing", False) for module in loading):
        importlib.import_module(_HEADS)


for _name in _NEEDED:
    wrapt.register_post_import_hook(_register, _name)
for _name in _PROCESSORS:
    wrapt.register_post_import_hook(lambda loaded: importlib.import_module(_PROCESSORS[loaded.__name__]), _name)
