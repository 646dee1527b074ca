"""
What a caller may pass, checked before any network call: each function takes a value, and what the
errors call it.

A name is a non-empty ``str`` of at most 200 printable characters without spaces: it goes
into keys, logs, terminals and web pages as it is. 200 leaves room for a prefix and a
version within memcached's 250 bytes and DatabaseCache's 255 characters.

``slots=N`` makes N names of one name: those of its permits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from math import inf
from typing import Any, TypeVar

T = TypeVar("T")

LONGEST_NAME_CHARACTERS = 200
# bytes of UTF-8 that a text of a record has at most
LONGEST_TEXT_BYTES = 255
# a millisecond, in which Redis counts
SHORTEST_TTL_SECONDS = 0.001
# ten years: a longer one is a mistake, and too large for some server or system call
LONGEST_TTL_SECONDS = 10 * 366 * 86400.0
# no store has as many locks, and some servers know no larger numbers
MOST_LISTED = 10**12
# the largest N of ``slots=N``: every caller may have to look at all of its permits
LARGEST_SLOTS = 1000
# What other libraries call our options.
MENDS = {
    "timeout": "wait= is how long to wait for the lock, ttl= how long the lease lasts, in seconds",
    "blocking_timeout": "wait= is how long to wait for the lock, in seconds",
    "blocking": "wait=0 does not wait for the lock, and wait=None waits for ever",
    "expire": "ttl= is how long the lease lasts, in seconds",
}

# whether a str has the form of a token
is_token = re.compile(r"[A-Za-z0-9_-]{22}").fullmatch
_slot = re.compile(r"#([1-9][0-9]{0,3})\Z")


def is_name(text: str) -> bool:
    """Whether ``text`` can name a lock."""
    return 0 < len(text) <= LONGEST_NAME_CHARACTERS and " " not in text and text.isprintable()


def is_remark(text: str) -> bool:
    """Whether ``text`` can be an operator's name, or a reason."""
    return text.isprintable() and len(text.encode()) <= LONGEST_TEXT_BYTES


def checked_name(name: Any) -> str:
    """Return ``name``. Raises `TypeError` or `ValueError` if it cannot name a lock."""
    _typed(name, "a lock's name", str, 'a str, such as f"video:{video.pk}"')
    rule = f"1 to {LONGEST_NAME_CHARACTERS} printable characters and no spaces (use make_name())"
    return _text(name, "a lock's name", is_name, rule)


def checked_several(names: Any) -> None:
    """Raise `TypeError` unless ``names`` is a list or tuple, and `ValueError` if it is empty."""
    if not _typed(names, "a group of names", (list, tuple), "a list or a tuple"):
        raise ValueError("a group of names must have at least one name")


def checked_template(name: Any) -> str:
    """Return ``name``, which may have fields that are still to be filled."""
    return name if name and isinstance(name, str) else checked_name(name)


def checked_remark(text: Any, what: str) -> str:
    """Return ``text``, which may be empty: an operator's name, or a reason. Raises `TypeError` or
    `ValueError` if it is too long, or would not be safe on a terminal."""
    rule = f"at most {LONGEST_TEXT_BYTES} bytes of UTF-8, and only printable characters"
    return _text(text, what, is_remark, rule)


def checked_token(token: Any) -> str:
    """Return ``token``. Raises `TypeError` or `ValueError` unless it has the form that
    `new_token` makes: with any other, a lease could be granted and never released."""
    text = checked_text(token, "a token")
    if not is_token(text):
        raise ValueError("a token must have 22 characters of A-Z, a-z, 0-9, - and _")
    return text


def checked_text(text: Any, what: str) -> str:
    """Return ``text``, which may be empty. Raises `TypeError` if it is no str."""
    return _typed(text, what, str, "a str")


def checked_flag(flag: Any, what: str) -> bool:
    """Return ``flag``. Raises `TypeError` if it is no bool."""
    return _typed(flag, what, bool, "a bool")


