"""What a verb of ``manage.py locks`` is made of; each is in a file of its own."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.core.management.base import CommandParser

from ..conf import DEFAULT_ALIAS

__all__ = ["TABLE_OR_JSON", "Verb"]

TABLE_OR_JSON = ("table", "json")


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb: its help, its arguments, and the function that runs it.

    ``add_arguments`` gets the verb's own parser. ``run`` gets Django's command and the parsed
    options by name; it writes to the command's stdout, and raises `CommandError` to exit with 1 or
    with the error's ``returncode``. ``formats`` are the choices of ``--format``, the first is the
    default; without formats there is no such option. ``all_stores``: without ``--store`` the verb
    looks at all stores, and the option is None.
    """

    name: str
    summary: str
    examples: str
    add_arguments: Callable[[CommandParser], None]
    run: Callable[..., None]
    formats: tuple[str, ...] = TABLE_OR_JSON
    all_stores: bool = False

    def add_to(self, verbs: Any) -> None:
        """Add the verb to argparse's subparsers ``verbs``, with the options that all verbs have.

        The parsed ``options["verb"]`` is `run`.
        """
        parser: CommandParser = verbs.add_parser(
            self.name,
            help=self.summary,
            description=self.summary,
            epilog=f"examples:\n{self.examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.set_defaults(verb=self.run)
        parser.add_argument(
            "--store",
            default=None if self.all_stores else DEFAULT_ALIAS,
            metavar="ALIAS",
            help="the store's alias in the setting TASKLOCK (default: "
            f"{'all stores' if self.all_stores else DEFAULT_ALIAS})",
        )
        if self.formats:
            parser.add_argument(
                "--format",
                choices=self.formats,
                default=self.formats[0],
                help="how to show what is found (default: %(default)s)",
            )
        _accept_after_verb(parser)
        self.add_arguments(parser)


def _accept_after_verb(parser: CommandParser) -> None:
    """Take Django's own options after the verb too, where everybody writes them."""
    own: Any = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    for option in ("--settings", "--pythonpath"):
        parser.add_argument(option, **own)
    parser.add_argument("-v", "--verbosity", type=int, choices=[0, 1, 2, 3], **own)
    for flag in ("--traceback", "--no-color", "--force-color", "--skip-checks"):
        parser.add_argument(flag, action="store_true", **own)
