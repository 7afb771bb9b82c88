"""`graft`: new parameter tokens for any model of transformers, exact at the start, the rest frozen."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gnomon.growth.graft_layers import LAYERS, Part, attach, detach, draw, grafted_layers
from gnomon.growth.graft_targets import KINDS, FeedForwardPlaces, Place, feed_forwards, places, probe_for, select
from gnomon.growth.report import GrowthReport, measured, tolerance
from gnomon.models.backbone import GnomonPreTrainedModel
from gnomon.nn.functional import check_score, default_score_scale

TRAINABLE = ("tokens", "all")

_TRAINED_BEFORE = "_trained_before_graft"
"""Attribute of a grafted model: the names of the parameters that trained before everything else was frozen."""


def graft(
    model: PreTrainedModel,
    *,
    num_tokens: int | None = None,
    num_neurons: int | None = None,
    targets: str | Iterable[str] | None = None,
    score: str = "l2_norm_gelu",
    key_std: float | None = None,
    trainable: str = "tokens",
    seed: int | None = None,
    probe: Mapping[str, Tensor] | None = None,
) -> GrowthReport:
    """Add parameter tokens to a model of transformers, in place, without moving its outputs, and freeze the rest.

        beside a linear layer:   y = W x + b + Theta(x K^T) V
        in a feed-forward:       y = W_2 f(W_1 x + b_1) + b_2 + V f(K x + b_K)

    Source: TF eq. 4, 11 and 12, with the model's own layer in the place of the old tokens; the second is the same with
    the model's own activation as the score, and the only one that `merge_graft` can write into plain weights.

    The values V start at zero and the keys K random, so V learns from the first step and K from the second. Layers keep
    their names and parameters, so that generation, caches, checkpointing of activations and trainers work as before.
    `save_graft` writes what is new; `save_pretrained` writes the base as well, under names that only a model with the
    same graft reads back.

    Args:
        model: any model of transformers but gnomon's own, which grow by `gnomon.grow`.
        num_tokens: parameter tokens beside each linear layer among the targets.
        num_neurons: new neurons of each feed-forward among the targets, which then gets no tokens.
        targets: `attention`, `feed_forward`, or regular expressions that are searched in the layers' names; both kinds
            if None, or `feed_forward` where only `num_neurons` is given.
        score: of the tokens, as of a `Pattention`.
        key_std: standard deviation of the new keys, above 0; None for the layers' own rule (see `graft_layers.draw`).
        trainable: `tokens` freezes everything else, `all` nothing.
        seed: of the new keys; torch's global generator if None.
        probe: keyword arguments of a forward pass to find the layers by and to measure on; random inputs if None.

    Returns:
        The report.

    Raises:
        TypeError: this is no model of transformers.
        ValueError: with the rule, the value and the remedy; the model is then unchanged.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=16, n_layer=1, n_head=2))
    >>> report = graft(model, num_neurons=8)
    >>> report.exact, report.parameters_after - report.parameters_before
    (True, 264)
    """
    check_model(model)
    check_counts(num_tokens, num_neurons)
    check_score(score)
    check_trainable(trainable)
    batch = probe_for(model) if probe is None else probe
    if targets is None:
        targets = KINDS if num_tokens is not None else ("feed_forward",)
    found = places(model, batch)
    chosen = select(found, [targets] if isinstance(targets, str) else list(targets))
    check_weights(chosen)
    wide = [] if num_neurons is None else widened(found, chosen)
    parts = [part for fit in wide for part in neuron_parts(fit, int(num_neurons or 0))]
    taken = {part.name for part in parts}
    beside = [place for place in chosen if place.name not in taken]
    if num_tokens is not None and not beside:
        raise ValueError(
            f"num_tokens is {num_tokens}, but every target is a feed-forward that gets num_neurons; leave num_tokens "
            "away, or name other targets too"
        )
    if num_tokens is not None:
        parts += [
            Part(place.name, "tokens", place.in_features, place.out_features, num_tokens, score) for place in beside
        ]
    elif beside:
        raise ValueError(
            f"the target {beside[0].name} is no feed-forward, so it takes num_tokens and not num_neurons; "
            "give num_tokens as well, or targets='feed_forward'"
        )
    layers = dict(model.named_modules())
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    grafts = [draw(layers[part.name], part, key_std, generator) for part in parts]

    def change() -> list[dict[str, Any]]:
        for part, new in zip(parts, grafts, strict=True):
            attach(layers[part.name], part, new)
        freeze(model, trainable)
        return [row(part) for part in parts]

    try:
        report = measured(model, change, init="zero values", probe=batch)
    except RuntimeError as error:
        remove(model)
        raise ValueError(
            f"a feed-forward of this {type(model).__name__} cannot be widened, since something between its layers "
            f"knows their width ({error}); graft num_tokens instead"
        ) from None
    if report.gap_relative > tolerance(model.dtype):
        remove(model)
        raise ValueError(
            f"the outputs moved by {report.gap_relative:.3g} although the new values are zero: something between the "
            "layers of a feed-forward looks at all of its units (graft num_tokens instead), or the model is random in "
            "evaluation (give a probe that fixes it)"
        )
    return report


def check_model(model: Any) -> None:
    """Refuse what cannot be grafted.

    Args:
        model: to be grafted.

    Raises:
        TypeError: this is no model of transformers.
        ValueError: it is one of gnomon's, which grow, is grafted already, or has layers whose forward was replaced.
    """
    if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
        raise ValueError(f"graft needs the model itself, not its {type(model).__name__} wrapper; pass model.module")
    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"graft takes a model of transformers (a PreTrainedModel); got {type(model).__name__}")
    if isinstance(model, GnomonPreTrainedModel):
        raise ValueError(
            f"{type(model).__name__} has a growth of its own that needs nothing beside its layers: use gnomon.grow"
        )
    if any(True for _ in grafted_layers(model)):
        raise ValueError("the model is grafted already; merge it (gnomon.merge_graft), or load the base again")
    for name, module in model.named_modules():
        if isinstance(module, LAYERS) and "forward" in vars(module):
            raise ValueError(
                f"something has replaced the forward of {name}, as accelerate does for device_map, and a graft there "
                "would never run; load the model on one device, graft it, and spread it afterwards"
            )


def check_counts(num_tokens: int | None, num_neurons: int | None) -> None:
    """Refuse counts that add nothing.

    Args:
        num_tokens: beside linear layers.
        num_neurons: of feed-forwards.

    Raises:
        ValueError: neither is given, or one is no whole number above 0.
    """
    if num_tokens is None and num_neurons is None:
        raise ValueError("graft needs num_tokens (beside linear layers), num_neurons (of the feed-forwards), or both")
    for name, value in (("num_tokens", num_tokens), ("num_neurons", num_neurons)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ValueError(f"{name} must be a whole number above 0; got {value!r}")


def check_weights(chosen: list[Place]) -> None:
    """Refuse layers that new parameters cannot stand beside.

    Args:
        chosen: the targets.

    Raises:
        ValueError: there is none, or one holds quantized weights.
    """
    if not chosen:
        raise ValueError(f"targets is empty; name {', '.join(KINDS)}, or regular expressions of layers' names")
    for place in chosen:
        if not place.layer.weight.is_floating_point():
            raise ValueError(
                f"{place.name} holds quantized weights ({place.layer.weight.dtype}), and new parameters take the dtype "
                "of their layer; load the model without quantization"
            )


def check_trainable(trainable: str) -> None:
    """Refuse an unknown word.

    Args:
        trainable: of `TRAINABLE`.

    Raises:
        ValueError: it is none of them.
    """
    if trainable not in TRAINABLE:
        raise ValueError(f"trainable must be one of {', '.join(TRAINABLE)}; got {trainable!r}")


def widened(found: list[Place], chosen: list[Place]) -> list[FeedForwardPlaces]:
    """The feed-forwards that have a layer among the chosen ones.

    Args:
        found: all layers.
        chosen: the targets.

    Returns:
        One entry a feed-forward.

    Raises:
        ValueError: there is none, or one cannot be widened.
    """
    names = {place.name for place in chosen}
    wide = [fit for fit in feed_forwards(found) if names & {place.name for place in (*fit.write, fit.read)}]
    if not wide:
        raise ValueError(
            f"num_neurons widens feed-forwards, and none of the {len(chosen)} targets ({chosen[0].name}, ...) is part "
            "of one; graft num_tokens there"
        )
    for fit in wide:
        if fit.is_fused:
            raise ValueError(
                f"{fit.write[0].name} writes the gate and the hidden units of its feed-forward in one, so it cannot "
                "simply be made longer; graft num_tokens instead"
            )
    return wide


def neuron_parts(fit: FeedForwardPlaces, num_neurons: int) -> list[Part]:
    """What becomes new in a feed-forward.

    Args:
        fit: the feed-forward.
        num_neurons: how many neurons are added.

    Returns:
        One part a layer.
    """
    group = fit.read.name
    write = [
        Part(
            place.name,
            "write",
            place.in_features,
            place.out_features,
            num_neurons,
            bias=place.layer.bias is not None,
            group=group,
        )
        for place in fit.write
    ]
    return [*write, Part(group, "read", fit.read.in_features, fit.read.out_features, num_neurons, group=group)]


def freeze(model: PreTrainedModel, trainable: str) -> None:
    """Leave only the graft to be trained, or everything that trained before as well.

    Args:
        model: grafted.
        trainable: of `TRAINABLE`.
    """
    new = {id(parameter) for _, layer in grafted_layers(model) for parameter in layer.graft.parameters()}
    old = [(name, parameter) for name, parameter in model.named_parameters() if id(parameter) not in new]
    setattr(model, _TRAINED_BEFORE, [name for name, parameter in old if parameter.requires_grad])
    if trainable == "tokens":
        for _, parameter in old:
            parameter.requires_grad_(False)


def thaw(model: PreTrainedModel) -> None:
    """Let those parameters train again that did before the graft.

    Args:
        model: whose graft has gone.
    """
    trained = set(vars(model).pop(_TRAINED_BEFORE, ()))
    for name, parameter in model.named_parameters():
        if name in trained:
            parameter.requires_grad_(True)


def remove(model: PreTrainedModel) -> None:
    """Take a graft away again.

    Args:
        model: with or without a graft.
    """
    for _, layer in list(grafted_layers(model)):
        detach(layer)
    thaw(model)


def row(part: Part) -> dict[str, Any]:
    """One part as the report shows it.

    Args:
        part: just attached.

    Returns:
        A row of the report.
    """
    return {
        "name": part.name,
        "tokens_before": 0,
        "tokens_after": part.num_tokens,
        "score_scale_before": None,
        "score_scale_after": None if part.score is None else default_score_scale(part.score, part.num_tokens),
        "exact": True,
        "dead": 0,
        "role": part.role,
    }
