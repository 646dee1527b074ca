"""``manage.py locks``: see and clear locks from a shell.

A verb is a function that adds its arguments, and one that runs it: that one's docstring is the
verb's help. It writes to the command's stdout, and raises `CommandError` to exit with 1 or with the
error's ``returncode``.
"""

from __future__ import annotations

import argparse
import inspect
import io
import os
import signal
import sys
from collections.abc import Callable, Mapping
from traceback import walk_tb
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser, no_translations

from ..._values.words import printable
from ...cli import clear_and_hold, doctor, explain_task, run_command, show
from ...conf import DEFAULT_ALIAS
from ...exceptions import InvalidLockConfig, TaskLockError

VERBS: Mapping[str, tuple[Callable[[CommandParser], None], Callable[..., None]]] = {
    "list": (show.add_list_arguments, show.list_locks),
    "show": (show.add_show_arguments, show.show_lock),
    "history": (show.add_history_arguments, show.show_history),
    "doctor": (doctor.add_arguments, doctor.doctor),
    "explain": (explain_task.add_arguments, explain_task.explain_task),
    "clear": (clear_and_hold.add_clear_arguments, clear_and_hold.clear_locks),
    "hold": (clear_and_hold.add_hold_arguments, clear_and_hold.hold_lock),
    "run": (run_command.add_run_arguments, run_command.run_command),
    "lead": (run_command.add_lead_arguments, run_command.lead_command),
}


class Command(BaseCommand):
    """The command. Its verbs are in `django_tasklock.cli`."""

    help = "Show, clear and hold locks, find lost work, and run commands under locks."
    # In an emergency the command must run, whatever else is wrong with the site.
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
        for name, (add_arguments, verb) in VERBS.items():
            text = inspect.getdoc(verb) or ""
            kind = argparse.RawDescriptionHelpFormatter
            first = text.partition(".")[0]
            own = verbs.add_parser(name, help=first, description=text, formatter_class=kind)
            own.set_defaults(verb=verb)
            own.add_argument("--store", default=DEFAULT_ALIAS, help="a store's alias in TASKLOCK")
            add_arguments(own)
            # Django's own options after the verb too, where everybody writes them.
            hidden: Any = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
            for option in ("--settings", "--pythonpath"):
                own.add_argument(option, **hidden)
            own.add_argument("-v", "--verbosity", type=int, choices=[0, 1, 2, 3], **hidden)
            for flag in ("--traceback", "--no-color", "--force-color", "--skip-checks"):
                own.add_argument(flag, action="store_true", **hidden)

    @no_translations
    def handle(self, *args: Any, **options: Any) -> None:
        verb = options.pop("verb")
        if getattr(self.stderr, "_out", None) is None:  # Closed. An error has its status even so.
            self.stderr = type(self.stderr)(io.StringIO())
        # A terminal may know fewer characters than names have.
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        try:
            verb(self, **options)
            self.stdout.flush()
        except (TaskLockError, InvalidLockConfig) as error:
            raise CommandError(printable(error)) from error
        except KeyboardInterrupt:
            sys.exit(128 + signal.SIGINT)
        except OSError as error:
            whose = {id(frame.f_locals.get("self")) for frame, _ in walk_tb(error.__traceback__)}
            if whose.isdisjoint(map(id, (self.stdout, self.stderr))):
                raise  # For example, from a function of the project's.
            # The output is full, or its reader has gone: Python would say so again at its exit.
            if getattr(self.stdout, "_out", None) is sys.stdout:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            if isinstance(error, BrokenPipeError):
                sys.exit(128 + signal.SIGPIPE)
            raise CommandError(f"The output could not be written: {error.strerror}.") from error
