"""What every loader asks of its options: one origin, no split beside a catalog set's own, one way to hold out."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def check_origin(name: str | None, source: str | Path | None) -> None:
    """Refuse both or neither of a data set's name and a source.

    Raises:
        ValueError: With the remedy.
    """
    if (name is None) == (source is None):
        raise ValueError(
            f"data needs either a name of the catalog or a source, not {'both' if name else 'neither'}: "
            "give data.name or data.source"
        )


def refuse_with_own_split(name: str, options: Mapping[str, Any]) -> None:
    """Refuse options that a data set of the catalog has no use for, since it comes with its own split.

    Args:
        name: The data set.
        options: Key of `data` -> its value, None where it is not given.

    Raises:
        ValueError: With the first key that is given.
    """
    given = [key for key, value in options.items() if value is not None]
    if given:
        raise ValueError(f"data.{given[0]} has no meaning here, because {name!r} comes with its own split: drop it")


def check_held_out(validation: object, percent: float | None) -> None:
    """Refuse two ways to say what is held out.

    Raises:
        ValueError: Both are given.
    """
    if validation is not None and percent is not None:
        raise ValueError("data.validation and data.validation_percent exclude each other: drop one of them")
