"""``manage.py locks doctor``: what is wrong, and lost work sent again."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from .._values.printable import printable
from ..operators.doctor import diagnose
from ..operators.lost_work import requeue
from ..operators.problems import LostRow, Problem
from .arguments import add_format
from .tables import as_json


def add_arguments(parser: CommandParser) -> None:
    """Add whether to send lost work again."""
    parser.set_defaults(store=None)
    parser.add_argument("--requeue", action="store_true", help="send the tasks of lost rows again")
    add_format(parser)


def doctor(command: BaseCommand, **options: Any) -> None:
    """
    Find lost work and other problems; with --requeue, send lost work again.

    It looks for lost work, locks whose owner is gone, keys without a TTL,
    reservations whose message is gone, wrong settings, and servers that may lose
    locks: in all stores, or in that of --store.
    Without --requeue it changes nothing. --requeue sends each task with the key of
    its row alone, and is safe to do twice. Exits 1 if it finds a serious problem
    that --requeue did not mend.

    examples:
      manage.py locks doctor
      manage.py locks doctor --requeue
      */5 * * * *  manage.py locks doctor > found || mail -s locks ops < found
    """
    problems = diagnose([options["store"]] if options["store"] else None)
    found = [_row(problem, requeues=options["requeue"]) for problem in problems]
    found.sort(key=lambda row: not row["serious"])
    if options["format"] == "json":
        command.stdout.write(as_json(found))
    else:
        command.stdout.write("\n\n".join(map(_words, found)) or "Nothing is wrong.")
    if any(row["serious"] for row in found):
        command.stdout.flush()
        sys.exit(1)


def _row(problem: Problem, *, requeues: bool) -> dict[str, Any]:
    row = problem.as_json() | {"requeued": None, "task_id": None}
    if requeues and isinstance(problem, LostRow) and problem.sendable:
        try:
            sent, task_id = requeue(problem)
        except Exception as error:
            # For example, the broker does not answer. The other rows are still to be reported.
            return row | {"requeued": f"could not be sent: {error}"}
        done = "sent again" if sent else "sent a moment ago"
        row |= {"requeued": done, "task_id": task_id, "serious": False}
    return row


def _words(row: dict[str, Any]) -> str:
    """Some lines: what it is about, why it is wrong, and what to do or what was done."""
    first = f"{row['kind']}{'' if row['serious'] else ' (note)'}: {row['what']}"
    sent = f": {row['task']}[{row['task_id']}]" if row["task_id"] else ""
    lines = (first, row["message"], row["requeued"] + sent if row["requeued"] else row["hint"])
    return "\n    ".join(printable(line) for line in lines if line)
