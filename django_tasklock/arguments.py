"""
What a caller may pass, checked before any network call.

A name is a non-empty ``str`` of at most 200 printable characters without spaces: it goes
into keys, logs, terminals and web pages as it is. 200 leaves room for a prefix and a
version within memcached's 250 bytes and DatabaseCache's 255 characters.
"""

from __future__ import annotations

import re
from math import isfinite
from typing import Any

__all__ = [
    "LONGEST_NAME",
    "LONGEST_TTL",
    "SHORTEST_TTL",
    "checked_flag",
    "checked_name",
    "checked_number",
    "checked_prefix",
    "checked_template",
    "checked_token",
    "checked_ttl",
    "checked_wait",
    "is_name",
    "is_token",
]

LONGEST_NAME = 200
"""characters"""
SHORTEST_TTL = 0.001
"""seconds; Redis counts a TTL in milliseconds"""
LONGEST_TTL = 10 * 366 * 86400.0
"""seconds; ten years: what is longer is a mistake, and overflows somewhere"""


is_token = re.compile(r"[A-Za-z0-9_-]{22}").fullmatch
"""whether a str has the form of a token"""


def checked_name(name: Any) -> str:
    """Return ``name``. Raises `TypeError` or `ValueError` if it cannot name a lock."""
    if not isinstance(name, str):
        raise TypeError(f"a lock's name is a str, not {type(name).__name__}: {name!r}")
    if not name:
        raise ValueError("a lock's name cannot be empty")
    if len(name) > LONGEST_NAME:
        raise ValueError(
            f"a lock's name has at most {LONGEST_NAME} characters, this one has {len(name)}"
        )
    if " " in name or not name.isprintable():
        raise ValueError(f"a lock's name has printable characters only, and no spaces: {name!r}")
    return name


def is_name(text: str) -> bool:
    """Whether ``text`` can name a lock."""
    return bool(text) and len(text) <= LONGEST_NAME and " " not in text and text.isprintable()


def checked_token(token: Any) -> str:
    """Return ``token``. Raises `TypeError` or `ValueError` unless it is like those of
    `new_token`: what is cut, or longer, could be granted, and released or handed over to nobody."""
    if not isinstance(token, str):
        raise TypeError(f"a token is a str, not {type(token).__name__}")
    if not is_token(token):
        raise ValueError("a token has 22 characters of A-Z, a-z, 0-9, - and _: draw one first")
    return token


def checked_template(name: Any) -> str:
    """Return ``name``, which may have fields that are still to be filled."""
    if not isinstance(name, str) or not name:
        checked_name(name)
    return str(name)


def checked_prefix(prefix: Any) -> str:
    """Return ``prefix``, which may be empty. Raises `TypeError` if it is no str."""
    if not isinstance(prefix, str):
        raise TypeError(f"a prefix is a str, not {type(prefix).__name__}: {prefix!r}")
    return prefix


def checked_number(what: str, number: Any) -> int:
    """Return ``number``. Raises `TypeError` or `ValueError` unless it is a whole one >= 0."""
    if isinstance(number, bool) or not isinstance(number, int):
        raise TypeError(f"{what} is a whole number, not {number!r}")
    if number < 0:
        raise ValueError(f"{what} cannot be negative: {number!r}")
    return number


def checked_flag(what: str, flag: Any) -> bool:
    """Return ``flag``. Raises `TypeError` if it is no bool."""
    if not isinstance(flag, bool):
        raise TypeError(f"{what} is a bool, not {flag!r}")
    return flag


def checked_ttl(ttl: Any) -> float:
    """Return ``ttl``, seconds. Raises `TypeError` or `ValueError` unless it is a finite
    number from a millisecond to ten years."""
    number = _number("ttl", ttl)
    if not SHORTEST_TTL <= number <= LONGEST_TTL:
        raise ValueError(
            f"ttl is a number of seconds from {SHORTEST_TTL} to ten years, not {ttl!r}"
        )
    return number


def checked_wait(wait: Any) -> float | None:
    """Return ``wait``, seconds, or None for ever. Raises `TypeError` or `ValueError` unless it
    is None or a number >= 0. An infinite one is for ever too."""
    if wait is None:
        return None
    number = _number("wait", wait)
    if not number >= 0:
        raise ValueError(f"wait is None or a number of seconds >= 0, not {wait!r}")
    return number if isfinite(number) else None


def _number(what: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{what} is a number of seconds, not {type(value).__name__}: {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{what} is a number of seconds, and not as large as this") from None
