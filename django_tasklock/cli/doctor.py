"""``manage.py locks doctor``: what is wrong, and lost work sent again."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from .._values.words import printable
from ..operators.doctor import diagnose
from ..operators.lost_work import requeue
from ..operators.problems import SENT, LostRow, Problem, weight_of
from .arguments import add_format, lock_ttl
from .tables import as_json

MOST_SHOWN = 6  # of three lines and an empty one: a mail that is read


def add_arguments(parser: CommandParser) -> None:
    """Add whether to send lost work again."""
    parser.set_defaults(store=None)
    parser.add_argument("--requeue", action="store_true", help="send the tasks of lost rows again")
    parser.add_argument("--other-store", action="store_true", help="also rows of another store")
    parser.add_argument("--task", help="only this task (* and ? are wildcards)", default="*")
    older = "also find rows that have waited in source for so long (30s, 10m, 2h)"
    parser.add_argument("--source-older", type=lock_ttl, metavar="DURATION", help=older)
    add_format(parser)


def doctor(command: BaseCommand, **options: Any) -> None:
    """
    Find lost work and other problems; with --requeue, send lost work again.

    It looks for lost work, locks whose owner is gone, reservations whose message
    is gone, wrong settings, and servers that may lose locks: in all stores, or in
    that of --store.
    Without --requeue it changes nothing. --requeue sends each task with the key of
    its row alone, and is safe to do twice. A row whose run may live in another
    store is sent with --other-store, one that may be of several tasks with --task.
    Of many problems it shows the first, and counts: -v 2 shows all, as does JSON.
    Exits 1 if it finds a serious problem that --requeue did not mend.

    examples:
      manage.py locks doctor
      manage.py locks doctor --requeue --source-older 2h
      */5 * * * *  manage.py locks doctor > found || mail -s locks ops < found
    """
    aliases = [options["store"]] if options["store"] else None
    problems = [
        problem
        for problem in sorted(diagnose(aliases, options["source_older"]), key=weight_of)
        if fnmatchcase(problem.task or options["task"], options["task"])
    ]
    # A row of another store is sent on a second word. One that may be another task's is not sent.
    sends = SENT if options["other_store"] else SENT[:-1]
    times = Counter(each.what for each in problems if isinstance(each, LostRow) and each.asks)
    sent = (sends if options["requeue"] and times[each.what] < 2 else () for each in problems)
    found = list(map(_row, problems, sent))
    found.sort(key=lambda row: not row["serious"])
    if options["format"] == "json":
        command.stdout.write(as_json(found))
    else:
        said = list(map(_words, found))
        if options["verbosity"] < 2 and len(found) > MOST_SHOWN:
            counts = Counter(map(_head, found))
            lines = "\n".join(f"{count:,} {head}" for head, count in counts.items())
            said = [lines, *said[:MOST_SHOWN], f"{len(found) - MOST_SHOWN:,} more: -v 2 shows all."]
        well = "Nothing is wrong" + (f" with {options['task']}" if options["task"] != "*" else "")
        command.stdout.write("\n\n".join(said) or f"{well}.")
    if any(row["serious"] for row in found):
        command.stdout.flush()
        sys.exit(1)


def _head(row: dict[str, Any]) -> str:
    """A problem's kind, and whether it is a note or was sent."""
    return f"{row['kind']}{'' if row['serious'] else ' (note)'}"


def _row(problem: Problem, sends: Collection[str]) -> dict[str, Any]:
    """The problem, once its task was sent again if it is of one of these kinds."""
    row = problem.as_json() | {"requeued": None, "task_id": None}
    if isinstance(problem, LostRow) and problem.kind in sends:
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
    first = f"{_head(row)}: {row['what']}"
    sent = f": {row['task']}[{row['task_id']}]" if row["task_id"] else ""
    lines = (first, row["message"], row["requeued"] + sent if row["requeued"] else row["hint"])
    return "\n    ".join(printable(line) for line in lines if line)
