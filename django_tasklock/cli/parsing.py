"""How the words of a command line are read: numbers in their range, orders that begin with -."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Sequence
from typing import Any

from django.core.management.base import CommandParser

from ..ordering import ORDERS

__all__ = ["VerbParser", "count", "exit_status", "pause", "seconds"]

LONGEST = 366 * 86400.0
"""seconds; what is longer is a mistake"""


class VerbParser(CommandParser):
    """The parser of one verb."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        return super().parse_known_args(_with_orders(args or ()), namespace)


def _with_orders(args: Sequence[str]) -> list[str]:
    """``--sort -age`` as ``--sort=-age``: argparse takes the ``-age`` for an option."""
    joined: list[str] = []
    for at, word in enumerate(args):
        if word == "--":
            return joined + list(args[at:])
        if word in ORDERS and joined and joined[-1] == "--sort":
            joined[-1] = f"--sort={word}"
        else:
            joined.append(word)
    return joined


def count(text: str) -> int:
    """How many."""
    number = _whole(text)
    if number < 0:
        raise ArgumentTypeError(f"not a whole number of at least 0: {text!r}")
    return number


def exit_status(text: str) -> int:
    """What a process may exit with."""
    number = _whole(text)
    if not 0 <= number <= 255:
        raise ArgumentTypeError(f"an exit status is a whole number from 0 to 255, not {text!r}")
    return number


def seconds(text: str) -> float:
    """Seconds, from 0 to a year."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= LONGEST:
        raise ArgumentTypeError(f"not a number of seconds from 0 to a year: {text!r}")
    return number


def pause(text: str) -> float:
    """Seconds between two looks: more than 0."""
    number = seconds(text)
    if number == 0:
        raise ArgumentTypeError("a pause of 0 seconds is none")
    return number


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ArgumentTypeError(f"not a whole number: {text!r}") from None
