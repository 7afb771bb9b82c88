"""`gnomon convert`: checkpoints of other projects to this library's, and back."""

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gnomon.cli.loading import TOKENIZER_FILES, load_model
from gnomon.cli.outputs import refuse_existing
from gnomon.convert.formats import FORMATS, Format

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

END_OF_TEXT = "<|endoftext|>"
"""What ends a document in a bare tokenizer file (GPT-NeoX's and GPT-2's), which names no special tokens itself."""

GENERATION = "generation_config.json"
VOCABULARIES = (*TOKENIZER_FILES, "vocab.json", "tokenizer.model")
"""A folder with one of these holds a tokenizer."""


def convert(
    arguments: Annotated[
        list[str],
        typer.Argument(metavar="FORMAT SOURCE OUT | CHECKPOINT OUT", help="From a format, or back with --to."),
    ],
    config: Annotated[
        Path | None,
        typer.Option(
            help="The source's own configuration, YAML or JSON; config.yml or config.json beside it if left out.",
            metavar="FILE",
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            help="A tokenizer's folder, or its tokenizer.json, to go with the model; the source's own if left out.",
            metavar="FILE|FOLDER",
        ),
    ] = None,
    token_ids: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Ids of the tokenizer; generation never emits a row behind them. "
            "If left out: the tokenizer's length, and 50277 for TokenFormer's released tables.",
        ),
    ] = None,
    branch: Annotated[
        str | None,
        typer.Option(
            help="Of a multiway torchscale encoder take one branch, A or B; of a BEiT-3 its images (A) or texts (B).",
            metavar="A|B",
        ),
    ] = None,
    to: Annotated[str | None, typer.Option(help=f"Write this format instead: {', '.join(FORMATS)}.")] = None,
) -> None:
    """Convert a checkpoint of another project, or write one in its layout.

    SOURCE is a .bin, .pt or .safetensors file, or a folder with one, with shards or with DeepSpeed's layer files.
    Nothing in it is ever executed.

    Examples:

    gnomon convert tokenformer pytorch_model.bin converted --config 150M.yml --tokenizer 20B_tokenizer.json

    gnomon convert converted official --to tokenformer

    gnomon convert gpt-neox pythia-70m ours

    gnomon convert torchscale decoder.pt ours --config decoder.yml
    """
    if to is None:
        if len(arguments) != 3:
            raise ValueError(
                "convert takes FORMAT SOURCE OUT, or CHECKPOINT OUT with --to FORMAT, "
                f"not {len(arguments)} arguments: see 'gnomon convert --help'."
            )
        form, paths = named_format(arguments[0]), [Path(argument) for argument in arguments[1:]]
        read_foreign(form, *paths, config, tokenizer, token_ids, branch)
        print(arguments[2])
        return
    form = named_format(to)
    if len(arguments) != 2:
        raise ValueError(f"convert --to {to} takes CHECKPOINT OUT, not {len(arguments)} arguments.")
    if any(option is not None for option in (config, tokenizer, token_ids, branch)):
        raise ValueError(
            "--config, --tokenizer, --token-ids and --branch belong to converting from another format; "
            "leave them out with --to."
        )
    write_foreign(form, Path(arguments[0]), Path(arguments[1]))
    print(arguments[1])


def named_format(name: str) -> Format:
    """The format of a name.

    Raises:
        ValueError: There is none.
    """
    if name not in FORMATS:
        raise ValueError(f"the format must be one of {', '.join(FORMATS)}, not {name!r}.")
    return FORMATS[name]


def read_foreign(
    form: Format,
    source: Path,
    output: Path,
    config: Path | None,
    tokenizer: Path | None,
    token_ids: int | None,
    branch: str | None,
) -> None:
    """Convert foreign weights to a checkpoint's folder, in the precision that they have.

    Raises:
        ValueError: The weights or the tokenizer do not fit the configuration.
        FileNotFoundError: The source, the configuration or the tokenizer is missing.
        FileExistsError: The output exists.
    """
    refuse_existing(output)
    if branch is not None and form.word != "torchscale":
        raise ValueError(f"--branch is for torchscale's multiway encoders, not for {form.word}: leave it out.")
    from transformers import GenerationConfig
    from transformers.utils import logging

    from gnomon.convert.files import read_weights
    from gnomon.convert.vocabulary import never_sample_padding_rows
    from gnomon.training.checkpoints import publish

    logging.disable_progress_bar()
    if not source.exists():
        raise FileNotFoundError(f"there is no {source}: name a file of weights, or a folder with one.")
    settings = read_settings(settings_file(form, source, config))
    words = find_tokenizer(source, tokenizer)
    weights = read_weights(source)
    model = translate(form, "from")(weights, settings, **({} if branch is None else {"branch": branch}))
    if words is not None and len(words) > model.config.vocab_size:
        raise ValueError(
            f"the tokenizer has {len(words)} ids, but the weights have {model.config.vocab_size} rows: "
            "name the tokenizer that the model was trained with."
        )
    if form.is_hub_folder and (source / GENERATION).is_file():
        model.generation_config = GenerationConfig.from_pretrained(source)
    if token_ids is not None and not model.can_generate():
        raise ValueError(
            f"--token-ids bounds what a model generates, and {type(model).__name__} does not: leave it out."
        )
    if model.can_generate() and (token_ids is not None or words is not None):
        never_sample_padding_rows(model, token_ids or len(words))
    if words is not None:
        name_special_tokens(model, words)
    model.to(stored_dtype(weights))
    with publish(output) as folder:
        model.save_pretrained(folder)
        if words is not None:
            words.save_pretrained(folder)


