"""How a lock is put into words: for log lines, the command and the admin alike."""

from __future__ import annotations

from datetime import datetime, timezone

from .owner import Owner

__all__ = ["age", "duration", "place", "printable"]

MINUTE_SECONDS, HOUR_SECONDS, DAY_SECONDS = 60, 3600, 86400


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


def duration(seconds: float) -> str:
    """Return ``seconds`` in two units at most: ``0.4s``, ``59s``, ``2m05s``, ``3h04m``, ``2d03h``.

    What is below zero is zero: clocks of two machines differ. Cut, not rounded: what is left
    of a lease is never said to be more than it is.
    """
    seconds = max(0.0, seconds)
    if seconds < 1:
        return f"{int(seconds * 10) / 10:.1f}s"
    whole = int(seconds)
    if whole < MINUTE_SECONDS:
        return f"{whole}s"
    if whole < HOUR_SECONDS:
        return f"{whole // MINUTE_SECONDS}m{whole % MINUTE_SECONDS:02d}s"
    if whole < DAY_SECONDS:
        return f"{whole // HOUR_SECONDS}h{whole % HOUR_SECONDS // MINUTE_SECONDS:02d}m"
    return f"{whole // DAY_SECONDS}d{whole % DAY_SECONDS // HOUR_SECONDS:02d}h"


def age(acquired_at: datetime) -> float:
    """Return the seconds since ``acquired_at``, which is aware, whatever USE_TZ says."""
    return (datetime.now(timezone.utc) - acquired_at).total_seconds()


def place(owner: Owner) -> str:
    """Return the process that holds a lock as ``host:pid``, or the operator; "" for a foreign key's
    owner."""
    if owner.operator is not None:
        return printable(owner.operator)
    if owner.host is None and owner.pid is None:
        return ""
    return printable(f"{owner.host or '?'}:{owner.pid if owner.pid is not None else '?'}")
