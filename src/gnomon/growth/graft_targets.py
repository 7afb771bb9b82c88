"""Where a model of transformers can be grafted: its linear layers, found by running it once, and what each is part of.

Nothing is known about any architecture. A forward pass on a probe batch says which layers run, and in which order; a
layer belongs to the attention when a module around it calls itself so; and a feed-forward is two or three linear layers
of one block, the last of which reads the width that the others write.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gnomon.growth.graft_layers import LAYERS, widths
from gnomon.growth.report import probe_outputs

KINDS = ("attention", "feed_forward")
"""What a target may be called; anything else is a regular expression, searched in the layers' names."""

_IN_BLOCK = re.compile(r"^(.*\.\d+)\.")


@dataclass(frozen=True)
class Place:
    """A linear layer that runs: its name, the layer, its widths, and whether it belongs to an attention."""

    name: str
    layer: nn.Module
    in_features: int
    out_features: int
    is_attention: bool

    @property
    def parent(self) -> str:
        """The module that the layer stands in."""
        return self.name.rpartition(".")[0]

    @property
    def block(self) -> str | None:
        """The numbered block that the layer stands in, or None outside of blocks."""
        found = _IN_BLOCK.match(self.name)
        return found[1] if found else None


@dataclass(frozen=True)
class FeedForwardPlaces:
    """The layers of one feed-forward: those that write its hidden units, and the one that reads them."""

    write: tuple[Place, ...]
    read: Place

    @property
    def is_fused(self) -> bool:
        """Whether gate and hidden units are written by one layer, which cannot simply be made longer."""
        return self.write[0].out_features != self.read.in_features


def places(model: PreTrainedModel, batch: Mapping[str, Tensor]) -> list[Place]:
    """Run a model once and list its linear layers in the order in which they run.

    Args:
        model: any model of transformers.
        batch: keyword arguments of its forward pass.

    Returns:
        The layers that ran.

    Raises:
        ValueError: the model does not run on the batch.
    """
    named = {layer: name for name, layer in model.named_modules() if isinstance(layer, LAYERS)}
    order: dict[nn.Module, None] = {}

    def note(layer: nn.Module, _: Any) -> None:
        order.setdefault(layer)

    with ExitStack() as hooks:
        for layer in named:
            hooks.callback(layer.register_forward_pre_hook(note).remove)
        try:
            probe_outputs(model, batch)
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            raise ValueError(
                f"{type(model).__name__} cannot run on the probe {', '.join(batch)} ({error}); give one that it can: "
                "probe={name: tensor, ...}"
            ) from error
    return [
        Place(named[layer], layer, *widths(layer), is_attention=_is_attention(model, named[layer])) for layer in order
    ]


def feed_forwards(found: Iterable[Place]) -> list[FeedForwardPlaces]:
    """The feed-forwards among layers.

    Args:
        found: layers in the order in which they run.

    Returns:
        One entry a feed-forward.
    """
    rest = [place for place in found if place.block is not None and not place.is_attention]
    result = []
    # Most architectures have a module for the feed-forward; BERT's spreads over two, side by side in the block.
    for key in ("parent", "block"):
        for _, run in groupby(rest, lambda place, key=key: getattr(place, key)):
            if (fit := _feed_forward(tuple(run))) is not None:
                result.append(fit)
        taken = {place.name for fit in result for place in (*fit.write, fit.read)}
        rest = [place for place in rest if place.name not in taken]
    return result


def select(found: Sequence[Place], targets: Iterable[str]) -> list[Place]:
    """The layers that targets name.

    Args:
        found: layers.
        targets: names of `KINDS`, or regular expressions.

    Returns:
        The layers, in their order, each once.

    Raises:
        ValueError: a target names none of them, or is no regular expression.
    """
    of_feed_forward = {place.name for fit in feed_forwards(found) for place in (*fit.write, fit.read)}
    chosen: set[str] = set()
    for target in targets:
        if target == "attention":
            names = {place.name for place in found if place.is_attention}
        elif target == "feed_forward":
            names = of_feed_forward
        else:
            try:
                names = {place.name for place in found if re.search(target, place.name)}
            except re.error as error:
                raise ValueError(
                    f"a target must be {' or '.join(KINDS)} or a regular expression, and {target!r} is none ({error})"
                ) from None
        if not names:
            examples = ", ".join(place.name for place in found[:3])
            raise ValueError(
                f"the target {target!r} matches none of the {len(found)} linear layers that run in this model "
                f"({examples}{', ...' if len(found) > 3 else ''}): "
                f"name {', '.join(KINDS)}, or a regular expression that is found in such a name"
            )
        chosen |= names
    return [place for place in found if place.name in chosen]


def probe_for(model: PreTrainedModel, *, rows: int = 2, length: int = 16) -> dict[str, Tensor]:
    """Random inputs of the kind that a model takes: ids, pictures or sound.

    Args:
        model: any model of transformers.
        rows: of the batch.
        length: of each row of ids.

    Returns:
        Keyword arguments of its forward pass.

    Raises:
        ValueError: its main input is of a kind that is not known here.
    """
    try:
        batch = _random_inputs(model, rows, length)
    except AttributeError:  # a config of several models, each with sizes of its own
        batch = {}
    if not batch:
        raise ValueError(
            f"{type(model).__name__} takes {model.main_input_name}, for which no random input can be made up; "
            "give one: probe={name: tensor, ...}"
        )
    # Positions after the longest that the model knows are not asked for.
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None) or length
    return {
        name: (value[:, :limit] if name.endswith("_ids") else value.to(model.dtype)).to(model.device)
        for name, value in batch.items()
    }


def _random_inputs(model: PreTrainedModel, rows: int, length: int) -> dict[str, Tensor]:
    """Random values for a model's main input, and ids for its decoder; nothing for an input that is not known."""
    generator = torch.Generator().manual_seed(0)
    config, name = model.config, model.main_input_name
    if name == "input_ids":
        batch = {name: torch.randint(config.get_text_config().vocab_size, (rows, length), generator=generator)}
    elif name == "pixel_values":
        size = config.image_size if isinstance(config.image_size, list | tuple) else (config.image_size,) * 2
        batch = {name: torch.randn(rows, config.num_channels, *size, generator=generator)}
    elif name == "input_values":
        batch = {name: torch.randn(rows, 8000, generator=generator)}  # half a second at 16 kHz
    elif name == "input_features":
        batch = {name: torch.randn(rows, config.num_mel_bins, 2 * config.max_source_positions, generator=generator)}
    else:
        return {}
    if config.is_encoder_decoder:
        batch["decoder_input_ids"] = torch.randint(config.vocab_size, (rows, length), generator=generator)
    return batch


def _is_attention(model: nn.Module, name: str) -> bool:
    """Whether a module on the way to a layer, models themselves left out, calls itself attention."""
    module = model
    for step in name.split("."):
        module = module.get_submodule(step)
        if "attention" in type(module).__name__.lower() and not isinstance(module, PreTrainedModel):
            return True
    return False


def _feed_forward(run: tuple[Place, ...]) -> FeedForwardPlaces | None:
    """Layers as a feed-forward, if they are one: the last reads what all the others write from the outer width."""
    if len(run) not in (2, 3):
        return None
    *write, read = run
    width, outer = read.in_features, read.out_features
    allowed = {(outer, width)} if len(write) == 2 else {(outer, width), (outer, 2 * width)}
    if any((place.in_features, place.out_features) not in allowed for place in write):
        return None
    return FeedForwardPlaces(tuple(write), read)
