"""The verbs of ``manage.py locks``, in the order of its help."""

from __future__ import annotations

from django.core.management.base import CommandParser

from . import (
    clear_locks,
    explanation,
    findings,
    hold_lock,
    lead_command,
    list_locks,
    lock_history,
    run_command,
    show_lock,
    state_metrics,
)
from .parsing import VerbParser

__all__ = ["add_verbs"]

VERBS = (
    list_locks.VERB,
    show_lock.VERB,
    lock_history.VERB,
    clear_locks.VERB,
    findings.VERB,
    state_metrics.VERB,
    explanation.VERB,
    run_command.VERB,
    lead_command.VERB,
    hold_lock.VERB,
)


def add_verbs(parser: CommandParser) -> None:
    """Add the verbs to the command's parser; the chosen one is ``options["verb"]``, a function."""
    verbs = parser.add_subparsers(
        title="verbs",
        metavar="VERB",
        required=True,
        parser_class=VerbParser,
    )
    for verb in VERBS:
        verb.add_to(verbs)
