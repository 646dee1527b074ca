"""The verbs of ``manage.py locks``.

A verb is a function that adds its arguments, and one that runs it: that one's docstring is the
verb's help. It writes to the command's stdout, and raises `CommandError` to exit with 1 or with the
error's ``returncode``.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from django.core.management.base import CommandParser

from ..conf import DEFAULT_ALIAS
from . import (
    clear_locks,
    doctor,
    explain_task,
    hold_lock,
    lock_history,
    run_command,
    show_locks,
)

__all__ = ["add_verbs"]

VERBS: Mapping[str, tuple[Callable[[CommandParser], None], Callable[..., None]]] = {
    "list": (show_locks.add_list_arguments, show_locks.list_locks),
    "show": (show_locks.add_show_arguments, show_locks.show_lock),
    "history": (lock_history.add_arguments, lock_history.show_history),
    "doctor": (doctor.add_arguments, doctor.doctor),
    "explain": (explain_task.add_arguments, explain_task.explain_task),
    "clear": (clear_locks.add_arguments, clear_locks.clear_locks),
    "hold": (hold_lock.add_arguments, hold_lock.hold_lock),
    "run": (run_command.add_run_arguments, run_command.run_command),
    "lead": (run_command.add_lead_arguments, run_command.lead_command),
}


def add_verbs(parser: CommandParser) -> None:
    """Add the verbs to the command's parser; the chosen one is ``options["verb"]``, a function."""
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    for name, (add_arguments, verb) in VERBS.items():
        text = inspect.getdoc(verb) or ""
        own = verbs.add_parser(
            name,
            help=text.partition(".")[0],
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
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
