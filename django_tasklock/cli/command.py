"""The verbs of ``manage.py locks``, in the order of its help."""

from __future__ import annotations

from django.core.management.base import CommandParser

from . import clear_locks, doctor, explanation, hold_lock, list_locks, lock_history, show_lock
from .run_command import LEAD, RUN

__all__ = ["add_verbs"]

VERBS = (
    list_locks.VERB,
    show_lock.VERB,
    lock_history.VERB,
    doctor.VERB,
    explanation.VERB,
    clear_locks.VERB,
    hold_lock.VERB,
    RUN,
    LEAD,
)


def add_verbs(parser: CommandParser) -> None:
    """Add the verbs to the command's parser; the chosen one is ``options["verb"]``, a function."""
    verbs = parser.add_subparsers(
        title="verbs", metavar="VERB", required=True, parser_class=CommandParser
    )
    for verb in VERBS:
        verb.add_to(verbs)
