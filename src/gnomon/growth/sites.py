"""Where a model has parameter tokens: found in its blocks, not in its class, so that new models need nothing here."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer
from transformers import PreTrainedModel

from gnomon.growth.optimizer import grow_parameter
from gnomon.growth.tokens import NewTokens
from gnomon.models.backbone import GnomonModel
from gnomon.models.config import GnomonConfig
from gnomon.models.sizes import ATTENTION_SITES, SITES, check_tokens, compact, layer_tokens
from gnomon.nn.blocks import Block
from gnomon.nn.projections import Pattention

TOKEN_SIZES = {
    "num_attention_tokens": ATTENTION_SITES,
    "num_output_tokens": ("output",),
    "num_feed_forward_tokens": ("feed_forward",),
}
"""Config field -> the sites whose token count it holds."""

PARTS = ("key_tokens", "value_tokens")


@dataclass(frozen=True)
class Site:
    """One Pattention of a model: where it stands and how many tokens it is to have."""

    name: str
    module: Pattention
    layer: int
    num_tokens: int


def pattentions(model: nn.Module) -> Iterator[tuple[str, int, Pattention]]:
    """Every Pattention that stands at a site of a block.

    Args:
        model: any model built of the library's blocks.

    Returns:
        Name, index of the block among all blocks, and layer, in the order of the model.
    """
    named = ((name, block) for name, block in model.named_modules() if isinstance(block, Block))
    for layer, (name, block) in enumerate(named):
        for inner, module in block.named_modules():
            if isinstance(module, Pattention) and module.site in SITES:
                yield f"{name}.{inner}", layer, module


def stacks(model: nn.Module) -> list[GnomonModel]:
    """The stacks of blocks of a model, in order: one, or an encoder and its decoder.

    Args:
        model: any model of the library.

    Returns:
        The stacks.
    """
    return [module for module in model.modules() if isinstance(module, GnomonModel)]


def towers(model: PreTrainedModel) -> dict[str, PreTrainedModel]:
    """The towers of a model of several, by their names without `_model`; none of a single stack or a pair.

    Args:
        model: any model of the library.

    Returns:
        Name -> tower.
    """
    parts = [row for row in model.named_children() if isinstance(getattr(row[1], "config", None), GnomonConfig)]
    return {name.removesuffix("_model"): part for name, part in parts} if len(parts) > 1 else {}


def check_single_stack(model: PreTrainedModel, verb: str) -> None:
    """Refuse a model of several towers, whose sizes are not those of one configuration.

    Args:
        model: to be changed.
        verb: `grow` or `shrink`, for the message.

    Raises:
        ValueError: naming the towers.
    """
    if names := list(towers(model)):
        way = {
            "grow": "name one at a time, " + " or ".join(f"tower: {name}" for name in names),
            "shrink": "shrink one at a time, "
            + " or ".join(f"gnomon.shrink(model.{name}_model, ...)" for name in names),
        }
        raise ValueError(
            f"a {type(model).__name__} has sizes of its own in each tower; {way[verb]}: the model's config follows"
        )


def refuse_wrapper(model: nn.Module, verb: str) -> None:
    """Refuse a model inside a wrapper that would go on with the old sizes.

    Args:
        model: to be changed.
        verb: `grow` or `shrink`, for the message.

    Raises:
        ValueError: for DistributedDataParallel and DataParallel.
    """
    if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
        raise ValueError(f"{verb} needs the model itself, not its {type(model).__name__} wrapper; pass model.module")


def sites(model: PreTrainedModel, sizes: Mapping[str, Any], layers: Iterable[int] | None, verb: str) -> list[Site]:
    """The sites that the sizes name, with the count that each is to have.

    Args:
        model: to be changed.
        sizes: config fields of `TOKEN_SIZES` and their new values.
        layers: indices of the layers to change; all if None.
        verb: `grow` or `shrink`, for the messages.

    Returns:
        One entry a Pattention.

    Raises:
        ValueError: for a size that does not exist, a wrapped model, layers that do not exist, or linear layers.
    """
    refuse_wrapper(model, verb)
    if unknown := sorted(set(sizes) - set(TOKEN_SIZES)):
        raise ValueError(f"{verb} takes {', '.join(TOKEN_SIZES)}; got {unknown[0]}")
    if not sizes:
        raise ValueError(f"{verb} needs at least one of {', '.join(TOKEN_SIZES)}")
    check_single_stack(model, verb)
    if verb == "shrink" and model.config.multiway == "tokens":
        raise ValueError(
            "shrink cannot weigh the tokens of a modality beside shared ones; shrink with multiway: separate"
        )
    num_layers = model.config.num_hidden_layers
    chosen = set(range(num_layers)) if layers is None else set(layers)
    if not chosen <= set(range(num_layers)):
        raise ValueError(f"layers must lie in 0 to {num_layers - 1}; got {sorted(chosen)}")
    found, result = list(pattentions(model)), []
    for field, places in TOKEN_SIZES.items():
        if field not in sizes:
            continue
        check_tokens(field, sizes[field], num_layers)
        here = [row for row in found if row[2].site in places]
        if not here:
            raise ValueError(f"{verb} cannot change {field}: it has no parameter tokens there, only linear layers")
        for name, layer, module in here:
            if layer in chosen:
                value = sizes[field]
                entry = value[layer] if isinstance(value, list | tuple) else value
                tokens = entry[module.site] if isinstance(entry, dict) else entry
                result.append(Site(name, module, layer, tokens))
    return result


def describe(model: PreTrainedModel) -> None:
    """Write the token counts of the model as it stands into its config.

    Args:
        model: just grown or shrunk.
    """
    config = model.config
    counts = [layer_tokens(config.to_dict(), layer) for layer in range(config.num_hidden_layers)]
    for _, layer, module in pattentions(model):
        counts[layer][module.site] = module.num_tokens
    for field, places in TOKEN_SIZES.items():
        if getattr(config, field) is not None:
            entries = [{site: row[site] for site in places} if len(places) > 1 else row[places[0]] for row in counts]
            setattr(config, field, compact(entries))


def put(site: Site, plan: NewTokens, optimizer: Optimizer | None, drop_state: bool = False) -> dict[str, Any]:
    """Put new tokens in place and say what changed.

    Args:
        site: where.
        plan: the tokens.
        optimizer: whose state follows.
        drop_state: forget the optimizer's state of these tokens.

    Returns:
        A row of the report.
    """
    module, before = site.module, site.module.num_tokens
    tau = None if module.score_scale is None else float(module.score_scale)
    for part, data, moment in zip(PARTS, (plan.keys, plan.values), (plan.key_moment, 1.0), strict=True):
        parameter = getattr(module, part)
        grow_parameter(parameter, data, plan.source, optimizer=optimizer, moment=moment, drop_state=drop_state)
    if module.score_scale is not None:
        module.score_scale.data.fill_(plan.score_scale)
    dead = ~(module.key_tokens.any(dim=1) | module.value_tokens.any(dim=1))
    return {
        "name": site.name,
        "tokens_before": before,
        "tokens_after": module.num_tokens,
        "score_scale_before": tau,
        "score_scale_after": None if module.score_scale is None else float(module.score_scale),
        "exact": plan.is_exact,
        "dead": int(dead.sum()) * (module.in_features + module.out_features),
    }
