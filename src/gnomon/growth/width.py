"""Wider models: feed-forward width, heads, head size and hidden size, exactly where that is possible."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import PreTrainedModel

from gnomon.growth.axes import Axis, balanced_offsets, cloned, duplicate, entries, extend, random_copies, take, widen
from gnomon.growth.report import GrowthReport, measured
from gnomon.models.config import GnomonConfig
from gnomon.nn.blocks import Block
from gnomon.nn.projections import Pattention

WIDTHS = ("intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size")
METHODS = ("exact", "net2net", "hypercloning")


def grow_width(
    model: PreTrainedModel,
    *,
    method: str = "exact",
    optimizer: Optimizer | None = None,
    seed: int | None = None,
    offset_std: float = 1.0,
    probe: Mapping[str, Tensor] | None = None,
    **sizes: int,
) -> GrowthReport:
    """Make a model wider, in place.

    Source: arXiv 2308.06103 for `exact`. Under LayerNorm the hidden size is copied by whole factors whatever the
    method, since mean and variance of a padded vector are not those of the vector. Head size: new query dimensions
    meet zero key dimensions, queries are scaled by sqrt(new / old) against the softmax's 1 / sqrt(head size), and as
    many dimensions turn as before.

    Args:
        model: a gnomon model.
        method: `exact` (new units that nobody reads yet), `net2net` (copies of random units) or `hypercloning`
            (copies of all units, whole factors); copies are told apart by offsets of the weights that read them,
            which sum to zero.
        optimizer: the model's; its state follows the weights' indices, new entries start at zero.
        seed: of what is random; torch's global generator if None.
        offset_std: size of those offsets, as a multiple of the weights' standard deviation; 0 leaves copies alike,
            which then stay so for ever.
        probe: keyword arguments of a forward pass to measure on; random ids if None.
        sizes: `intermediate_size`, `num_attention_heads`, `num_key_value_heads`, `head_dim`, `hidden_size`.

    Returns:
        The report; where the norm makes exactness impossible, it says so.

    Raises:
        ValueError: with the rule, the value and the remedy; the model is then unchanged.
    """
    config = model.config
    check_widths(config, method, sizes)
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    widening = Widening(config, method, sizes, optimizer, generator, offset_std)

    def change() -> list[dict[str, Any]]:
        for block in blocks(model):
            widening.grow_block(block)
        widening.grow_ends(model)
        for name, value in widening.fields().items():
            setattr(config, name, value)
        for block in blocks(model):
            attention = block.attention
            attention.head_size, attention.scaling = config.head_dim, config.head_dim**-0.5
            attention.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        return [{"name": name, "exact": widening.is_exact, "dead": 0} for name in sizes]

    return measured(model, change, init=method, probe=probe)


def blocks(model: nn.Module) -> Iterator[Block]:
    """The blocks of a model, in order."""
    return (module for module in model.modules() if isinstance(module, Block))


def check_widths(config: GnomonConfig, method: str, sizes: Mapping[str, int]) -> None:
    """Refuse widths that cannot be grown to.

    Args:
        config: of the model.
        method: of `METHODS`.
        sizes: asked for.

    Raises:
        ValueError: with the rule, the value and the remedy.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}; got {method!r}")
    if not sizes or (unknown := sorted(set(sizes) - set(WIDTHS))):
        raise ValueError(f"widths are {', '.join(WIDTHS)}; got {unknown[0] if sizes else 'none'}")
    for name, value in sizes.items():
        present = getattr(config, name)
        if present is None:
            raise ValueError(
                f"{name} cannot grow: the feed-forward layer is a Pattention; grow num_feed_forward_tokens"
            )
        if not isinstance(value, int) or value < present:
            raise ValueError(f"{name} is {present} and grows to a larger whole number; got {value!r}")
    if all(value == getattr(config, name) for name, value in sizes.items()):
        raise ValueError(f"nothing grows: the model already has {dict(sizes)}; ask for larger widths")
    if method != "exact" and sizes.get("head_dim", config.head_dim) != config.head_dim:
        raise ValueError("head_dim grows by method exact alone, since copied dimensions would not turn alike")
    width = sizes.get("hidden_size", config.hidden_size)
    if width % config.hidden_size and not {config.norm, config.final_norm} <= {"rms"}:
        raise ValueError(
            f"under LayerNorm the hidden size grows by whole factors, from {config.hidden_size} to "
            f"{2 * config.hidden_size}; got {width}"
        )


