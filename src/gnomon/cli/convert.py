"""`gnomon convert`: checkpoints of other projects to this library's, and back."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gnomon.cli.loading import TOKENIZER_FILES, load_model
from gnomon.cli.outputs import refuse_existing

if TYPE_CHECKING:
    from torch import Tensor

FORMATS = ("tokenformer",)
PICKLES = (".bin", ".pt", ".pth")
SAFETENSORS = ".safetensors"
CONFIG_FILE = "config.yml"
WEIGHT_FILES = ("pytorch_model.bin", "model.safetensors")


def convert(
    arguments: Annotated[
        list[str],
        typer.Argument(metavar="FORMAT SOURCE OUT | CHECKPOINT OUT", help="From a format, or back with --to."),
    ],
    config: Annotated[
        Path | None,
        typer.Option(
            help="The source's own configuration, YAML or JSON; config.yml beside it if left out.", metavar="FILE"
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="A tokenizer's folder, to be copied into OUT.", metavar="FOLDER")
    ] = None,
    to: Annotated[str | None, typer.Option(help=f"Write this format instead: {', '.join(FORMATS)}.")] = None,
) -> None:
    """Convert a checkpoint of another project, or write one in its layout.

    SOURCE is a .bin, .pt or .safetensors file, or a folder with one. Nothing in it is ever executed.

    Examples:

    gnomon convert tokenformer pytorch_model.bin converted --config 150M.yml --tokenizer gpt-neox-20b

    gnomon convert converted official --to tokenformer
    """
    if to is None:
        if len(arguments) != 3:
            raise ValueError(
                "convert takes FORMAT SOURCE OUT, or CHECKPOINT OUT with --to FORMAT, "
                f"not {len(arguments)} arguments: see 'gnomon convert --help'."
            )
        check_format(arguments[0])
        read_foreign(Path(arguments[1]), Path(arguments[2]), config, tokenizer)
        print(arguments[2])
        return
    check_format(to)
    if len(arguments) != 2:
        raise ValueError(f"convert --to {to} takes CHECKPOINT OUT, not {len(arguments)} arguments.")
    if config is not None or tokenizer is not None:
        raise ValueError("--config and --tokenizer belong to converting from another format; leave them out with --to.")
    write_foreign(Path(arguments[0]), Path(arguments[1]))
    print(arguments[1])


def check_format(name: str) -> None:
    """Refuse a format that cannot be converted.

    Raises:
        ValueError: The name is none of `FORMATS`.
    """
    if name not in FORMATS:
        raise ValueError(f"the format must be one of {', '.join(FORMATS)}, not {name!r}.")


def read_foreign(source: Path, output: Path, config: Path | None, tokenizer: Path | None) -> None:
    """Convert a foreign file of weights to a checkpoint's folder.

    Raises:
        ValueError: The weights do not fit the configuration.
        FileNotFoundError: The source, the configuration or the tokenizer is missing.
        FileExistsError: The output exists.
    """
    refuse_existing(output)
    config = config or source / CONFIG_FILE
    if not config.is_file():
        raise FileNotFoundError(
            f"there is no {config}, and the weights do not tell their heads: name it with --config."
        )
    settings = read_settings(config)
    files = tokenizer_files(tokenizer) if tokenizer else []
    weights = read_weights(source)
    from gnomon.convert.tokenformer import from_tokenformer
    from gnomon.training.checkpoints import publish

    model = from_tokenformer(weights, settings)
    with publish(output) as folder:
        model.save_pretrained(folder)
        for file in files:
            shutil.copy(file, folder)


def write_foreign(checkpoint: Path, output: Path) -> None:
    """Write a checkpoint in the official layout: a folder with pytorch_model.bin and config.yml.

    Raises:
        ValueError: The model cannot be written in that layout unchanged.
        FileExistsError: The output exists.
    """
    refuse_existing(output)
    model = load_model(checkpoint)
    import torch

    from gnomon.convert.tokenformer import config_to_tokenformer, to_tokenformer
    from gnomon.training.checkpoints import publish
    from gnomon.training.records import write_json

    weights = {name: tensor.cpu() for name, tensor in to_tokenformer(model).items()}
    with publish(output) as folder:
        torch.save(weights, folder / WEIGHT_FILES[0])
        write_json(folder / CONFIG_FILE, config_to_tokenformer(model.config))


def read_settings(config: Path) -> Mapping[str, Any]:
    """Read a configuration file; the official ones are JSON with comments, which YAML reads too.

    Raises:
        ValueError: It holds no mapping.
    """
    from gnomon.training.text import parse_yaml

    settings = parse_yaml(config.read_text(encoding="utf-8"), str(config))
    if not isinstance(settings, dict):
        raise ValueError(f"{config} must hold a mapping of settings, not {type(settings).__name__}.")
    return settings


def read_weights(source: Path) -> dict[str, "Tensor"]:
    """Read a state dict from a file, or from a folder that holds one.

    Raises:
        FileNotFoundError: There is no such file, or the folder holds none.
        ValueError: The file is of another kind, or holds something else.
    """
    if source.is_dir():
        found = next((source / name for name in WEIGHT_FILES if (source / name).is_file()), None)
        if found is None:
            raise FileNotFoundError(f"the folder {source} holds neither {' nor '.join(WEIGHT_FILES)}: name a file.")
        source = found
    if not source.is_file():
        raise FileNotFoundError(f"there is no file of weights {source}: name a .bin, .pt or .safetensors file.")
    if source.suffix == SAFETENSORS:
        from safetensors.torch import load_file

        return load_file(source)
    if source.suffix not in PICKLES:
        raise ValueError(f"weights are read from {', '.join((*PICKLES, SAFETENSORS))} files, not from {source.name}.")
    import torch

    weights = torch.load(source, map_location="cpu", weights_only=True)
    weights = weights.get("module", weights) if isinstance(weights, dict) else weights
    if not isinstance(weights, dict) or not all(isinstance(value, torch.Tensor) for value in weights.values()):
        raise ValueError(f"{source} must hold a state dict, names to tensors, and holds something else.")
    return weights


def tokenizer_files(folder: Path) -> list[Path]:
    """The files of a tokenizer's folder.

    Raises:
        FileNotFoundError: The folder has no tokenizer.
    """
    names = (*TOKENIZER_FILES, "special_tokens_map.json")
    files = [folder / name for name in names if (folder / name).is_file()]
    if not files:
        raise FileNotFoundError(f"{folder} has no tokenizer (tokenizer.json): name a tokenizer's folder.")
    return files