def write_foreign(form: Format, checkpoint: Path, output: Path) -> None:
    """Write a checkpoint in a foreign layout: a folder with weights and configuration, in the precision it has.

    Raises:
        ValueError: The model cannot be written in that layout unchanged.
        FileExistsError: The output exists.
    """
    refuse_existing(output)
    model = load_model(checkpoint)
    import torch
    from safetensors.torch import save_file

    from gnomon.training.checkpoints import publish
    from gnomon.training.records import read_json, write_json

    named = str(read_json(checkpoint / "config.json").get("dtype") or "float32")
    model = model.cpu().to(getattr(torch, named))
    weights, settings = translate(form, "to")(model), translate(form, "config_to")(model.config)
    words = find_tokenizer(checkpoint, None) if form.is_hub_folder else None
    with publish(output) as folder:
        if form.weights.endswith(".safetensors"):
            save_file(weights, folder / form.weights, metadata={"format": "pt"})
        else:
            torch.save(weights, folder / form.weights)
        write_json(folder / form.settings, settings | ({"dtype": named} if form.is_hub_folder else {}))
        if form.is_hub_folder:
            model.generation_config.save_pretrained(folder)
        if words is not None:
            words.save_pretrained(folder)


def translate(form: Format, way: str) -> Any:
    """A function of the room that translates a format."""
    return getattr(importlib.import_module(f"gnomon.convert.{form.word}"), f"{way}_{form.word}")


def settings_file(form: Format, source: Path, config: Path | None) -> Path:
    """The source's configuration: as named, or beside the weights.

    Raises:
        FileNotFoundError: It is not there.
    """
    beside = source if source.is_dir() else source.parent
    path = config or beside / form.settings
    if not path.is_file():
        raise FileNotFoundError(f"there is no {path}, and the weights do not tell their heads: name it with --config.")
    return path


def read_settings(config: Path) -> Mapping[str, Any]:
    """Read a configuration file; the official ones are JSON with comments, which YAML reads too.

    Raises:
        ValueError: It holds no mapping.
    """
    from gnomon.training.text import parse_yaml

    text = config.read_text(encoding="utf-8")
    try:
        settings = json.loads(text)
    except json.JSONDecodeError:
        settings = parse_yaml(text, str(config))
    if not isinstance(settings, dict):
        raise ValueError(f"{config} must hold a mapping of settings, not {type(settings).__name__}.")
    return settings


def find_tokenizer(source: Path, named: Path | None) -> "PreTrainedTokenizerBase | None":
    """The tokenizer that goes with a model: the one that is named, or the one in the source's folder.

    Raises:
        FileNotFoundError: The named one is not there.
        ValueError: It is no tokenizer, or has no mark that ends a document.
    """
    if named is None and not (source.is_dir() and any((source / name).is_file() for name in VOCABULARIES)):
        return None
    from gnomon.data import tokenizers

    path = named or source
    if not path.is_file():
        return tokenizers.load_tokenizer(path)
    from transformers import PreTrainedTokenizerFast

    try:
        words = PreTrainedTokenizerFast(tokenizer_file=str(path))
    except Exception as error:  # tokenizers raises a bare Exception
        raise ValueError(f"{path} is no tokenizer file: name a tokenizer.json, or a tokenizer's folder.") from error
    if END_OF_TEXT not in words.get_vocab():
        raise ValueError(f"{path} has no token {END_OF_TEXT} that ends a document: name its folder instead.")
    words.add_special_tokens({"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT})
    return words


def name_special_tokens(model: "PreTrainedModel", words: "PreTrainedTokenizerBase") -> None:
    """Tell the model which ids begin and end a text, where its configuration does not say so."""
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if getattr(words, name) is not None and getattr(model.config, name) is None:
            setattr(model.config, name, getattr(words, name))
            if model.can_generate():
                setattr(model.generation_config, name, getattr(words, name))


def stored_dtype(weights: Mapping[str, "Tensor"]) -> Any:
    """The precision of foreign weights, where they have one; else float32."""
    import torch

    found = {tensor.dtype for tensor in weights.values() if tensor.is_floating_point()}
    return found.pop() if len(found) == 1 and found <= {torch.float16, torch.bfloat16} else torch.float32