class Widening:
    """The axes of one growth, and what they do to every kind of layer.

    Args:
        config: of the model before growth.
        method: of `METHODS`.
        sizes: after growth.
        optimizer: whose state follows, or None.
        generator: of what is random.
        offset_std: size of the offsets that tell copies apart, over the weights' standard deviation.
    """

    def __init__(
        self,
        config: GnomonConfig,
        method: str,
        sizes: Mapping[str, int],
        optimizer: Optimizer | None,
        generator: torch.Generator | None,
        offset_std: float = 0.0,
    ) -> None:
        self.config, self.method, self.optimizer, self.generator = config, method, optimizer, generator
        self.offset_std = offset_std
        self.sizes = dict(sizes)
        self.head_dim = self.sizes.get("head_dim", config.head_dim)
        self.heads, self.shared_heads = self._head_axes()
        width = self.sizes.get("hidden_size", config.hidden_size)
        padded = method == "exact" and {config.norm, config.final_norm} <= {"rms"}
        self.hidden = extend(config.hidden_size, width, silent=True) if padded else cloned(config.hidden_size, width)
        self.mean_square = config.hidden_size / width if padded else 1.0
        inner = config.intermediate_size
        self.inner = None if inner is None else self._axis(inner, self.sizes.get("intermediate_size", inner))
        tied_without_gain = config.tie_word_embeddings and config.final_norm == "layer_plain"
        self.is_exact = padded or width == config.hidden_size or not tied_without_gain

    def fields(self) -> dict[str, Any]:
        """The config fields after growth."""
        config, fields = self.config, dict(self.sizes)
        fields["num_key_value_heads"] = len(self.shared_heads.source)
        fields["norm_eps"] = config.norm_eps * self.mean_square
        if config.positions == "rotary":
            factor = config.rotary_size / self.head_dim
            fields["rope_parameters"] = {**config.rope_parameters, "partial_rotary_factor": factor}
        return fields

    def grow_block(self, block: Block) -> None:
        """Grow every layer of a block."""
        same, attention = extend(self.config.head_dim), block.attention
        fresh = extend(self.config.head_dim, self.head_dim)
        silent = extend(self.config.head_dim, self.head_dim, silent=True)
        queries = entries(self.heads, fresh, len(same.source))
        self.layer(attention.query, queries, self.hidden, scale=(self.head_dim / self.config.head_dim) ** 0.5)
        self.layer(attention.key, entries(self.shared_heads, silent, len(same.source)), self.hidden)
        self.layer(attention.value, entries(self.shared_heads, fresh, len(same.source)), self.hidden)
        self.layer(attention.output, self.hidden, queries)
        feed_forward = block.feed_forward
        if isinstance(feed_forward, Pattention):
            self.layer(feed_forward, self.hidden, self.hidden)
        else:
            for name in ("up", "gate"):
                if hasattr(feed_forward, name):
                    self.layer(getattr(feed_forward, name), self.inner, self.hidden)
            self.layer(feed_forward.down, self.hidden, self.inner)
        for residual in (block.attention_residual, block.feed_forward_residual):
            self.norm(residual.before)

    def grow_ends(self, model: PreTrainedModel) -> None:
        """Grow embeddings, final norm and head."""
        config, embedding = self.config, model.get_input_embeddings()
        rows = extend(embedding.num_embeddings)
        table = widen(embedding.weight.T, self.hidden, rows, 0.0, None).T.contiguous()
        self.replace(embedding.weight, table, rows, self.hidden)
        embedding.embedding_dim = len(self.hidden.source)
        norm, head = model.base_model.norm, model.get_output_embeddings()
        self.norm(norm)
        if head is None:
            return
        head.in_features = len(self.hidden.source)
        if config.tie_word_embeddings:
            for parameter in norm.parameters():  # a tied table is read as it is written, so the norm takes the share
                parameter.data *= self.hidden.share.to(parameter)
        else:
            self.layer(head, extend(head.out_features), self.hidden)

    def layer(self, module: nn.Module, writes: Axis, reads: Axis, scale: float = 1.0) -> None:
        """Grow a linear layer or a Pattention; `scale` is put on what it writes."""
        if isinstance(module, Pattention):
            tokens = extend(module.num_tokens)
            keys = self.read_apart(module.key_tokens, tokens, reads, module.key_std)
            values = widen(module.value_tokens.T, writes, tokens, module.value_std, self.generator).T.contiguous()
            self.replace(module.key_tokens, keys, tokens, reads)
            self.replace(module.value_tokens, values * scale, tokens, writes)
        else:
            weight = self.read_apart(module.weight, writes, reads, module.std)
            self.replace(module.weight, weight * scale, writes, reads)
            if module.bias is not None:
                self.replace(module.bias, take(module.bias.detach(), writes.source, 0) * scale, writes)
        module.in_features, module.out_features = len(reads.source), len(writes.source)

    def read_apart(self, weight: Tensor, writes: Axis, reads: Axis, std: float) -> Tensor:
        """A weight matrix after growth, copies on its input axis read by different weights of the same sum."""
        grown = widen(weight, writes, reads, std, self.generator)
        if not self.offset_std or not reads.is_copied:
            return grown
        spread = self.offset_std * float(weight.detach().std(correction=0))
        return grown + balanced_offsets(grown, reads, spread, self.generator)

    def norm(self, module: nn.Module) -> None:
        """Grow a norm; the mean square of a vector padded with zeros falls, and gain and epsilon make up for it."""
        new = self.hidden.source < 0
        for parameter in module.parameters():
            data = take(parameter.detach(), self.hidden.source, 0) * self.mean_square**0.5
            self.replace(parameter, data.masked_fill(new.to(data.device), 1.0), self.hidden)
        if hasattr(module, "normalized_shape"):
            module.normalized_shape = (len(new),)
            module.eps *= self.mean_square

    def replace(self, parameter: nn.Parameter, data: Tensor, *axes: Axis) -> None:
        """Put new data in place and let the optimizer's state follow the same indices."""
        shape = parameter.shape
        parameter.data, parameter.grad = data.to(parameter.data), None
        if self.optimizer is None or parameter not in self.optimizer.state:
            return
        for key, value in self.optimizer.state[parameter].items():
            if isinstance(value, Tensor) and value.shape == shape and value.numel() > 1:
                for number, axis in enumerate(axes):
                    value = take(value, axis.source, number)
                self.optimizer.state[parameter][key] = value

    def _axis(self, size: int, new_size: int) -> Axis:
        if self.method == "exact":
            return extend(size, new_size)
        return (
            cloned(size, new_size) if self.method == "hypercloning" else random_copies(size, new_size, self.generator)
        )

    def _head_axes(self) -> tuple[Axis, Axis]:
        """Axes of the query heads and of the key-value heads; heads that share a key stay together."""
        heads, shared = self.config.num_attention_heads, self.config.num_key_value_heads
        new_heads = self.sizes.get("num_attention_heads", heads)
        new_shared = self.sizes.get("num_key_value_heads", new_heads if shared == heads else shared)
        group, new_group = heads // shared, new_heads // new_shared
        if new_heads % new_shared or new_group < group or (self.method != "exact" and new_group != group):
            raise ValueError(
                f"each of {shared} key-value heads serves {group} heads, and must serve no fewer after growth (where "
                f"units are copied, as many); got {new_heads} heads and {new_shared} key-value heads"
            )
        axis = self._axis(shared, new_shared)
        inner = torch.cat((torch.arange(group), torch.full((new_group - group,), -1)))
        groups = axis.source[:, None]
        source = torch.where((groups < 0) | (inner < 0), -1, groups * group + inner).flatten()
        if bool((source >= 0).all()):
            return duplicate(source), axis
        return Axis(source, torch.ones(len(source)), axis.written, axis.read), axis
