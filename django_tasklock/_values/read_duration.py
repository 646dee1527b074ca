"""Durations as people write them: ``90``, ``30s``, ``10m``, ``2h``, ``1d``, ``1h30m``."""

from __future__ import annotations

import re

from .arguments import checked_ttl

__all__ = ["read_ttl"]

UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_NUMBER = r"[0-9]{1,12}(?:\.[0-9]{1,9})?"
_PLAIN = re.compile(_NUMBER).fullmatch
_WITH_UNITS = re.compile(rf"(?:{_NUMBER}[dhms]){{1,4}}").fullmatch
_PARTS = re.compile(rf"({_NUMBER})([dhms])").findall


def read_ttl(text: str) -> float:
    """Return the seconds that ``text`` means: a number of them, or numbers with units.

    Raises `ValueError` for anything else, and for what no lease can last.
    """
    text = text.strip()
    if _PLAIN(text):
        return checked_ttl(float(text))
    if not _WITH_UNITS(text):
        raise ValueError(f"not a duration such as 30s, 10m, 2h, 1d or 90 (seconds): {text[:100]!r}")
    return checked_ttl(sum(float(number) * UNIT_SECONDS[unit] for number, unit in _PARTS(text)))
