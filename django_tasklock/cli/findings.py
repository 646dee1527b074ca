"""``manage.py locks doctor``: what is wrong, and lost work sent again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from .._values.describe import printable
from ..operators.doctor import Problem, Sent, diagnose, requeue
from .columns import lines_of, widths_of
from .streaming import json_pieces, line_pieces
from .verb import Verb

__all__ = ["VERB", "doctor"]

HEADERS = ("PROBLEM", "WHAT", "WHY", "WHAT TO DO")
SENT = "sent again"
SENT_BEFORE = "sent a moment ago"
MENDED = frozenset({SENT, SENT_BEFORE})
"""what became of a row for which nothing is left to do"""
NOT_SENT = None, None
NOTHING_WRONG = "Nothing is wrong.\n"
Printed = tuple[Problem, "str | None", "Sent | None"]
"""a problem, what became of its row, and the message that was sent for it"""


def add_arguments(parser: CommandParser) -> None:
    """Add whether to send lost work again."""
    parser.add_argument(
        "--requeue",
        action="store_true",
        help="send the tasks of lost rows again; it is safe to do this twice",
    )


def doctor(command: BaseCommand, **options: Any) -> None:
    """Print all problems while they are found; with ``--requeue`` send the tasks of lost rows
    again. Then say on standard error how many there are of each kind.

    Raises `CommandError` if a problem is serious. A lost row that was sent again is none any more.
    """
    counts: Counter[tuple[str, bool]] = Counter()

    def found() -> Iterator[Printed]:
        for problem in diagnose([options["store"]] if options["store"] else None):
            done, sent = NOT_SENT
            if options["requeue"] and problem.sendable:
                done, sent = _send(problem)
            counts[problem.kind, problem.serious and done not in MENDED] += 1
            yield problem, done, sent

    if options["format"] == "json":
        pieces = json_pieces(_as_json(*each) for each in found())
    else:
        pieces = line_pieces(HEADERS, (_cells(*each) for each in found()), NOTHING_WRONG)
    for piece in pieces:
        command.stdout.write(piece, ending="")
    if options["format"] != "json" and sum(counts.values()) > 1:
        command.stdout.flush()
        command.stderr.write(_summary(counts), lambda text: text)
    serious = sum(count for (_, is_serious), count in counts.items() if is_serious)
    if serious:
        raise CommandError(f"{serious:,} {'problem' if serious == 1 else 'problems'}.")


def _summary(counts: Mapping[tuple[str, bool], int]) -> str:
    """How many problems of each kind there are, the serious ones first."""
    rows = [
        (kind, f"{count:,}", "serious" if serious else "note")
        for (kind, serious), count in sorted(counts.items(), key=lambda each: not each[0][1])
    ]
    return lines_of(rows, widths_of(rows))


def _send(problem: Problem) -> tuple[str, Sent | None]:
    try:
        sent = requeue(problem)
        return (SENT if sent else SENT_BEFORE), sent
    except TypeError as error:
        return f"cannot be sent from the row alone: {error}", None
    except Exception as error:
        # For example, the broker does not answer. The other rows are still to be reported.
        return f"could not be sent: {error}", None


def _as_json(problem: Problem, done: str | None, sent: Sent | None) -> dict[str, Any]:
    return problem.as_json() | {"requeued": done, "task_id": sent.task_id if sent else None}


def _cells(problem: Problem, done: str | None, sent: Sent | None) -> tuple[str, ...]:
    if sent is not None:
        done = f"{done}: {sent.task}[{sent.task_id or 'id not known'}]"
    hint = done or problem.hint or "-"
    return tuple(map(printable, (problem.kind, problem.what, problem.message, hint)))


VERB = Verb(
    "doctor",
    "Find lost work, deadlocks, locks whose owner is gone, keys without a TTL, and servers that "
    "may lose locks. Exits 1 if a problem is serious and was not mended by --requeue.",
    "  manage.py locks doctor\n"
    "  manage.py locks doctor --requeue\n"
    "  */5 * * * *  manage.py locks doctor --format json || mail -s locks ops",
    add_arguments,
    doctor,
    all_stores=True,
)
