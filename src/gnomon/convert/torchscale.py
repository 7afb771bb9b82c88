"""torchscale's decoder, encoder and encoder-decoder, with MAGNETO's, DeepNet's and the usual norms, and back."""

import itertools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gnomon.convert.tables import Layout, Parts
from gnomon.convert.torchscale_branches import IMAGES, has_images, refuse_two_tables, take_branch
from gnomon.convert.torchscale_keys import DECODER, ENCODER, OFFSET, PROJECT, complete
from gnomon.convert.torchscale_settings import config_from_torchscale, config_to_torchscale, sides_of
from gnomon.models.backbone import GnomonModel
from gnomon.models.config import GnomonConfig
from gnomon.models.encoder_decoder import GnomonEncoderDecoderModel, GnomonForSeq2SeqLM
from gnomon.models.text import GnomonForCausalLM, GnomonForMaskedLM

PARTS = ("weight", "bias")
ATTENTIONS = {"self_attn": "attention", "encoder_attn": "cross_attention"}
SITES = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "output", "inner_attn_ln": "inner_norm"}
UNITS = {"fc1": "up", "fc2": "down", "ffn_layernorm": "inner_norm"}
NORMS = {
    "self_attn_layer_norm": "attention_residual",
    "encoder_attn_layer_norm": "cross_attention_residual",
    "final_layer_norm": "feed_forward_residual",
}
BIASES = {ENCODER: "relative_position", DECODER: "self_attn_relative_position"}
TABLE, POSITIONS, HEAD = "embed_tokens.weight", "embed_positions.weight", "output_projection.weight"
XPOS = ".self_attn.xpos.scale"
"""The end of the name of a buffer with xPos' scales, which follow from the width of a head."""

COPIES = {".A": ".copies.0", ".B": ".copies.1"}
"""torchscale's branches of a multiway layer, and ours; a token of modality 0 goes through A."""

CLASSES: dict[tuple[str, ...], tuple[type[PreTrainedModel], type[PreTrainedModel]]] = {
    (DECODER,): (GnomonModel, GnomonForCausalLM),
    (ENCODER,): (GnomonModel, GnomonForMaskedLM),
    (ENCODER, DECODER): (GnomonEncoderDecoderModel, GnomonForSeq2SeqLM),
}
"""The stacks of a model -> its class without an output head, and with one."""


def layout(config: GnomonConfig, *, has_head: bool) -> Layout:
    """The table of one model: what torchscale calls each of our tensors.

    Args:
        config: of our model.
        has_head: whether it has an output head.

    Returns:
        The table.
    """
    sides, base = sides_of(config), "model." if has_head else ""
    where = "outer" if config.norm_placement in ("post", "deep") else "before"
    # what stands behind the name of a layer that each branch has its own copy of
    branches = {"": ""} if config.num_modalities is None else COPIES
    names: dict[str, str | Parts] = {}
    for side in sides:
        word = side if len(sides) > 1 else "layer"
        theirs, ours = (f"{side}.", f"{base}{side}.") if len(sides) > 1 else ("", base)
        layer, block = f"{theirs}layers.{{{word}}}", f"{ours}layers.{{{word}}}"
        names |= {
            f"{theirs}{TABLE}": f"{ours}embed_tokens.weight",
            f"{theirs}{POSITIONS}": f"{ours}embed_positions.weight",
            f"{theirs}{BIASES[side]}.relative_attention_bias.weight": f"{ours}position_bias.weight",
        }
        for part, (branch, copy) in itertools.product(PARTS, branches.items()):
            names |= {
                **{
                    f"{layer}.{attention}.{site}{branch}.{part}": f"{block}.{our_attention}.{our_site}{copy}.{part}"
                    for attention, our_attention in ATTENTIONS.items()
                    for site, our_site in SITES.items()
                },
                **{
                    f"{layer}.ffn{branch}.{unit}.{part}": f"{block}.feed_forward{copy}.{our}.{part}"
                    for unit, our in UNITS.items()
                },
                **{
                    f"{layer}.{norm}{branch}.{part}": f"{block}.{our}.{where}{copy}.{part}"
                    for norm, our in NORMS.items()
                },
                f"{theirs}layer_norm{branch}.{part}": f"{ours}norm{copy}.{part}",
            }
    if config.image_size is not None:
        names |= IMAGES
    first, last = prefix(sides, sides[0]), prefix(sides, sides[-1])
    copies = {f"{last}{HEAD}": f"{first}{TABLE}"} if has_head else {}
    if len(sides) > 1:
        copies[f"{last}{TABLE}"] = f"{first}{TABLE}"
    word = sides[0] if len(sides) > 1 else "layer"
    return Layout(
        project=PROJECT,
        names={**names, f"{last}{HEAD}": "lm_head.weight"},
        num_layers=f"{sides[0]}_layers",
        sizes={
            "vocab_size": (f"{first}{TABLE}", 0),
            f"{sides[0]}_embed_dim": (f"{first}{TABLE}", 1),
            f"{sides[0]}_ffn_embed_dim": (f"{first}layers.{{{word}}}.ffn{next(iter(branches))}.fc1.bias", 0),
        },
        copies=copies if config.tie_word_embeddings else {},
        passed_over=XPOS.replace(".", r"\.") + "$",
        stacks={side: (f"{side}_layers", f"{side}_layers") for side in sides} if len(sides) > 1 else {},
    )


