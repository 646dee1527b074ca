"""How a lock is put into words: for log lines, the command and the admin alike."""

from __future__ import annotations

import shlex
from datetime import datetime, timezone

from .conf import DEFAULT_ALIAS
from .owner import Owner

__all__ = ["age", "command_line", "duration", "place", "printable"]

MINUTE, HOUR, DAY = 60, 3600, 86400


def printable(value: object) -> str:
    """Return ``value`` as text with every control or invisible character escaped.

    Names, owners and keys may have been written by somebody else: as they are, they could
    move a terminal's cursor, forge a second log line or turn the direction of the text.
    """
    text = str(value)
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def command_line(verb: str, *names: str, store: str = DEFAULT_ALIAS, options: str = "") -> str:
    """Return the ``manage.py locks`` command of a verb, ready for a POSIX shell.

    Names come from data: whatever they hold, they are one word each, and never an option.
    """
    words = ["manage.py", "locks", verb]
    if store != DEFAULT_ALIAS:
        words += ["--store", shlex.quote(store)]
    words += options.split()
    if names:
        words += ["--", *map(shlex.quote, names)]
    return printable(" ".join(words))


def duration(seconds: float) -> str:
    """Return ``seconds`` in two units at most: ``0.4s``, ``59s``, ``2m05s``, ``3h04m``, ``2d03h``.

    What is below zero is zero: clocks of two machines differ. Cut, not rounded: what is left
    of a lease is never said to be more than it is.
    """
    seconds = max(0.0, seconds)
    if seconds < 1:
        return f"{int(seconds * 10) / 10:.1f}s"
    whole = int(seconds)
    if whole < MINUTE:
        return f"{whole}s"
    if whole < HOUR:
        return f"{whole // MINUTE}m{whole % MINUTE:02d}s"
    if whole < DAY:
        return f"{whole // HOUR}h{whole % HOUR // MINUTE:02d}m"
    return f"{whole // DAY}d{whole % DAY // HOUR:02d}h"


def age(acquired_at: datetime) -> float:
    """Return the seconds since ``acquired_at``, which is aware, whatever USE_TZ says."""
    return (datetime.now(timezone.utc) - acquired_at).total_seconds()


def place(owner: Owner) -> str:
    """Return the process that holds a lock as ``host:pid``, or "" for a foreign key's."""
    if owner.host is None and owner.pid is None:
        return ""
    return printable(f"{owner.host or '?'}:{owner.pid if owner.pid is not None else '?'}")
