"""How far one step of SGD moves what a model computes, measured on real text, against its depth."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gnomon.analysis.gains import Gains, depth_gain, own_gain, update_bound
from gnomon.analysis.signals import gradient_norms, model_blocks, record_activations

IGNORED_LABEL = -100
"""The label of an id that is not predicted."""

MOVED = ("matrices", "blocks", "all")
"""What a step may move: the blocks' matrices and tokens (the theorems' theta), all of the blocks, the whole model."""


@dataclass(frozen=True)
class ModelUpdate:
    """What one step of SGD does to a model.

    Attributes:
        update: ||F(x, theta*) - F(x, theta)|| over the learning rate.
        loss: before the step, nats a token.
        activations: root mean square of the residual stream behind each block.
        gradients: norm of each block's gradient, over all its parameters.
    """

    update: float
    loss: float
    activations: list[float]
    gradients: list[float]

    def to_dict(self) -> dict[str, Any]:
        """As plain numbers and lists."""
        return asdict(self)


def measure_update(
    model: nn.Module, batch: Mapping[str, Tensor], *, learning_rate: float = 1e-5, moved: str = "matrices"
) -> ModelUpdate:
    """Measure how far one step of SGD moves the output of a model, and put the model back.

        update = ||F(x, theta*) - F(x, theta)|| / eta,   theta* = theta - eta dL/dtheta

    F is the last hidden state, after the final norm where there is one; the norm is the Euclidean one over the width,
    its root mean square taken over the positions of the batch that predict something. L is the model's own loss, the
    mean over the batch's targets. A step so small that the update is in proportion to it wants float64:
    `model.double()`.

    Source: MG section 3, after DN section 4: the expected magnitude of model updates.

    Differs: the theorems follow one input x through matrices alone. A batch of text has many positions whose
    gradients are averaged, which changes the size of the update; and with `moved` set to `blocks` or `all` the norms'
    own weights move as well, which the theorems leave out and which for Post-LN and DeepNorm grows as the depth.

    Args:
        model: with a loss; not changed, but its gradients are cleared.
        batch: `input_ids`, `labels` and what else it takes.
        learning_rate: eta.
        moved: which parameters the step moves, one of `MOVED`.

    Returns:
        The update and what was seen on the way.

    Raises:
        ValueError: for an unknown `moved`, or a rate that is not above 0.
    """
    if not learning_rate > 0.0:
        raise ValueError(f"learning_rate must be above 0; got {learning_rate}")
    parameters = moved_parameters(model, moved)
    was_training = model.training
    model.eval()
    inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
    with torch.no_grad(), record_activations(model) as activations:
        before = _output(model, inputs)
    model.zero_grad(set_to_none=True)
    loss = model(**batch).loss
    loss.backward()
    gradients = gradient_norms(model)
    kept = [parameter.detach().clone() for parameter in parameters]
    with torch.no_grad():
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=learning_rate)
        after = _output(model, inputs)
        for parameter, value in zip(parameters, kept, strict=True):
            parameter.copy_(value)
    model.zero_grad(set_to_none=True)
    model.train(was_training)
    distances = (after - before).double().norm(dim=-1)[_predicting(model, batch["labels"])]
    return ModelUpdate(
        float(distances.square().mean().sqrt()) / learning_rate, float(loss.detach()), list(activations), gradients
    )


def moved_parameters(model: nn.Module, moved: str) -> list[nn.Parameter]:
    """The parameters that a step moves.

    Args:
        model: any model of the library.
        moved: one of `MOVED`.

    Returns:
        The parameters, each once.

    Raises:
        ValueError: for an unknown word.
    """
    if moved not in MOVED:
        raise ValueError(f"moved must be one of {', '.join(MOVED)}; got {moved!r}")
    if moved == "all":
        return [parameter for parameter in model.parameters() if parameter.requires_grad]
    inside = [parameter for block in model_blocks(model) for parameter in block.parameters()]
    return [parameter for parameter in inside if parameter.requires_grad and (moved == "blocks" or parameter.dim() > 1)]


@dataclass(frozen=True)
class Setting:
    """How the models of a study are built and measured.

    Attributes:
        fields: of the configuration, without placement and depth.
        initialization: `config` (each placement's own) or `xavier` (the theorems' setting, with `gain`).
        gain: with `xavier`: `own` (gamma for `sub`, beta for `deep`, else 1), `gamma` for all, or a number.
        gain_tokens: with `xavier`: which tokens of a Pattention have the gain.
        removed_norms: slots of the norms to leave out: `before`, `inner`.
        is_activation_linear: replace the activation of a linear feed-forward layer by the identity.
        moved: which parameters the step moves.
        learning_rate: eta.
    """

    fields: Mapping[str, Any]
    initialization: str = "xavier"
    gain: str | float = "own"
    gain_tokens: str = "both"
    removed_norms: Sequence[str] = ()
    is_activation_linear: bool = False
    moved: str = "matrices"
    learning_rate: float = 1e-5


def build_model(setting: Setting, placement: str, depth: int, seed: int) -> nn.Module:
    """Build one language model of a study, in float64.

    Args:
        setting: of the study.
        placement: norm placement.
        depth: number of layers.
        seed: of its weights.

    Returns:
        The model.

    Raises:
        ValueError: the fields do not fit together, or the setting names what does not exist.
    """
    from gnomon.models.config import GnomonConfig
    from gnomon.models.text import GnomonForCausalLM

    if setting.initialization not in ("config", "xavier"):
        raise ValueError(f"initialization of a study is config or xavier; got {setting.initialization!r}")
    config = GnomonConfig(**{**setting.fields, "norm_placement": placement, "num_hidden_layers": depth})
    torch.manual_seed(seed)
    model = GnomonForCausalLM(config).double().eval()
    if setting.initialization == "xavier":
        words = {"own": own_gain, "gamma": depth_gain}
        gain = words[setting.gain](config) if setting.gain in words else float(setting.gain)
        Gains(gain, setting.gain_tokens).draw_(model, seed=seed)
    for block in model_blocks(model):
        _change_block(block, setting)
    return model


def measure_depths(
    setting: Setting, placements: Sequence[str], depths: Sequence[int], batches: Sequence[Mapping[str, Tensor]]
) -> Iterator[dict[str, Any]]:
    """Measure the update of every placement at every depth, one seed of weights for each batch.

    Args:
        setting: how the models are built and measured.
        placements: norm placements.
        depths: numbers of layers.
        batches: each is given to a model of its own, seeded by its number.

    Yields:
        A row for each placement and depth: `update` (mean, lowest, highest), `bound` over the rate (None where the
        theorems say nothing), `loss`, and for each layer the mean `activations` and `gradients`.
    """
    for placement in placements:
        for depth in depths:
            seen, bounds = [], []
            for seed, batch in enumerate(batches):
                model = build_model(setting, placement, depth, seed)
                bounds.append(update_bound(model, learning_rate=1.0))
                seen.append(measure_update(model, batch, learning_rate=setting.learning_rate, moved=setting.moved))
            yield {"placement": placement, "depth": depth, **summarize(seen, bounds)}


def summarize(seen: Sequence[ModelUpdate], bounds: Sequence[float | None]) -> dict[str, Any]:
    """Means over several measurements of equal models.

    Args:
        seen: the measurements.
        bounds: of each model.

    Returns:
        The row of `measure_depths` but for placement and depth.
    """
    updates = [each.update for each in seen]
    known = [bound for bound in bounds if bound is not None]
    return {
        "runs": len(seen),
        "update": statistics.fmean(updates),
        "lowest": min(updates),
        "highest": max(updates),
        "bound": statistics.fmean(known) if known else None,
        "loss": statistics.fmean(each.loss for each in seen),
        "activations": [statistics.fmean(layer) for layer in zip(*(each.activations for each in seen), strict=True)],
        "gradients": [statistics.fmean(layer) for layer in zip(*(each.gradients for each in seen), strict=True)],
    }


def draw_batches(
    windows: Any,
    collate: Callable[[list[Any]], dict[str, Tensor]],
    *,
    batch_size: int,
    num_batches: int,
    seed: int = 0,
) -> list[dict[str, Tensor]]:
    """Draw batches of windows at random, none twice.

    Args:
        windows: a text in pieces.
        collate: makes a batch of some.
        batch_size: windows in a batch.
        num_batches: how many.
        seed: of the draw.

    Returns:
        The batches.

    Raises:
        ValueError: when there are too few windows.
    """
    wanted = batch_size * num_batches
    if len(windows) < wanted:
        raise ValueError(
            f"the text has {len(windows)} sequences, fewer than the {wanted} of {num_batches} batches of {batch_size}; "
            "lower batches or batch-size, or give more text"
        )
    order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(seed))[:wanted].tolist()
    return [
        collate([windows[index] for index in order[start : start + batch_size]])
        for start in range(0, wanted, batch_size)
    ]


def _output(model: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
    """The last hidden state."""
    return model.base_model(**inputs, use_cache=False).last_hidden_state


def _predicting(model: nn.Module, labels: Tensor) -> Tensor:
    """Which positions predict a target: in a causal stack the one before it."""
    targets = labels != IGNORED_LABEL
    if model.config.is_encoder_decoder or not model.config.is_decoder:
        return targets
    return torch.nn.functional.pad(targets[:, 1:], (0, 1))


def _change_block(block: Any, setting: Setting) -> None:
    """Take norms and the activation out of a block, for an ablation."""
    for slot in setting.removed_norms:
        if slot == "before":
            for residual in (block.attention_residual, block.feed_forward_residual):
                residual.before = nn.Identity()
        elif slot == "inner":
            block.attention.inner_norm = nn.Identity()
            if hasattr(block.feed_forward, "inner_norm"):
                block.feed_forward.inner_norm = nn.Identity()
        else:
            raise ValueError(f"a norm that can be left out is before or inner; got {slot!r}")
    if setting.is_activation_linear and hasattr(block.feed_forward, "activation"):
        block.feed_forward.activation = _identity


def _identity(x: Tensor) -> Tensor:
    return x
