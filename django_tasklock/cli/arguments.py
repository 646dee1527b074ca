"""How the arguments of the verbs are read: each is right, or a usage error says why not."""

from __future__ import annotations

import getpass
import os
from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import Any

from django.core.management.base import CommandParser

from .._values.arguments import MOST_LISTED, checked_name
from .._values.owner import recorded
from .._values.words import read_ttl

YEAR_SECONDS = 366 * 86400  # what is longer is a mistake


def add_format(parser: CommandParser) -> None:
    """Add ``--format``: ``table``, which is the default, or ``json``."""
    parser.add_argument("--format", choices=["table", "json"], default="table")


def add_wait(parser: CommandParser) -> None:
    """Add ``--wait``: how many seconds to wait, None for ever."""
    how: Any = {"type": seconds, "nargs": "?", "default": 0, "metavar": "SECONDS"}
    parser.add_argument("--wait", help="wait for a held lock; without a number: for ever", **how)


def user() -> str:
    """Return the user of this shell, as an operator's name."""
    try:
        return recorded(getpass.getuser())
    except (KeyError, OSError):  # A container may have a user id without a name.
        return f"uid {os.getuid()}"


def _checked(check: Callable[[str], Any], what: str = "") -> Callable[[str], Any]:
    """The check as argparse takes it: its `ValueError` becomes the usage error ``must be <what>``,
    or, without ``what``, what it says itself."""

    def read(text: str) -> Any:
        try:
            return check(text)
        except ValueError as error:
            mend = f"must be {what}, not {text!r}" if what else str(error)
            raise ArgumentTypeError(mend) from None

    return read


def _between(least: float, value: Any, most: float) -> Any:
    if least <= value <= most:
        return value
    raise ValueError


lock_name = _checked(checked_name)
lock_ttl = _checked(read_ttl)  # into seconds
number = _checked(lambda text: _between(1, int(text), MOST_LISTED), "a whole number of at least 1")
exit_status = _checked(lambda text: _between(0, int(text), 255), "an exit status from 0 to 255")
seconds = _checked(
    lambda text: _between(0, float(text), YEAR_SECONDS), "a number of seconds up to a year"
)
