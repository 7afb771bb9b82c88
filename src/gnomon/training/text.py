"""Recipes as text: YAML in, YAML out, and `dotted.key=value` changes."""

import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import yaml

_FLOAT = re.compile(
    r"^[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+"
    r"|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?|\.(?:inf|Inf|INF))$|^\.(?:nan|NaN|NAN)$"
)


class _Loader(yaml.SafeLoader):
    """YAML whose `3e-4` is a number, as YAML 1.2 has it, and whose repeated key is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Build a mapping, refusing a key that is given twice."""
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} is given twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """YAML in which the text `3e-4` stands in quotes, because the loader would read a number."""


for _kind in (_Loader, _Dumper):
    _kind.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:float"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    _kind.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


def parse_yaml(text: str, origin: str) -> Any:
    """Read YAML.

    Args:
        text: One YAML document.
        origin: What the text is, for the error message: a file's name, or an override.

    Raises:
        ValueError: The text is not YAML, gives a key twice, or has a date that the calendar lacks.
    """
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ValueError(f"{origin}{line} is not valid YAML: {error.problem}; mend that line.") from None
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{origin} is not valid YAML: {reason}; mend the file.") from None
    except ValueError as error:  # a date such as 2020-99-99
        raise ValueError(f"{origin} has a value that is none: {error}; mend it, or write it in quotes.") from None


def dump_yaml(value: Mapping[str, Any]) -> str:
    """Write a mapping as YAML that `parse_yaml` reads back equal."""
    return yaml.dump(dict(value), Dumper=_Dumper, sort_keys=False, width=110)


def apply_overrides(mapping: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Change a recipe's values by their dotted paths; the mapping itself stays as it is.

    Args:
        mapping: The recipe as nested mappings and lists.
        overrides: Texts `dotted.key=value`; numbers index lists, and the value is YAML.

    Raises:
        ValueError: A text has no `=`, a path leads through something that is no mapping or list, or a list
            has no such entry.

    >>> apply_overrides({"stages": [{"training": {"max_steps": 5}}]}, ["stages.0.training.max_steps=9"])
    {'stages': [{'training': {'max_steps': 9}}]}
    """
    changed = _copy(mapping)
    for override in overrides:
        path, equals, text = override.partition("=")
        if not equals or not path.strip():
            raise ValueError(f"an override must read dotted.key=value, got {override!r}; write for example seed=1.")
        _set(changed, path.strip().split("."), parse_yaml(text, f"the value of {path.strip()}"), override)
    return changed


def read_path(value: Any, path: str) -> Any:
    """Return what a dotted path leads to, or None where it leads nowhere."""
    for part in path.split("."):
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


def _copy(value: Any) -> Any:
    """A copy whose mappings and lists may be changed."""
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def _set(node: Any, path: list[str], value: Any, override: str) -> None:
    """Walk to the last part of the path, making the mappings that are missing on the way, and set it."""
    for depth, part in enumerate(path):
        here = ".".join(path[:depth]) or "the recipe"
        last = depth == len(path) - 1
        if isinstance(node, list):
            if not part.isdigit() or int(part) >= len(node):
                raise ValueError(
                    f"{here} has no entry {part!r} for the override {override!r}; "
                    f"its entries are numbered from 0 to {len(node) - 1}."
                )
            index: Any = int(part)
        elif isinstance(node, dict):
            index = part
        else:
            raise ValueError(
                f"{here} is {node!r} and holds no keys, so the override {override!r} leads nowhere; "
                f"change {here} itself."
            )
        if last:
            node[index] = value
        else:
            if isinstance(node, dict) and node.get(index) is None:
                node[index] = {}
            node = node[index]
