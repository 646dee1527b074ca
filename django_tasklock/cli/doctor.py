"""``manage.py locks doctor``: what is wrong, and lost work sent again."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from django.core.management.base import BaseCommand, CommandParser

from .._values.describe import printable
from ..operators.doctor import Problem, diagnose
from ..operators.lost_work import requeue
from .arguments import add_format
from .tables import as_json

__all__ = ["add_arguments", "doctor"]


class Finding(NamedTuple):
    """A problem, and what ``--requeue`` did about it."""

    problem: Problem
    done: str | None = None
    task_id: str | None = None
    serious: bool = True


def add_arguments(parser: CommandParser) -> None:
    """Add whether to send lost work again."""
    parser.set_defaults(store=None)
    requeue_help = "send the tasks of lost rows again; it is safe to do this twice"
    parser.add_argument("--requeue", action="store_true", help=requeue_help)
    add_format(parser)


def doctor(command: BaseCommand, **options: Any) -> None:
    """
    Find what is wrong, and send lost work again.

    That is: lost work, locks whose owner is gone, keys without a TTL, and servers
    that may lose locks; in all stores, unless --store names one. Exits 1 if a
    problem is serious and was not mended by --requeue.

    examples:
      manage.py locks doctor
      manage.py locks doctor --requeue
      */5 * * * *  manage.py locks doctor --format json || mail -s locks ops
    """
    found = [
        _sent(problem)
        if options["requeue"] and problem.sendable
        else Finding(problem, serious=problem.serious)
        for problem in diagnose([options["store"]] if options["store"] else None)
    ]
    found.sort(key=lambda finding: not finding.serious)
    if options["format"] == "json":
        rows = (
            each.problem.as_json() | {"requeued": each.done, "task_id": each.task_id}
            for each in found
        )
        command.stdout.write(as_json(rows))
    else:
        command.stdout.write("\n\n".join(map(_words, found)) or "Nothing is wrong.")
    if any(finding.serious for finding in found):
        command.stdout.flush()
        sys.exit(1)


def _sent(problem: Problem) -> Finding:
    try:
        sent = requeue(problem)
    except Exception as error:
        # For example, the broker does not answer. The other rows are still to be reported.
        return Finding(problem, f"could not be sent: {error}")
    if sent is None:
        return Finding(problem, "sent a moment ago", serious=False)
    done = f"sent again: {sent.task}[{sent.task_id or 'id not known'}]"
    return Finding(problem, done, sent.task_id, serious=False)


def _words(finding: Finding) -> str:
    """Some lines: what it is about, why it is wrong, and what to do or what was done."""
    problem, note = finding.problem, "" if finding.serious else " (note)"
    first = f"{problem.kind}{note}: {problem.what}"
    lines = (first, problem.message, finding.done or problem.hint)
    return "\n    ".join(printable(line) for line in lines if line)
