"""The formats that `gnomon convert` knows: which room translates each, and what its files are called."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Format:
    """A checkpoint format of another project.

    Its room has `from_WORD(state_dict, config)`, `to_WORD(model)` and `config_to_WORD(config)`, WORD being the room's
    name.

    Args:
        word: the room in `gnomon.convert`.
        weights: the file of weights that is written.
        settings: the configuration's file, written and looked for beside the weights.
    """

    word: str
    weights: str
    settings: str

    @property
    def is_hub_folder(self) -> bool:
        """Whether it is a folder that transformers reads, with its tokenizer beside it."""
        return self.settings == "config.json"


FORMATS = {
    "tokenformer": Format("tokenformer", "pytorch_model.bin", "config.yml"),
    "gpt-neox": Format("gpt_neox", "model.safetensors", "config.json"),
    "gpt2": Format("gpt2", "model.safetensors", "config.json"),
    "llama": Format("llama", "model.safetensors", "config.json"),
    "bitnet": Format("bitnet", "model.safetensors", "config.json"),
    "kosmos-2": Format("kosmos2", "model.safetensors", "config.json"),
    "torchscale": Format("torchscale", "model.safetensors", "config.yml"),
}
"""Name on the command line -> format."""

__all__ = ["FORMATS", "Format"]
