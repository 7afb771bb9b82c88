"""Tables of names that are read both ways: another project's tensors on the left, ours on the right."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gnomon.models.config import GnomonConfig


@dataclass(frozen=True)
class Parts:
    """Our tensors that one foreign tensor is made of, where that is more than another name.

    Args:
        names: of our tensors.
        split: a foreign tensor to ours.
        join: ours to the foreign one; the inverse of `split`.
    """

    names: tuple[str, ...]
    split: Callable[[Tensor, GnomonConfig], Sequence[Tensor]] = lambda tensor, _: (tensor,)
    join: Callable[[Sequence[Tensor], GnomonConfig], Tensor] = lambda tensors, _: tensors[0]


def transposed(name: str) -> Parts:
    """One tensor that is stored the other way round."""
    return Parts((name,), lambda tensor, _: (tensor.T,), lambda tensors, _: tensors[0].T)


@dataclass(frozen=True)
class Layout:
    """How another project names and cuts the tensors of a model.

    Args:
        project: its name, for messages.
        names: foreign name -> our name, or the parts that it is made of; `{layer}` counts, `{last}` is L + 3. A row
            is left out where our model has no such tensor (biases, an untied head).
        num_layers: the foreign configuration's key for the number of layers.
        sizes: foreign configuration key -> the tensor and the axis that it can be read off.
        copies: foreign name -> the name that it is only another word for, or a copy of.
        prefix: of the foreign names; it is put in front where a file leaves it out.
        passed_over: names of buffers that hold no trained numbers.
        first_layer: what `{layer}` starts from in foreign names.
        stacks: of two stacks: the word that counts a stack's layers in names, as `{layer}` does those of a single one
            -> the foreign configuration's key for their number, and our field.
    """

    project: str
    names: Mapping[str, str | Parts]
    num_layers: str
    sizes: Mapping[str, tuple[str, int]]
    copies: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""
    passed_over: str = r"rotary_emb\.inv_freq$"
    first_layer: int = 0
    stacks: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def rows(self, model: PreTrainedModel) -> dict[str, Parts]:
        """The table for one model: foreign name -> the model's parameters."""
        ours, rows = dict(model.named_parameters()), {}
        for name, parts in self.expand(**self.num_in(model.config)).items():
            if all(part in ours for part in parts.names):
                rows[name] = parts
        assert {part for parts in rows.values() for part in parts.names} >= {n for n in ours if "score_scale" not in n}
        return rows

    def num_in(self, config: Any) -> dict[str, int]:
        """How many layers each word of the table counts."""
        fields = {"layer": "num_hidden_layers"} | {word: ours for word, (_, ours) in self.stacks.items()}
        return {word: getattr(config, ours) for word, ours in fields.items()}

    def expand(self, layer: int, **stacks: int) -> dict[str, Parts]:
        """The table with every layer's names written out.

        Args:
            layer: L.
            stacks: layers of each stack, where there are two.

        Returns:
            Foreign name -> parts.
        """
        rows, counts = {}, {"layer": layer, **stacks}
        for foreign, ours in self.names.items():
            parts = Parts((ours,)) if isinstance(ours, str) else ours
            word = next((word for word in counts if f"{{{word}}}" in foreign), None)
            for index in (0,) if word is None else range(counts[word]):
                places = tuple(name.format(**{word or "layer": index}) for name in parts.names)
                name = foreign.format(**{word or "layer": index + self.first_layer}, last=layer + 3)
                rows[name] = Parts(places, parts.split, parts.join)
        return rows

    def write(self, model: PreTrainedModel, tensors: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Name and cut our tensors as the project does.

        Args:
            model: says which rows there are.
            tensors: what to write, by our names; the model's own parameters if None.

        Returns:
            Tensors by foreign names, with memory of their own.
        """
        tensors = dict(model.named_parameters()) if tensors is None else tensors
        return {
            name: parts.join([tensors[part].detach() for part in parts.names], model.config).clone().contiguous()
            for name, parts in self.rows(model).items()
        }

    def read(
        self, state_dict: Mapping[str, Tensor], config: GnomonConfig, model_class: type[PreTrainedModel]
    ) -> PreTrainedModel:
        """Build our model from foreign tensors.

        Args:
            state_dict: tensors by foreign names, of any floating dtype.
            config: of our model.
            model_class: its class.

        Returns:
            The model in float32 and in evaluation mode.

        Raises:
            ValueError: for names that are missing or left over, shapes that contradict the configuration, or
                numbers that are not floating ones.
        """
        with torch.device("meta"):
            expected = self.write(model_class(config))
        given = self.named(state_dict, expected)
        self.check_layers(given, config)
        self.check(given, expected)
        model = model_class(config)
        targets = dict(model.named_parameters())
        with torch.no_grad():
            for name, parts in self.rows(model).items():
                for part, source in zip(parts.names, parts.split(given[name], config), strict=True):
                    targets[part].copy_(source)
        return model.eval()

    def named(self, state_dict: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors under the table's own names: prefix added, copies dropped, buffers passed over.

        Raises:
            ValueError: for a copy that differs from what it should be a copy of.
        """
        given: dict[str, Tensor] = {}
        for name, tensor in state_dict.items():
            if re.search(self.passed_over, name):
                continue
            if name not in expected and self.prefix + name in expected:
                name = self.prefix + name
            while name not in expected and name in self.copies:
                name = self.copies[name]
            if name in given and not torch.equal(given[name], tensor):
                raise ValueError(
                    f"the {self.project} checkpoint has two different tensors for {name}, which the configuration "
                    "says are one: use the configuration that belongs to it"
                )
            given[name] = tensor
        return given

    def check_layers(self, given: Mapping[str, Tensor], config: GnomonConfig) -> None:
        """Refuse a configuration with another number of layers than the weights have.

        Raises:
            ValueError: with both numbers.
        """
        keys = {"layer": self.num_layers} | {word: key for word, (key, _) in self.stacks.items()}
        for word, wanted in self.num_in(config).items():
            blank = re.escape(f"{{{word}}}")
            patterns = [re.escape(name).replace(blank, r"(\d+)") + "$" for name in self.names if f"{{{word}}}" in name]
            found = {int(match[1]) for name in given for pattern in patterns if (match := re.match(pattern, name))}
            layers = len(found)
            if found and found == set(range(self.first_layer, self.first_layer + layers)) and layers != wanted:
                raise ValueError(
                    f"{keys[word]} is {wanted} in the configuration, but the {self.project} weights have "
                    f"{layers} layers: use the configuration that belongs to them"
                )

    def check(self, given: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
        """Refuse tensors that are missing, left over, of another shape or of another kind.

        Raises:
            ValueError: naming the tensor, and both numbers where they disagree.
        """
        if missing := [name for name in expected if name not in given]:
            raise ValueError(
                f"the {self.project} checkpoint lacks {len(missing)} of {len(expected)} tensors, the first "
                f"{missing[0]}: take the whole checkpoint, or the configuration that belongs to it"
            )
        if left_over := sorted(set(given) - set(expected)):
            raise ValueError(
                f"the {self.project} checkpoint has {len(left_over)} tensors that its configuration leaves no place "
                f"for, the first {left_over[0]}: use the configuration that belongs to it"
            )
        misshapen = [name for name, tensor in given.items() if tensor.shape != expected[name].shape]
        if len(misshapen) > 1:  # a single one is a fault of the weights
            self.check_sizes(given, expected)
        for name in misshapen:
            raise ValueError(
                f"{name} has shape {tuple(given[name].shape)}, but the configuration makes it "
                f"{tuple(expected[name].shape)}: use the configuration that belongs to this checkpoint"
            )
        for name, tensor in given.items():
            if not tensor.is_floating_point():
                raise ValueError(
                    f"{name} holds {str(tensor.dtype).removeprefix('torch.')} numbers, and quantized weights cannot be "
                    "converted: take the checkpoint with plain floating-point weights"
                )

    def check_sizes(self, given: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
        """Refuse a configuration with other sizes than the weights have.

        Raises:
            ValueError: with the configuration's key and both numbers.
        """
        for key, (pattern, axis) in self.sizes.items():
            name = pattern.format(**dict.fromkeys(("layer", *self.stacks), self.first_layer))
            if name in expected and given[name].dim() == expected[name].dim():
                wanted, found = expected[name].shape[axis], given[name].shape[axis]
                if wanted != found:
                    raise ValueError(
                        f"{key} is {wanted} in the configuration, but {found} in the {self.project} weights "
                        f"({name}): use the configuration that belongs to them"
                    )


def require(config: GnomonConfig, project: str, fields: Mapping[str, Any]) -> None:
    """Refuse a model that another project's layout has no words for.

    Args:
        config: of the model.
        project: whose layout it is.
        fields: our fields with the value, or the tuple of values, that the layout can say.

    Raises:
        ValueError: naming the field, what the layout needs and what the model has.
    """
    for name, wanted in fields.items():
        allowed = wanted if isinstance(wanted, tuple) else (wanted,)
        if getattr(config, name) not in allowed:
            raise ValueError(
                f"the {project} layout needs {name} {' or '.join(map(str, allowed))}; "
                f"this model has {getattr(config, name)}"
            )


__all__ = ["Layout", "Parts", "require", "transposed"]
