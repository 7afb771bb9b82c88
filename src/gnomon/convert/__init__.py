"""Foreign checkpoints, each through one table of names that runs both ways."""

from gnomon.convert.tokenformer import from_tokenformer, to_tokenformer

__all__ = ["from_tokenformer", "to_tokenformer"]
