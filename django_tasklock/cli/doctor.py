"""``manage.py locks doctor``: what is wrong, and lost work sent again."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from .._values.printable import printable
from ..operators.doctor import diagnose
from ..operators.lost_work import requeue
from ..operators.problems import SENT, LostRow, Problem
from .arguments import add_format, lock_ttl
from .tables import as_json

MOST_SHOWN = 7  # of three lines and an empty one: a mail that is read


def add_arguments(parser: CommandParser) -> None:
    """Add whether to send lost work again."""
    parser.set_defaults(store=None)
    parser.add_argument("--requeue", action="store_true", help="send the tasks of lost rows again")
    other = "with --requeue: also rows of another store, or of before this one was emptied"
    parser.add_argument("--other-store", action="store_true", help=other)
    parser.add_argument("--task", help="only this task (* and ? are wildcards)", default="*")
    older = "also find rows that have waited in source for so long (30s, 10m, 2h)"
    parser.add_argument("--source-older", type=lock_ttl, metavar="DURATION", help=older)
    add_format(parser)


def doctor(command: BaseCommand, **options: Any) -> None:
    """
    Find lost work and other problems; with --requeue, send lost work again.

    It looks for lost work, locks whose owner is gone, keys without a TTL,
    reservations whose message is gone, wrong settings, and servers that may lose
    locks: in all stores, or in that of --store.
    Without --requeue it changes nothing. --requeue sends each task with the key of
    its row alone, and is safe to do twice. A row whose run may live in another
    store is sent with --other-store, one that may be of several tasks with --task.
    Of many problems it shows the first of each kind: -v 2 shows all, as does JSON.
    Exits 1 if it finds a serious problem that --requeue did not mend.

    examples:
      manage.py locks doctor
      manage.py locks doctor --requeue --source-older 2h
      */5 * * * *  manage.py locks doctor > found || mail -s locks ops < found
    """
    aliases = [options["store"]] if options["store"] else None
    problems = diagnose(aliases, options["task"], options["source_older"])
    # The last is sent on a second word alone.
    sends = SENT if options["other_store"] else SENT[:-1]
    found = [_row(problem, sends if options["requeue"] else ()) for problem in problems]
    found.sort(key=lambda row: not row["serious"])
    if options["format"] == "json":
        command.stdout.write(as_json(found))
    else:
        shown = len(found) if options["verbosity"] > 1 else MOST_SHOWN
        command.stdout.write("\n\n".join(_some(found, shown)) or "Nothing is wrong.")
    if any(row["serious"] for row in found):
        command.stdout.flush()
        sys.exit(1)


def _some(found: Sequence[dict[str, Any]], most: int) -> Iterable[str]:
    """The problems in words. Of more than ``most``: how many there are of each kind, and the first
    of each."""
    if len(found) <= most:
        return map(_words, found)
    counts = Counter(map(_head, found))
    kinds = ([row for row in found if _head(row) == head] for head in counts)
    some = [row for rows in kinds for row in rows[: max(1, most // len(counts))]]
    said = "\n".join(f"{count:,} {head}" for head, count in counts.items())
    return [said, *map(_words, some), f"{len(found) - len(some):,} more: -v 2 shows all."]


def _head(row: dict[str, Any]) -> str:
    """A problem's kind, and whether it is a note or was sent."""
    return f"{row['kind']}{'' if row['serious'] else ' (note)'}"


def _row(problem: Problem, sends: Collection[str]) -> dict[str, Any]:
    """The problem, once its task was sent again if it is of one of these kinds."""
    row = problem.as_json() | {"requeued": None, "task_id": None}
    if isinstance(problem, LostRow) and problem.sendable and problem.kind in sends:
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
