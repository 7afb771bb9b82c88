"""The branches of torchscale's multiway encoders, each as a model of its own: BEiT-3's images and its texts.

A multiway encoder has two copies of every layer, A for the first part of a sequence and B for the rest. Source: BEiT-3
(arXiv 2208.10442), section 2.1, and torchscale's `MultiwayNetwork`, which without a split position uses A alone.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gnomon.convert.tables import Parts
from gnomon.convert.torchscale_keys import ENCODER, OFFSET

BRANCHES = ("A", "B")
TEXTS, PATCHES = "text_embed", "vision_embed"
"""What begins the names of BEiT-3's embeddings, those of branch B and of branch A."""

IMAGES = {
    f"{PATCHES}.proj.weight": Parts(
        ("embed_patches.projection.weight",),
        lambda tensor, _: (tensor.flatten(1),),
        lambda tensors, config: tensors[0].view(len(tensors[0]), config.num_channels, -1, config.patch_size),
    ),
    f"{PATCHES}.proj.bias": "embed_patches.projection.bias",
    f"{PATCHES}.cls_token": Parts(
        ("embed_patches.class_token.weight",),
        lambda tensor, _: (tensor[0],),
        lambda tensors, _: tensors[0].unsqueeze(0),
    ),
    "embed_positions.weight": Parts(
        ("embed_patches.positions.weight",),
        lambda tensor, _: (tensor[OFFSET:],),
        lambda tensors, _: torch.cat((tensors[0].new_zeros(OFFSET, tensors[0].shape[1]), tensors[0])),
    ),
}
"""Names of an encoder of images; its first positions are rows that nothing reads, and are not kept."""


def take_branch(
    state_dict: Mapping[str, Tensor], config: Mapping[str, Any], branch: str
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """One branch of a multiway encoder in the naming of an encoder that has but one.

    Args:
        state_dict: tensors of an encoder, or of a BEiT-3 (its names may all begin with `beit3.`).
        config: the keyword arguments of its configuration class.
        branch: `A` or `B`; of a BEiT-3 the images or the texts, without the other's embeddings. Its mask token, which
            belongs to pretraining, and with branch A its output projection to words are left out.

    Returns:
        The tensors and the keyword arguments.

    Raises:
        ValueError: for another branch, or weights or a configuration without branches.
    """
    if branch not in BRANCHES:
        raise ValueError(f"a multiway encoder has the branches {' and '.join(BRANCHES)}; got {branch!r}: name one")
    names = {name: name.removeprefix("beit3.").split(".") for name in state_dict}
    if config.get("multiway") is not True or not any(branch in parts for parts in names.values()):
        raise ValueError(
            f"branch {branch} is to be taken from a multiway encoder; got multiway {config.get('multiway', False)} and "
            f"{sum(branch in parts for parts in names.values())} tensors of that branch: leave the branch out"
        )
    is_beit = any(parts[0] in (TEXTS, PATCHES) for parts in names.values())
    unused = {"A": (TEXTS, "mask_token", "output_projection"), "B": (PATCHES,)}[branch] if is_beit else ()
    (other,) = set(BRANCHES) - {branch}
    taken: dict[str, Tensor] = {}
    for name, parts in names.items():
        if other in parts or any(word in parts for word in unused):
            continue
        if parts[0] == TEXTS:
            parts = [ENCODER, "embed_tokens", *parts[1:]]
        elif parts[0] == PATCHES:
            parts = [ENCODER, *parts]
        taken[".".join(part for part in parts if part != branch)] = state_dict[name]
    return taken, {**config, "multiway": False}


def has_images(state_dict: Mapping[str, Tensor]) -> bool:
    """Whether an encoder's weights are of one that reads patches."""
    return any(name.startswith(f"{PATCHES}.") for name in state_dict)


def refuse_two_tables(state_dict: Mapping[str, Tensor]) -> None:
    """Refuse a whole BEiT-3, or another encoder whose branches have positions of their own.

    Raises:
        ValueError: naming a tensor.
    """
    for name in state_dict:
        if any(f"embed_positions.{branch}." in name for branch in BRANCHES):
            raise ValueError(
                f"both branches of these weights have a table of positions, {name} for one, and a stack has one here: "
                "convert a branch by itself, A (images) or B (texts), with --branch or branch="
            )


__all__ = ["BRANCHES", "IMAGES", "has_images", "refuse_two_tables", "take_branch"]