def checked_number(number: Any, what: str) -> int:
    """Return ``number``, at most `MOST_LISTED`. Raises `TypeError` or `ValueError` unless it is a
    whole one >= 0."""
    if _typed(number, what, int, "a whole number") < 0:
        raise ValueError(f"{what} cannot be negative: {number!r:.100}")
    return min(int(number), MOST_LISTED)


def checked_ttl(ttl: Any, what: str = "ttl") -> float:
    """Return ``ttl``, seconds, which errors call ``what``. Raises `TypeError` or `ValueError`
    unless it is a finite number from a millisecond to ten years."""
    return checked_seconds(ttl, what, SHORTEST_TTL_SECONDS)


def checked_seconds(seconds: Any, what: str, least: float = 0) -> float:
    """Return ``seconds``. Raises `TypeError` or `ValueError` unless it is a finite number from
    ``least`` to ten years."""
    number = _typed(seconds, what, (int, float), "a number of seconds")
    if not least <= number <= LONGEST_TTL_SECONDS:
        raise ValueError(
            f"{what} must be a number of seconds from {least} to ten years, not {seconds!r:.100}"
        )
    return float(number)


def check_known(call: str, options: Collection[str], known: Collection[str]) -> None:
    """Raise `TypeError` for an option that ``call`` does not have."""
    for name in options:
        if name not in known:
            mend = MENDS.get(name, f"it has {', '.join(known)}")
            raise TypeError(f"{call}() has no option {name}: {mend}")


def checked_wait(wait: Any, what: str = "wait") -> float | None:
    """Return ``wait``, seconds, or None for ever; errors call it ``what``. Raises `TypeError` or
    `ValueError` unless it is None or a number >= 0. Infinity means for ever too."""
    if wait is not None:
        number = _typed(wait, what, (int, float), "a number of seconds")
        if not (0 <= number < 1e308 or number == inf):
            raise ValueError(f"{what} must be None or from 0 to 1e308 seconds, not {wait!r:.100}")
    return wait  # type: ignore[no-any-return]


def checked_slots(slots: Any, what: str = "slots") -> int:
    """Return ``slots``, which errors call ``what``. Raises `TypeError` or `ValueError` unless it is
    a whole number from 1 to `LARGEST_SLOTS`."""
    if not 1 <= checked_number(slots, what) <= LARGEST_SLOTS:
        raise ValueError(f"{what} must be a number from 1 to {LARGEST_SLOTS}, not {slots!r}")
    return int(slots)


def permit_names(name: str, slots: int) -> list[str]:
    """The names of the permits of ``name``. Raises as `checked_name`, and `ValueError` if the name
    is too long, whatever ``slots`` is: a greater number must not fail later."""
    checked_name(name)
    longest = LONGEST_NAME_CHARACTERS - len(f"#{LARGEST_SLOTS}")
    if len(name) > longest:
        raise ValueError(
            f"with slots, a lock's name must have at most {longest} characters, not {len(name)}"
        )
    return [f"{name}#{slot}" for slot in range(1, slots + 1)]


def slot_of(name: str, slots: int | None) -> int | None:
    """The number of the permit with this name; None for any other lock.

    ``slots`` is what the holder's record says of N, and None in that of a plain lock, whatever its
    name is.
    """
    found = None if slots is None else _slot.search(name)
    return None if found is None else int(found[1])


def base_of(name: str, slots: int | None) -> str:
    """The name of which a lock is a permit; its own name for any other lock."""
    return name if slots is None else _slot.sub("", name)


def _typed(value: Any, what: str, kind: type[T] | tuple[type[T], ...], called: str) -> T:
    """Return ``value``; raise `TypeError` if it is not of a ``kind``. A bool is no number."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{what} must be {called}, not {type(value).__name__}: {value!r:.100}")
    return value


def _text(value: Any, what: str, fits: Callable[[str], bool], rule: str) -> str:
    text = checked_text(value, what)
    if not fits(text):
        raise ValueError(f"{what} must have {rule}, not {text!r:.255} ({len(text)} characters)")
    return text
