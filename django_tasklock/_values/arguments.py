"""
What a caller may pass, checked before any network call.

A name is a non-empty ``str`` of at most 200 printable characters without spaces: it goes
into keys, logs, terminals and web pages as it is. 200 leaves room for a prefix and a
version within memcached's 250 bytes and DatabaseCache's 255 characters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import isfinite
from typing import Any

__all__ = [
    "LONGEST_NAME_CHARACTERS",
    "LONGEST_TEXT_BYTES",
    "LONGEST_TTL_SECONDS",
    "MOST_LISTED",
    "SHORTEST_TTL_SECONDS",
    "are_names",
    "check_options",
    "checked_flag",
    "checked_name",
    "checked_number",
    "checked_prefix",
    "checked_remark",
    "checked_seconds",
    "checked_several",
    "checked_template",
    "checked_token",
    "checked_ttl",
    "checked_wait",
    "is_name",
    "is_remark",
    "is_token",
]

LONGEST_NAME_CHARACTERS = 200
"""characters"""
LONGEST_TEXT_BYTES = 255
"""bytes of UTF-8 that a text of a record has at most"""
SHORTEST_TTL_SECONDS = 0.001
"""a millisecond, in which Redis counts"""
LONGEST_TTL_SECONDS = 10 * 366 * 86400.0
"""ten years: a longer one is a mistake, and too large for some server or system call"""
MOST_LISTED = 10**12
"""no store has as many locks, and some servers know no larger numbers"""


is_token = re.compile(r"[A-Za-z0-9_-]{22}").fullmatch
"""whether a str has the form of a token"""


def checked_name(name: Any) -> str:
    """Return ``name``. Raises `TypeError` or `ValueError` if it cannot name a lock."""
    if not isinstance(name, str):
        raise TypeError(f"a lock's name is a str, not {type(name).__name__}: {name!r}")
    if not name:
        raise ValueError("a lock's name cannot be empty")
    if len(name) > LONGEST_NAME_CHARACTERS:
        raise ValueError(
            f"a lock's name has at most {LONGEST_NAME_CHARACTERS} characters, "
            f"this one has {len(name)}"
        )
    if " " in name or not name.isprintable():
        raise ValueError(f"a lock's name has printable characters only, and no spaces: {name!r}")
    return name


def checked_several(names: Any) -> None:
    """Raise `TypeError` unless ``names`` is a list or tuple, and `ValueError` if it is empty."""
    if not isinstance(names, list | tuple):
        raise TypeError(f"several names are a list or a tuple, not {type(names).__name__}")
    if not names:
        raise ValueError("there is no name in the list")


def is_name(text: str) -> bool:
    """Whether ``text`` can name a lock."""
    return (
        bool(text)
        and len(text) <= LONGEST_NAME_CHARACTERS
        and " " not in text
        and text.isprintable()
    )


def checked_remark(what: str, text: Any) -> str:
    """Return ``text``, which may be empty: an operator's name, or a reason. Raises `TypeError` or
    `ValueError` if it is too long, or would not be safe on a terminal."""
    if not isinstance(text, str):
        raise TypeError(f"{what} is a str, not {type(text).__name__}: {text!r}")
    if not is_remark(text):
        raise ValueError(
            f"{what} has at most {LONGEST_TEXT_BYTES} bytes of UTF-8, of printable characters: "
            f"{text[:LONGEST_TEXT_BYTES]!r}"
        )
    return text


def is_remark(text: str) -> bool:
    """Whether ``text`` can be an operator's name, or a reason."""
    return text.isprintable() and len(text.encode()) <= LONGEST_TEXT_BYTES


def are_names(texts: Sequence[str], joined: str) -> bool:
    """Whether each of ``texts`` can name a lock.

    They come from splitting ``joined`` at its spaces, so some checks of `is_name` are made once,
    for all of them.
    """
    return (
        joined.isprintable() and "" not in texts and max(map(len, texts)) <= LONGEST_NAME_CHARACTERS
    )


def checked_token(token: Any) -> str:
    """Return ``token``. Raises `TypeError` or `ValueError` unless it has the form that
    `new_token` makes: with any other, a lease could be granted and never released."""
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


def checked_ttl(ttl: Any, what: str = "ttl") -> float:
    """Return ``ttl``, seconds, which errors call ``what``. Raises `TypeError` or `ValueError`
    unless it is a finite number from a millisecond to ten years."""
    number = _number(what, ttl)
    if not SHORTEST_TTL_SECONDS <= number <= LONGEST_TTL_SECONDS:
        raise ValueError(
            f"{what} is a number of seconds from {SHORTEST_TTL_SECONDS} to ten years, not {ttl!r}"
        )
    return number


def checked_seconds(what: str, seconds: Any) -> float:
    """Return ``seconds``. Raises `TypeError` or `ValueError` unless it is a finite number from 0 to
    ten years."""
    number = _number(what, seconds)
    if not 0 <= number <= LONGEST_TTL_SECONDS:
        raise ValueError(f"{what} is a number of seconds from 0 to ten years, not {seconds!r}")
    return number


def check_options(ttl: Any, wait: Any, renew: Any, store: Any) -> None:
    """Raise `TypeError` or `ValueError` for an option that `lock` and its like cannot take."""
    if ttl is not None:
        checked_ttl(ttl)
    checked_wait(wait)
    checked_flag("renew", renew)
    if not isinstance(store, str):
        raise TypeError(f"store is an alias, not {store!r}")


def checked_wait(wait: Any, what: str = "wait") -> float | None:
    """Return ``wait``, seconds, or None for ever; errors call it ``what``. Raises `TypeError` or
    `ValueError` unless it is None or a number >= 0. Infinity means for ever too."""
    if wait is None:
        return None
    number = _number(what, wait)
    if not number >= 0:
        raise ValueError(f"{what} is None or a number of seconds >= 0, not {wait!r}")
    return number if isfinite(number) else None


def _number(what: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{what} is a number of seconds, not {type(value).__name__}: {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{what} is a number of seconds, and not as large as this") from None
