"""Merge a model of images and a model of texts into one stack, by putting their parameter tokens together.

| how | tokens | exact |
|---|---|---|
| `own` | copies of every layer for each modality (`multiway: separate`) | for images alone, and for texts alone |
| `shared` | K = [K_image; K_text], V likewise, tau^2 = tau_image^2 + tau_text^2, for every input | for neither |

Source: TF section 5 proposes `shared` as future work and tests nothing. Its sum of both values is right only where the
other model's keys give no score, which nothing brings about: a score row's norm and its GELU see all tokens. With one
tau for all, a row whose scores are as large on both halves has each half's weights as they were (for the L2 scores,
whose norm grows as tau does), and the other half's output is added as noise that training has to remove.
"""

from typing import Any

import torch
from torch import nn

from gnomon.growth.sites import TOKEN_SIZES, pattentions
from gnomon.models.backbone import GnomonPreTrainedModel
from gnomon.models.config import GnomonConfig
from gnomon.models.multiway import IMAGE, JOINT_POSITIONS, TEXT, GnomonForImageTextMaskedModeling
from gnomon.models.sizes import DEFAULTS, IMAGE_DEFAULTS
from gnomon.nn.multiway import SeparateLayers

HOWS = ("own", "shared")
OF_IMAGES = (
    "image_size",
    "num_patch_tokens",
    "stem_conv_channels",
    *(name for name in IMAGE_DEFAULTS if name not in ("positions", "is_decoder")),
)
"""Fields that the merged model takes from the model of images."""

FREE = (*OF_IMAGES, *TOKEN_SIZES, "vocab_size", "max_position_embeddings", "classifier_pooling", "use_cache")
"""Fields in which the two models may differ; their marks' ids may as well."""


@torch.no_grad()
def merge_models(
    vision: GnomonPreTrainedModel, text: GnomonPreTrainedModel, *, how: str = "own"
) -> GnomonForImageTextMaskedModeling:
    """Join two models with parameter tokens in one stack for images, texts and pairs of both.

    Args:
        vision: of images, `GnomonForMaskedImageModeling` or another head; what that painted with is taken along.
        text: of texts, looking both ways, `GnomonForMaskedLM` as a rule.
        how: `own` or `shared`, see above.

    Returns:
        A new model; the two stay as they are.

    Raises:
        ValueError: for models that do not fit together, naming the field, both values and the remedy.
    """
    config = merged_config(vision.config, text.config, how)
    model = GnomonForImageTextMaskedModeling(config).to(device=text.device, dtype=text.dtype)
    stacks = {IMAGE: vision.model, TEXT: text.model}
    model.model.embed_tokens.load_state_dict(text.model.embed_tokens.state_dict())
    model.model.embed_patches.load_state_dict(vision.model.embed_patches.state_dict())
    for name in ("mask_token", "pixel_head"):
        if hasattr(vision, name):
            getattr(model, name).load_state_dict(getattr(vision, name).state_dict())
    if hasattr(text, "lm_head"):
        model.lm_head.load_state_dict(text.lm_head.state_dict())
    if how == "own":
        for name, module in model.model.named_modules():
            if isinstance(module, SeparateLayers):
                for modality, stack in stacks.items():
                    module.copies[modality].load_state_dict(stack.get_submodule(name).state_dict())
    else:
        _share(model.model, vision.model, text.model)
    return model.train(text.training)


def merged_config(vision: GnomonConfig, text: GnomonConfig, how: str) -> GnomonConfig:
    """The configuration of the merged model.

    Args:
        vision: of the model of images.
        text: of the model of texts.
        how: one of `HOWS`.

    Raises:
        ValueError: as for `merge_models`.
    """
    if how not in HOWS:
        raise ValueError(f"how must be one of {', '.join(HOWS)}; got {how!r}")
    if vision.image_size is None or text.image_size is not None or text.vocab_size is None:
        raise ValueError("merge joins a model of images and one of texts, in this order; give them so")
    if {vision.projection, vision.feed_forward} != {"pattention"}:
        raise ValueError(
            f"merge joins parameter tokens, so projection and feed_forward must be pattention; got {vision.projection} "
            f"and {vision.feed_forward}"
        )
    for name in DEFAULTS:
        ours, theirs = getattr(vision, name), getattr(text, name)
        if name not in FREE and not name.endswith("token_id") and ours != theirs:
            raise ValueError(
                f"{name} must be the same in both models; got {ours!r} (images), {theirs!r} (texts): train them alike"
            )
    if text.positions not in JOINT_POSITIONS:
        raise ValueError(
            f"positions must be one of {', '.join(JOINT_POSITIONS)}, which have no table; got {text.positions}"
        )
    fields: dict[str, Any] = {name: getattr(text, name) for name in DEFAULTS}
    fields |= {name: getattr(vision, name) for name in OF_IMAGES}
    counts = {name: (getattr(vision, name), getattr(text, name)) for name in TOKEN_SIZES}
    if how == "shared":
        if text.norm != "layer_plain":
            raise ValueError(
                f"shared tokens need norms without parameters, norm layer_plain; got {text.norm}: merge own"
            )
        if wrong := [name for name, pair in counts.items() if any(not isinstance(count, int) for count in pair)]:
            raise ValueError(
                f"shared tokens need one count for all layers; {wrong[0]} differs by layer or site: merge own"
            )
        return GnomonConfig(**fields | {name: sum(pair) for name, pair in counts.items()})
    if unequal := [name for name, (ours, theirs) in counts.items() if ours != theirs]:
        name = unequal[0]
        raise ValueError(
            f"{name} must be the same in both models for copies of their own; got {counts[name][0]} and "
            f"{counts[name][1]}: grow the smaller one, which is exact"
        )
    return GnomonConfig(**fields | {"num_modalities": 2})


def _share(merged: nn.Module, vision: nn.Module, text: nn.Module) -> None:
    """All tokens for every input, and the mean of what cannot be put side by side."""
    pairs = zip(pattentions(merged), pattentions(vision), pattentions(text), strict=True)
    for (_, _, both), (_, _, ours), (_, _, theirs) in pairs:
        both.key_tokens.copy_(torch.cat((ours.key_tokens, theirs.key_tokens)))
        both.value_tokens.copy_(torch.cat((ours.value_tokens, theirs.value_tokens)))
        if both.score_scale is not None:
            scales = (ours.score_scale, theirs.score_scale)
            both.score_scale.copy_(sum(scales) if both.score == "softmax" else (scales[0] ** 2 + scales[1] ** 2).sqrt())
    for both, ours, theirs in zip(
        merged.norm.parameters(), vision.norm.parameters(), text.norm.parameters(), strict=True
    ):
        both.copy_((ours + theirs) / 2)