def prefix(sides: tuple[str, ...], side: str) -> str:
    """What stands before a stack's names: nothing where it is the only one."""
    return f"{side}." if len(sides) > 1 else ""


def from_torchscale(
    state_dict: Mapping[str, Tensor], config: Mapping[str, Any], *, branch: str | None = None
) -> PreTrainedModel:
    """Build our model from a torchscale checkpoint.

    Args:
        state_dict: tensors by torchscale's names, of any floating dtype; a single stack's may all begin with
            `encoder.` or `decoder.`, as in fairseq's checkpoints.
        config: the keyword arguments of its configuration class.
        branch: `A` or `B` of a multiway encoder, as a model by itself; a BEiT-3 is read in no other way.

    Returns:
        The model in float32 and in evaluation mode: `GnomonForCausalLM` from a decoder, `GnomonForMaskedLM` from an
        encoder, `GnomonForSeq2SeqLM` from both; `GnomonModel` or `GnomonEncoderDecoderModel` where there is no head.
        A whole multiway encoder takes `modality_ids`, 0 for the tokens before torchscale's split position (branch A)
        and 1 for those behind it.

    Raises:
        ValueError: for names that are missing or left over, shapes that contradict the configuration, or a
            configuration with unknown keys or that asks for what our models do not have.
        TypeError: for a value of the wrong type in the configuration.
    """
    if branch is not None:
        state_dict, config = take_branch(state_dict, config, branch)
    refuse_two_tables(state_dict)
    sides = find_sides(state_dict, config)
    if len(sides) == 1 and all(name.startswith(f"{sides[0]}.") for name in state_dict):
        state_dict = {name.removeprefix(f"{sides[0]}."): tensor for name, tensor in state_dict.items()}
    theirs = complete(config, sides)
    tables = [state_dict[name] for side in sides if (name := prefix(sides, side) + TABLE) in state_dict]
    of_images = has_images(state_dict)
    if not of_images and (not tables or tables[0].dim() != 2):
        raise ValueError(
            f"a torchscale checkpoint of text needs the table {prefix(sides, sides[0])}{TABLE}; got "
            f"{len(state_dict)} tensors, the first named {next(iter(state_dict), 'nothing')!r}"
        )
    rows = count_positions(state_dict, sides)
    vocab_size = 0 if of_images else tables[0].shape[0]
    ours = config_from_torchscale(config, sides, vocab_size=vocab_size, position_rows=rows, has_images=of_images)
    check_scales(state_dict, ours)
    told = theirs["vocab_size"] > 0 or prefix(sides, sides[-1]) + HEAD in state_dict
    has_head = told and not theirs["no_output_layer"] and not of_images
    model = layout(ours, has_head=has_head).read(state_dict, ours, CLASSES[sides][has_head])
    model.config.architectures = [type(model).__name__]
    return model


