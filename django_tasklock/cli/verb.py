"""What a verb of ``manage.py locks`` is made of, and how its arguments are read."""

from __future__ import annotations

import argparse
import getpass
import os
import textwrap
from argparse import ArgumentTypeError
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.core.management.base import CommandError, CommandParser

from .._values.arguments import MOST_LISTED, checked_name
from .._values.owner_record import recorded
from .._values.read_duration import read_ttl
from ..conf import DEFAULT_ALIAS

__all__ = ["Verb", "exit_status", "lock_name", "lock_ttl", "number", "seconds", "task_id", "user"]

MAX_SECONDS = 366 * 86400.0  # what is longer is a mistake


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb: its help, an example of each use, its arguments, and the function that runs it.

    ``run`` gets Django's command and the parsed options by name; it writes to the command's stdout,
    and raises `CommandError` to exit with 1 or with the error's ``returncode``. ``formats`` are the
    choices of ``--format``, the first is the default; without formats there is no such option.
    ``all_stores``: without ``--store`` the verb looks at all stores, and the option is None.
    """

    name: str
    summary: str
    examples: tuple[str, ...]
    add_arguments: Callable[[CommandParser], None]
    run: Callable[..., None]
    formats: tuple[str, ...] = ("table", "json")
    all_stores: bool = False

    def add_to(self, verbs: Any) -> None:
        """Add the verb to argparse's subparsers; the parsed ``options["verb"]`` is `run`."""
        parser: CommandParser = verbs.add_parser(
            self.name,
            help=self.summary.partition(". ")[0],
            description=self.summary,
            epilog="\n  ".join(["examples:", *self.examples]),
            formatter_class=WrappedLines,
        )
        parser.set_defaults(verb=self.run)
        default = "all stores" if self.all_stores else DEFAULT_ALIAS
        parser.add_argument(
            "--store",
            default=None if self.all_stores else DEFAULT_ALIAS,
            metavar="ALIAS",
            help=f"the store's alias in the setting TASKLOCK (default: {default})",
        )
        if self.formats:
            text = "how to show what is found (default: %(default)s)"
            parser.add_argument(
                "--format", choices=self.formats, default=self.formats[0], help=text
            )
        # Django's own options after the verb too, where everybody writes them.
        own: Any = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
        for option in ("--settings", "--pythonpath"):
            parser.add_argument(option, **own)
        parser.add_argument("-v", "--verbosity", type=int, choices=[0, 1, 2, 3], **own)
        for flag in ("--traceback", "--no-color", "--force-color", "--skip-checks"):
            parser.add_argument(flag, action="store_true", **own)
        self.add_arguments(parser)


class WrappedLines(argparse.HelpFormatter):
    """Wraps each line by itself, so that each example has its own."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = (
            textwrap.wrap(line, width, subsequent_indent="" if line[:1] != " " else "    ")
            for line in text.split("\n")
        )
        return "\n".join(line for wrapped in lines for line in wrapped)


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


def number(text: str) -> int:
    """Return a number of things, `MOST_LISTED` at most. Raises `ArgumentTypeError` below 1."""
    return min(_whole(text, 1, "a whole number of at least 1"), MOST_LISTED)


def exit_status(text: str) -> int:
    """Return an exit status. Raises `ArgumentTypeError` unless it is from 0 to 255."""
    found = _whole(text, 0, "an exit status from 0 to 255")
    if found > 255:
        raise ArgumentTypeError(f"not an exit status from 0 to 255: {text!r}")
    return found


def seconds(text: str) -> float:
    """Return seconds. Raises `ArgumentTypeError` unless they are from 0 to a year."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= MAX_SECONDS:
        raise ArgumentTypeError(f"not a number of seconds from 0 to a year: {text!r}")
    return found


def lock_ttl(text: str) -> float:
    """Return the seconds of a duration such as ``2h``. Raises `ArgumentTypeError` for a ttl that no
    lease can have."""
    try:
        return read_ttl(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def user() -> str:
    """Return the user of this shell, as an operator's name."""
    try:
        return recorded(getpass.getuser())
    except (KeyError, OSError):  # A container may have a user id without a name.
        return f"uid {os.getuid()}"


def _whole(text: str, least: int, what: str) -> int:
    try:
        found = int(text)
    except ValueError:
        found = least - 1
    if found < least:
        raise ArgumentTypeError(f"not {what}: {text!r}")
    return found
