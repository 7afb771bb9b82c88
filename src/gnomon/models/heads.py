"""All heads of the library: importing this module makes transformers' Auto classes know them."""

from transformers import PreTrainedModel

from gnomon.models import backbone, classification, encoder_decoder, multimodal, multiway, speech, text, vision

HEADS: dict[str, type[PreTrainedModel]] = {
    name: getattr(module, name)
    for module in (backbone, classification, encoder_decoder, multimodal, multiway, speech, text, vision)
    for name in module.__all__
    if isinstance(getattr(module, name), type) and issubclass(getattr(module, name), PreTrainedModel)
}
"""Every model class by its public name."""

__all__ = ["HEADS"]