def to_torchscale(model: PreTrainedModel) -> dict[str, Tensor]:
    """Write our model as a torchscale checkpoint, the model's own numbers bit for bit.

    Args:
        model: a linear model with biases and layer norms in the placement `pre`, `post`, `deep` or `sub`.

    Returns:
        Tensors by torchscale's names, a shared table under each of its names.

    Raises:
        ValueError: when torchscale cannot be such a model.
    """
    config: Any = model.config
    config_to_torchscale(config)
    sides = sides_of(config)
    if type(model) not in CLASSES[sides]:
        raise ValueError(
            f"the torchscale layout holds {' or '.join(cls.__name__ for cls in CLASSES[sides])} of such a "
            f"configuration; got {type(model).__name__}: write its backbone alone"
        )
    table = layout(config, has_head=type(model) is CLASSES[sides][True])
    tensors = table.write(model)
    tensors |= {name: tensors[original].clone() for name, original in table.copies.items()}
    if config.positions == "xpos":
        for side in sides:
            for layer in range(getattr(config, f"{side}_layers") or config.num_hidden_layers):
                scale = xpos_scale(config.head_dim).to(model.dtype)
                tensors[f"{prefix(sides, side)}layers.{layer}{XPOS}"] = scale
    return tensors


def find_sides(state_dict: Mapping[str, Tensor], config: Mapping[str, Any]) -> tuple[str, ...]:
    """The stacks of a checkpoint, by its names and, where there is one, by the keys of its configuration.

    Raises:
        ValueError: when neither tells.
    """
    sides = (ENCODER, DECODER)
    if all(any(name.startswith(f"{side}.") for name in state_dict) for side in sides):
        return sides
    named = tuple(side for side in sides if any(key.startswith((f"{side}_", f"share_{side}_")) for key in config))
    if len(named) != 1:
        raise ValueError(
            "the weights are of one stack, and its configuration must have keys of either the encoder or the decoder "
            f"(encoder_layers or decoder_layers, for one); got those of {' and '.join(named) or 'neither'}"
        )
    return named


def count_positions(state_dict: Mapping[str, Tensor], sides: tuple[str, ...]) -> int:
    """Rows of the tables of learned positions, 0 if there is none.

    Raises:
        ValueError: when the tables of two stacks differ in length, or one has too few rows.
    """
    names = [prefix(sides, side) + POSITIONS for side in sides]
    rows = [state_dict[name].shape[0] if name in state_dict else 0 for name in names]
    if rows[0] != rows[-1]:
        raise ValueError(
            f"both stacks of a model reach equally far here, but {names[0]} has {rows[0]} rows and {names[-1]} "
            f"{rows[-1]}: cut the longer table to the rows of the shorter one"
        )
    if 0 < rows[0] <= OFFSET:
        raise ValueError(f"positions begin in row {OFFSET} of {names[0]}, which has {rows[0]} rows: it holds none")
    return rows[0]


def xpos_scale(head_size: int) -> Tensor:
    """xPos' scales before they are raised to the power of the position.

        ( 2 i + 0.4 d_h ) / ( 1.4 d_h ),   i = 0 .. d_h/2 - 1

    Source: arXiv 2212.10554, as torchscale rounds it.

    Args:
        head_size: d_h.

    Returns:
        One number for each pair of a head's dimensions, float32.
    """
    return (torch.arange(0, head_size, 2) + 0.4 * head_size) / (1.4 * head_size)


def check_scales(state_dict: Mapping[str, Tensor], config: GnomonConfig) -> None:
    """Refuse a configuration that says something else about xPos or its heads than the weights.

    Raises:
        ValueError: naming the buffer.
    """
    for name in (name for name in state_dict if name.endswith(XPOS)):
        if config.positions != "xpos":
            raise ValueError(f"xpos_rel_pos must be True for weights with {name}; the configuration has False")
        if 2 * len(state_dict[name]) != config.head_dim:
            raise ValueError(
                f"attention_heads {config.num_attention_heads} in the configuration makes heads of "
                f"{config.head_dim} dimensions, but {name} is of heads of {2 * len(state_dict[name])}: use the "
                "configuration that belongs to the weights"
            )


__all__ = ["config_to_torchscale", "from_torchscale", "layout", "to_torchscale"]
