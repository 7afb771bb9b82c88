"""What is wrong with a recipe, as one sentence: the key, the value, and what to do."""

import difflib
import re
import typing
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gnomon.training.options import Recipe

_KINDS = {
    "int": ("a whole number", "write for example {key}: 100"),
    "float": ("a number", "write for example {key}: 3.0e-4, without quotes"),
    "finite_number": ("a finite number", "write for example {key}: 3.0e-4"),
    "bool": ("true or false", "write {key}: true or {key}: false, without quotes"),
    "string": ("a text", "write it in quotes"),
    "list": ("a list", "begin every entry with a dash"),
    "dict": ("a mapping", "write its keys below {key}, indented"),
    "model": ("a mapping", "write its keys below {key}, indented"),
}
_BOUNDS = {
    "greater_than": ("gt", "above"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "at most"),
}
_BRANCH = re.compile(r"[-\[(]|^(int|float|str|bool)$")
"""What pydantic puts into a path for the kinds that a value may have; no key of a recipe looks so."""
_EXAMPLES = {
    "model": "model: {preset: tokenformer-tiny}",
    "data": "data: {name: shakespeare, sequence_length: 128}",
    "stages": "stages: [{training: {max_steps: 1000}}]",
    "training": "training: {max_steps: 1000}",
    "sequence_length": "sequence_length: 128",
}


def first_problem(error: ValidationError) -> str:
    """Tell the first of pydantic's findings in one sentence, and how many others there are."""
    problems = error.errors(include_url=False)
    unknown = [problem for problem in problems if problem["type"] == "extra_forbidden"]
    told = (unknown or problems)[0]
    others = len(problems) - 1
    more = f" (and {others} more problem{'s' if others > 1 else ''})" if others else ""
    return finish(f"{_describe(told)}{more}")


def finish(sentence: str) -> str:
    """End a sentence with a full stop, unless it ends with a question."""
    return sentence if sentence.endswith("?") else f"{sentence}."


def suggestion(key: str, known: Sequence[str]) -> str:
    """Point to the nearest known word, or list them all."""
    near = difflib.get_close_matches(key, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(known)}"


def _describe(problem: ErrorDetails) -> str:
    """One finding: rule, value, remedy."""
    keys = [str(part) for part in problem["loc"] if not _BRANCH.search(str(part))]
    path, key = ".".join(keys) or "the recipe", keys[-1] if keys else "the recipe"
    kind, value, context = problem["type"], _shorten(problem["input"]), problem.get("ctx", {})
    if kind == "extra_forbidden":
        return f"{path} is no key of a recipe (its value is {value}); {_place(problem['loc'])}"
    if kind == "missing":
        return f"{path} is missing; add it, for example {_EXAMPLES.get(key, key + ': ...')}"
    if kind == "value_error":
        return f"{path} {context['error']}"
    if kind == "literal_error":
        return f"{path} must be one of {context['expected']}, got {value}; choose one of them"
    if kind == "too_short":
        return f"{path} must have at least one entry, got {value}; add for example {_EXAMPLES.get(key, key)}"
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return f"{path} must be {words} {context[name]}, got {value}; choose a value {words} {context[name]}"
    family = next((name for name in _KINDS if kind.startswith(name)), None)
    if family is None:
        return f"{path}: {problem['msg']}, got {value}; see `gnomon recipes schema`"
    wanted, remedy = _KINDS[family]
    return f"{path} must be {wanted}, got {value}; {remedy.format(key=key)}"


def _place(location: tuple[int | str, ...]) -> str:
    """Where an unknown key may have been meant to stand, or what may have been meant by it."""
    block: type[BaseModel] = Recipe
    for part in location[:-1]:
        if isinstance(part, str):
            block = _blocks(block)[part]
    key = str(location[-1])
    for name, inner in _blocks(block).items():
        if key in inner.model_fields:
            return f"put it under {name!r}"
    return suggestion(key, list(block.model_fields))


def _blocks(block: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """The blocks inside a block, by key."""
    found = {}
    for name, field in block.model_fields.items():
        for kind in (field.annotation, *typing.get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                found[name] = kind
    return found


def _shorten(value: Any) -> str:
    """A value as it would be written, cut where it is long; a number in quotes shows that it is a text."""
    text = repr(value)
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    return f"the text {shown}" if isinstance(value, str) else shown
