"""The names that ``slots=N`` makes of one name: those of its permits."""

from __future__ import annotations

import re
from typing import Any

from .arguments import LONGEST_NAME_CHARACTERS, checked_number

# the largest N: every caller may have to look at all of its permits
LARGEST_SLOTS = 1000

_number = re.compile(r"#([1-9][0-9]{0,3})\Z")


def checked_slots(slots: Any, what: str = "slots") -> int:
    """Return ``slots``, which errors call ``what``. Raises `TypeError` or `ValueError` unless it is
    a whole number from 1 to `LARGEST_SLOTS`."""
    if not 1 <= checked_number(slots, what) <= LARGEST_SLOTS:
        raise ValueError(f"{what} must be a number from 1 to {LARGEST_SLOTS}, not {slots!r}")
    return int(slots)


def permit_name(name: str, slot: int) -> str:
    """The name of the lock that is one permit."""
    return f"{name}#{slot}"


def permit_names(name: str, slots: int) -> list[str]:
    """The names of the permits of ``name``, which was checked. Raises `ValueError` if the name is
    too long, whatever ``slots`` is: a greater number must not fail later."""
    longest = LONGEST_NAME_CHARACTERS - len(f"#{LARGEST_SLOTS}")
    if len(name) > longest:
        raise ValueError(
            f"with slots, a lock's name must have at most {longest} characters, not {len(name)}"
        )
    return [permit_name(name, slot) for slot in range(1, slots + 1)]


def slot_of(name: str, slots: int | None) -> int | None:
    """The number of the permit with this name; None for any other lock.

    ``slots`` is what the holder's record says of N, and None in that of a plain lock, whatever its
    name is.
    """
    found = None if slots is None else _number.search(name)
    return None if found is None else int(found[1])


def base_of(name: str, slots: int | None) -> str:
    """The name of which a lock is a permit; its own name for any other lock."""
    return name if slots is None else _number.sub("", name)
