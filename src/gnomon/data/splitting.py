"""Which rows are held out, decided by their group; and which files were left out, and why."""

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field


def is_held_out(key: str, percent: float) -> bool:
    """Whether the group of that key is validated on: the same answer every time and everywhere.

    The first 8 hexadecimal digits of the key's MD5, as a number modulo 100, are compared with the percentage.

    Args:
        key: What names the group: a speaker, an item, a file.
        percent: How many of a hundred groups are held out, roughly.

    >>> [key for key in "abcdefghijklmnopqrst" if is_held_out(key, 10)]
    ['m']
    """
    return _rank(key) < percent


def hold_out_groups(groups: Sequence[str], percent: float) -> list[bool]:
    """Which rows are held out: all of a group or none of it, and neither side empty.

    Args:
        groups: Each row's group.
        percent: How many of a hundred groups are held out, above 0 and below 100.

    Raises:
        ValueError: There is only one group, or the percentage is out of range.
    """
    if not 0 < percent < 100:
        raise ValueError(f"data.validation_percent must be above 0 and below 100, not {percent}: 10 holds a tenth out")
    # By rank, and by name where ranks are equal, so that some group is always the first and another the last.
    distinct = sorted(set(groups), key=lambda group: (_rank(group), group))
    if len(distinct) < 2:
        raise ValueError(
            f"{len(groups)} rows of a single group ({distinct[0]!r} is all there is) cannot be split into two sides: "
            "give data.validation, or more rows"
            if distinct
            else "there are no rows to split: give at least two"
        )
    held = {distinct[0]} | {group for group in distinct[:-1] if is_held_out(group, percent)}
    return [group in held for group in groups]


def _rank(key: str) -> int:
    digest = hashlib.md5(key.encode("utf-8"), usedforsecurity=False).hexdigest()
    return int(digest[:8], 16) % 100


@dataclass
class LeftOut:
    """Files or rows that were left out, and why: one bad file never ends a run, but it is never lost silently.

    Attributes:
        reasons: Name of the file -> why it was left out.
    """

    reasons: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, reason: str) -> None:
        """Note a file; a second reason for the same file replaces the first."""
        self.reasons[name] = reason

    def add_late(self, name: str, reason: str) -> None:
        """Note a file that turned bad after the data were described, and say so at once, the first time."""
        if name not in self.reasons:
            logging.getLogger("gnomon").warning(
                "%s is left out from here on (%s); %d so far", name, reason, len(self) + 1
            )
        self.add(name, reason)

    def __len__(self) -> int:
        return len(self.reasons)

    def describe(self, shown: int = 5) -> str:
        """One sentence with the first few files, or nothing if there are none.

        >>> LeftOut({"a.png": "it is empty"}).describe()
        '1 left out: a.png (it is empty)'
        """
        if not self.reasons:
            return ""
        listed = ", ".join(f"{name} ({reason})" for name, reason in list(self.reasons.items())[:shown])
        more = f", and {len(self) - shown} more" if len(self) > shown else ""
        return f"{len(self)} left out: {listed}{more}"
