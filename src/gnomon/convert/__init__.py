"""Foreign checkpoints, each through one table of names that runs both ways."""

import importlib
from typing import TYPE_CHECKING, Any

from gnomon.convert.formats import FORMATS

if TYPE_CHECKING:
    from gnomon.convert.bitnet import from_bitnet, to_bitnet
    from gnomon.convert.gpt2 import from_gpt2, to_gpt2
    from gnomon.convert.gpt_neox import from_gpt_neox, to_gpt_neox
    from gnomon.convert.kosmos2 import from_kosmos2, to_kosmos2
    from gnomon.convert.llama import from_llama, to_llama
    from gnomon.convert.tokenformer import from_tokenformer, to_tokenformer
    from gnomon.convert.torchscale import from_torchscale, to_torchscale

_PUBLIC = {f"{way}_{form.word}": form.word for form in FORMATS.values() for way in ("from", "to")}
"""Function -> its room; the rooms need torch, which the command line's help must not import."""

__all__ = [
    "FORMATS",
    "from_bitnet",
    "from_gpt2",
    "from_gpt_neox",
    "from_kosmos2",
    "from_llama",
    "from_tokenformer",
    "from_torchscale",
    "to_bitnet",
    "to_gpt2",
    "to_gpt_neox",
    "to_kosmos2",
    "to_llama",
    "to_tokenformer",
    "to_torchscale",
]


def __getattr__(name: str) -> Any:
    """Load a format's room when it is first used."""
    if name in _PUBLIC:
        return getattr(importlib.import_module(f"gnomon.convert.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module 'gnomon.convert' has no attribute {name!r}")
