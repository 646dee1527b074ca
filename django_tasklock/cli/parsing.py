"""How arguments of a command line are read: numbers in their range, orders that begin with -."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Sequence
from typing import Any

from django.core.management.base import CommandError, CommandParser

from .._values.arguments import MOST_LISTED, checked_name
from .._values.ordering import ORDERS
from .._values.read_duration import read_ttl

__all__ = [
    "VerbParser",
    "count",
    "exit_status",
    "lock_name",
    "lock_ttl",
    "pause",
    "seconds",
    "task_id",
]

MAX_SECONDS = 366 * 86400.0
"""what is longer is a mistake"""


class VerbParser(CommandParser):
    """The parser of one verb, which also takes ``--sort -age``."""

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


def lock_name(text: str) -> str:
    """Return the name of a lock as it was typed. Raises `CommandError` if no lock can have it."""
    try:
        return checked_name(text)
    except ValueError as error:
        raise CommandError(f"{error}.") from error


def task_id(text: str) -> str:
    """Return a task id as it was typed. Raises `ArgumentTypeError` for an empty one."""
    if not text:
        raise ArgumentTypeError("a task id is not empty")
    return text


def count(text: str) -> int:
    """Return a number of things, `MOST_LISTED` at most. Raises `ArgumentTypeError` below 0."""
    number = _whole(text)
    if number < 0:
        raise ArgumentTypeError(f"not a whole number of at least 0: {text!r}")
    return min(number, MOST_LISTED)


def exit_status(text: str) -> int:
    """Return an exit status. Raises `ArgumentTypeError` unless it is from 0 to 255."""
    number = _whole(text)
    if not 0 <= number <= 255:
        raise ArgumentTypeError(f"an exit status is a whole number from 0 to 255, not {text!r}")
    return number


def seconds(text: str) -> float:
    """Return seconds. Raises `ArgumentTypeError` unless they are from 0 to a year."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= MAX_SECONDS:
        raise ArgumentTypeError(f"not a number of seconds from 0 to a year: {text!r}")
    return number


def lock_ttl(text: str) -> float:
    """Return the seconds of a duration such as ``2h``. Raises `ArgumentTypeError` for a ttl that no
    lease can have."""
    try:
        return read_ttl(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def pause(text: str) -> float:
    """Return the seconds between two looks. Raises `ArgumentTypeError` for 0."""
    number = seconds(text)
    if number == 0:
        raise ArgumentTypeError("the pause must be longer than 0 seconds")
    return number


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ArgumentTypeError(f"not a whole number: {text!r}") from None
