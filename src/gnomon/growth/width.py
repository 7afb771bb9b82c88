"""Wider models: feed-forward width, heads, head size and hidden size, exactly where that is possible."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import PreTrainedModel

from gnomon.growth.axes import Axis, balanced_offsets, cloned, duplicate, entries, extend, random_copies, take, widen
from gnomon.growth.report import GrowthReport, measured
from gnomon.growth.sites import stacks
from gnomon.growth.widths import check_widths
from gnomon.models.audio_inputs import FilterbankEmbedding
from gnomon.models.backbone import GnomonModel
from gnomon.models.config import GnomonConfig
from gnomon.nn.attention import Attention
from gnomon.nn.blocks import Block
from gnomon.nn.multiway import MultiwayPattention, SeparateLayers, copies
from gnomon.nn.placements import PLACEMENTS, has_inner_norm
from gnomon.nn.projections import Embedding, Linear, Pattention


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
        for attention in (module for module in model.modules() if isinstance(module, Attention)):
            attention.head_size, attention.scaling = config.head_dim, config.head_dim**-0.5
            attention.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        return [{"name": name, "exact": widening.is_exact, "dead": 0} for name in sizes]

    return measured(model, change, init=method, probe=probe)


def last_norm(stack: GnomonModel) -> nn.Module:
    """The norm that a stack's output comes from: the final one, or after a post-norm placement the last block's."""
    has_final = any(True for _ in stack.norm.parameters())
    return stack.norm if has_final else stack.layers[-1].feed_forward_residual.outer


def blocks(model: nn.Module) -> Iterator[Block]:
    """The blocks of a model, in order."""
    return (module for module in model.modules() if isinstance(module, Block))


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
        self.attended = entries(self.heads, extend(config.head_dim, self.head_dim), config.head_dim)
        width = self.sizes.get("hidden_size", config.hidden_size)
        padded = method == "exact" and {config.norm, config.final_norm} <= {"rms", "none"}
        self.hidden = extend(config.hidden_size, width, silent=True) if padded else cloned(config.hidden_size, width)
        self.mean_square = config.hidden_size / width if padded else 1.0
        inner, self.inner = config.intermediate_size, None
        if inner is not None:
            self.inner = self._axis(inner, self.sizes.get("intermediate_size", inner), self._norms("feed_forward"))
        has_gain = (config.norm if config.final_norm == "none" else config.final_norm) != "layer_plain"
        reads_share = has_gain and (config.final_norm != "none" or bool(PLACEMENTS[config.norm_placement].outer))
        is_tied = config.tie_word_embeddings and config.vocab_size is not None
        keeps_head = padded or width == config.hidden_size or not is_tied or reads_share
        keeps_input = width == config.hidden_size or not config.scale_embedding  # its factor sqrt(d) would change
        self.is_exact = keeps_head and keeps_input and self._keeps_inner_norms()

    def fields(self) -> dict[str, Any]:
        """The config fields after growth."""
        config, fields = self.config, dict(self.sizes)
        fields["num_key_value_heads"] = len(self.shared_heads.source)
        fields["norm_eps"] = config.norm_eps * self.mean_square
        if config.num_conv_pos_embedding_groups is not None:
            size = config.hidden_size // config.num_conv_pos_embedding_groups
            fields["num_conv_pos_embedding_groups"] = len(self.hidden.source) // size
        if config.positions == "rotary":
            factor = config.rotary_size / self.head_dim
            fields["rope_parameters"] = {**config.rope_parameters, "partial_rotary_factor": factor}
        return fields

    def grow_block(self, block: Block) -> None:
        """Grow every layer and norm of a block."""
        for attention in (block.attention, block.cross_attention):
            if attention is not None:
                self.grow_attention(attention)
        for feed_forward in copies(block.feed_forward):
            if isinstance(feed_forward, Pattention | MultiwayPattention):
                self.layer(feed_forward, self.hidden, self.hidden)
                continue
            for name in ("up", "gate"):
                if hasattr(feed_forward, name):
                    self.layer(getattr(feed_forward, name), self.inner, self.hidden)
            self.layer(feed_forward.down, self.hidden, self.inner)
            self.inner_norm(feed_forward.inner_norm, self.inner)
        for residual in (block.attention_residual, block.cross_attention_residual, block.feed_forward_residual):
            if residual is not None:
                for norm in (residual.before, residual.after, residual.outer):
                    self.norm(norm)

    def grow_attention(self, attention: Attention) -> None:
        """Grow an attention layer: its projections, its inner norm and the factors of its heads."""
        size = self.config.head_dim
        fresh, silent = extend(size, self.head_dim), extend(size, self.head_dim, silent=True)
        self.layer(attention.query, self.attended, self.hidden, scale=(self.head_dim / size) ** 0.5)
        self.layer(attention.key, entries(self.shared_heads, silent, size), self.hidden)
        self.layer(attention.value, entries(self.shared_heads, fresh, size), self.hidden)
        self.layer(attention.output, self.hidden, self.attended)
        self.inner_norm(attention.inner_norm, self.attended)
        for factors in attention.scale_heads.parameters():
            new = (self.heads.source < 0).to(factors.device)
            self.replace(factors, take(factors.detach(), self.heads.source, 0).masked_fill(new, 1.0), self.heads)

    def grow_ends(self, model: PreTrainedModel) -> None:
        """Grow embeddings, positions, final norms and whatever reads the last one."""
        found = stacks(model)
        for stack in found:
            if stack.embed_patches is not None:
                patches = stack.embed_patches.projection
                self.layer(patches, self.hidden, extend(patches.in_features))
            if stack.embed_features is not None:
                self.sound(stack.embed_features)
            for bias in stack.position_bias.parameters() if stack.position_bias is not None else ():
                self.replace(bias, take(bias.detach(), self.heads.source, 1), extend(len(bias)), self.heads)
            self.norm(stack.norm)
        head, last = model.get_output_embeddings(), list(last_norm(found[-1]).parameters())
        # a tied table is read as it is written, so the last norm takes the share, for all that reads it
        is_shared_out = head is not None and self.config.tie_word_embeddings and bool(last)
        reads = replace(self.hidden, share=torch.ones_like(self.hidden.share)) if is_shared_out else self.hidden
        for parameter in last if is_shared_out else ():
            parameter.data *= self.hidden.share.to(parameter)
        inner = {id(part) for block in blocks(model) for part in block.modules()}
        inner |= {id(stack.embed_patches.projection) for stack in found if stack.embed_patches is not None}
        inner |= {id(stack.embed_features.projection) for stack in found if stack.embed_features is not None}
        for module in list(model.modules()):
            if isinstance(module, Embedding) and module.embedding_dim != len(self.hidden.source):
                self.table(module)
            if isinstance(module, Linear) and module.in_features == self.config.hidden_size and id(module) not in inner:
                if module is head and self.config.tie_word_embeddings:
                    head.in_features = len(self.hidden.source)
                else:
                    self.layer(module, extend(module.out_features), reads)

    def sound(self, embedding: FilterbankEmbedding) -> None:
        """Grow the front end of sound: the projection, and more groups of channels where a convolution has positions.

        Raises:
            ValueError: the width is no multiple of a group's channels.
        """
        self.layer(embedding.projection, self.hidden, extend(embedding.projection.in_features))
        convolution, width = embedding.positions, len(self.hidden.source)
        if convolution is None or width == convolution.out_channels:
            return
        size = convolution.in_channels // convolution.groups
        kept, inner = extend(size), extend(convolution.kernel_size[0])
        self.replace(
            convolution.weight, take(convolution.weight.detach(), self.hidden.source, 0), self.hidden, kept, inner
        )
        if convolution.bias is not None:
            self.replace(convolution.bias, take(convolution.bias.detach(), self.hidden.source, 0), self.hidden)
        convolution.in_channels = convolution.out_channels = width
        convolution.groups = width // size

    def table(self, embedding: nn.Embedding) -> None:
        """Grow an embedding table's width."""
        rows = extend(embedding.num_embeddings)
        if embedding.weight.shape[1] != len(self.hidden.source):  # a tied one has been grown already
            grown = widen(embedding.weight.T, self.hidden, rows, 0.0, None).T.contiguous()
            self.replace(embedding.weight, grown, rows, self.hidden)
        embedding.embedding_dim = len(self.hidden.source)

    def layer(self, module: nn.Module, writes: Axis, reads: Axis, scale: float = 1.0) -> None:
        """Grow a linear layer or a Pattention, of every modality; `scale` is put on what it writes."""
        if isinstance(module, SeparateLayers):
            for copy in module.copies:
                self.layer(copy, writes, reads, scale)
            return
        if isinstance(module, MultiwayPattention):
            self.layer(module.shared, writes, reads, scale)
            self.own_tokens(module, writes, reads, scale)
            return
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

    def own_tokens(self, module: MultiwayPattention, writes: Axis, reads: Axis, scale: float) -> None:
        """Grow the tokens that each modality has behind the shared ones, as those are grown."""
        kinds, tokens = (extend(size) for size in module.key_tokens.shape[:2])
        key_std, value_std = module.shared.key_std, module.shared.value_std
        keys = [self.read_apart(own, tokens, reads, key_std) for own in module.key_tokens]
        values = [widen(own.T, writes, tokens, value_std, self.generator).T * scale for own in module.value_tokens]
        self.replace(module.key_tokens, torch.stack(keys), kinds, tokens, reads)
        self.replace(module.value_tokens, torch.stack(values), kinds, tokens, writes)

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
        for copy in copies(module):
            for parameter in copy.parameters():
                data = take(parameter.detach(), self.hidden.source, 0) * self.mean_square**0.5
                self.replace(parameter, data.masked_fill(new.to(data.device), 1.0), self.hidden)
            if hasattr(copy, "normalized_shape"):
                copy.normalized_shape = (len(new),)
                copy.eps *= self.mean_square

    def inner_norm(self, module: nn.Module, axis: Axis) -> None:
        """Grow a norm inside a sublayer: copies have their originals' gain, new entries 1 and no bias."""
        new = axis.source < 0
        for copy in copies(module):
            for name, parameter in copy.named_parameters():
                data = take(parameter.detach(), axis.source, 0)
                fill = 0.0 if name == "bias" else 1.0
                self.replace(parameter, data.masked_fill(new.to(data.device), fill), axis)
            if hasattr(copy, "normalized_shape"):
                copy.normalized_shape = (len(new),)

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

    def _norms(self, sublayer: str) -> bool:
        """Whether a sublayer has an inner norm; entries that it has not seen would change what it divides by."""
        config = self.config
        if sublayer == "feed_forward":
            return has_inner_norm(config.norm_placement, config.feed_forward, config.score)
        return sublayer in PLACEMENTS[config.norm_placement].inner

    def _keeps_inner_norms(self) -> bool:
        """Whether every axis under an inner norm grows by copying all of it equally often, or not at all."""
        normed = [self.attended] if self._norms("attention") else []
        normed += [self.inner] if self.inner is not None and self._norms("feed_forward") else []
        for axis in normed:
            counts = torch.bincount(axis.source.clamp(min=0))
            if bool((axis.source < 0).any()) or len(counts.unique()) > 1:
                return False
        return True

    def _axis(self, size: int, new_size: int, is_normed: bool = False) -> Axis:
        """How an axis grows by the method; one under an inner norm by whole copies where that can be exact."""
        if self.method == "hypercloning" or (self.method == "exact" and is_normed and new_size % size == 0):
            return cloned(size, new_size)
        return extend(size, new_size) if self.method == "exact" else random_copies(size, new_size, self.generator)

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
        axis = self._axis(shared, new_shared, self._norms("attention") and new_group == group)
        inner = torch.cat((torch.arange(group), torch.full((new_group - group,), -1)))
        groups = axis.source[:, None]
        source = torch.where((groups < 0) | (inner < 0), -1, groups * group + inner).flatten()
        if bool((source >= 0).all()):
            return duplicate(source), axis
        return Axis(source, torch.ones(len(source)), axis.written, axis.read), axis
