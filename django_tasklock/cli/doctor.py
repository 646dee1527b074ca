"""``manage.py locks doctor``: what is wrong, and lost work sent again."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from django.core.management.base import BaseCommand, CommandParser

from .._values.describe import printable
from ..operators.doctor import Problem, diagnose
from ..operators.lost_work import Sent, requeue
from .tables import as_json
from .verb import Verb

__all__ = ["VERB", "doctor"]

SENT = "sent again"
SENT_BEFORE = "sent a moment ago"


class Finding(NamedTuple):
    """A problem, what became of its row, and the message that was sent for it."""

    problem: Problem
    done: str | None
    sent: Sent | None

    @property
    def serious(self) -> bool:
        """Whether it still is: a lost row that was sent again is none any more."""
        return self.problem.serious and self.done not in (SENT, SENT_BEFORE)


def add_arguments(parser: CommandParser) -> None:
    """Add whether to send lost work again."""
    parser.add_argument(
        "--requeue",
        action="store_true",
        help="send the tasks of lost rows again; it is safe to do this twice",
    )


def doctor(command: BaseCommand, **options: Any) -> None:
    """Print all problems, the serious ones first; with ``--requeue`` send the tasks of lost rows
    again. Exits with 1 if a problem is serious."""
    found = [
        Finding(problem, *_send(problem))
        if options["requeue"] and problem.sendable
        else Finding(problem, None, None)
        for problem in diagnose([options["store"]] if options["store"] else None)
    ]
    found.sort(key=lambda finding: not finding.serious)
    if options["format"] == "json":
        command.stdout.write(as_json(map(_as_json, found)))
    elif found:
        command.stdout.write("\n\n".join(map(_words, found)))
    else:
        command.stdout.write("Nothing is wrong.")
    if any(finding.serious for finding in found):
        command.stdout.flush()
        sys.exit(1)


def _send(problem: Problem) -> tuple[str, Sent | None]:
    try:
        sent = requeue(problem)
        return (SENT if sent else SENT_BEFORE), sent
    except TypeError as error:
        return f"cannot be sent from the row alone: {error}", None
    except Exception as error:
        # For example, the broker does not answer. The other rows are still to be reported.
        return f"could not be sent: {error}", None


def _as_json(finding: Finding) -> dict[str, Any]:
    sent = finding.sent
    more = {"requeued": finding.done, "task_id": sent.task_id if sent else None}
    return finding.problem.as_json() | more


def _words(finding: Finding) -> str:
    """Some lines: what it is about, why it is wrong, and what to do or what was done."""
    problem, done, sent = finding
    if sent is not None:
        done = f"{done}: {sent.task}[{sent.task_id or 'id not known'}]"
    note = "" if finding.serious else " (note)"
    lines = (f"{problem.kind}{note}: {problem.what}", problem.message, done or problem.hint)
    return "\n    ".join(printable(line) for line in lines if line)


VERB = Verb(
    "doctor",
    "Find lost work, locks whose owner is gone, keys without a TTL, and servers that may lose "
    "locks. Exits 1 if a problem is serious and was not mended by --requeue.",
    (
        "manage.py locks doctor",
        "manage.py locks doctor --requeue",
        "*/5 * * * *  manage.py locks doctor --format json || mail -s locks ops",
    ),
    add_arguments,
    doctor,
    all_stores=True,
)
