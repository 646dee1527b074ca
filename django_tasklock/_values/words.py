"""How values are written for people, in log lines, the command and the admin: text that anybody may
have written, and durations, which are read too."""

from __future__ import annotations

import logging
import re
from datetime import datetime, timezone

from .arguments import checked_ttl

# Where all log lines go.
logger = logging.getLogger("django_tasklock")

# Without a unit a number is one of seconds.
UNIT_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_NUMBER = r"[0-9]{1,12}(?:\.[0-9]{1,9})?"
_DURATION = rf"{_NUMBER}|(?:{_NUMBER}[dhms]){{1,4}}"
_PART = rf"({_NUMBER})([dhms]?)"


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
    for unit, smaller in ("dh", "hm", "ms"):
        units, rest = divmod(int(seconds), UNIT_SECONDS[unit])
        if units:
            return f"{units}{unit}{rest // UNIT_SECONDS[smaller]:02d}{smaller}"
    return f"{int(seconds)}s"


def age(acquired_at: datetime) -> float:
    """Return the seconds since ``acquired_at``, which is aware, whatever USE_TZ says."""
    return (datetime.now(timezone.utc) - acquired_at).total_seconds()


def read_ttl(text: str) -> float:
    """Return the seconds that ``text`` means: a number of them, or numbers with units, as people
    write them: ``90``, ``30s``, ``10m``, ``2h``, ``1d``, ``1h30m``.

    Raises `ValueError` for anything else, and for what no lease can last.
    """
    text = text.strip()
    if not re.fullmatch(_DURATION, text):
        raise ValueError(f"a duration must be like 30s, 10m, 2h, 1d or 90, not {text[:100]!r}")
    parts = re.findall(_PART, text)
    return checked_ttl(sum(float(number) * UNIT_SECONDS[unit] for number, unit in parts))
