"""All heads of the library: importing this module makes transformers' Auto classes know them."""

from gnomon.models import classification, encoder_decoder, text

__all__ = ["classification", "encoder_decoder", "text"]
