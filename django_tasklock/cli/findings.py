"""``manage.py locks doctor``: what is wrong, and lost work sent again."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from .._values.describe import printable
from ..operators.doctor import Problem, Sent, diagnose, requeue
from .tables import as_json, as_lines
from .verb import Verb

__all__ = ["VERB", "doctor"]

HEADERS = ("PROBLEM", "WHAT", "WHY", "WHAT TO DO")
SENT = "sent again"
SENT_BEFORE = "sent a moment ago"
MENDED = frozenset({SENT, SENT_BEFORE})
"""what became of a row for which nothing is left to do"""
NOT_SENT = None, None


def add_arguments(parser: CommandParser) -> None:
    """Add whether to send lost work again."""
    parser.add_argument(
        "--requeue",
        action="store_true",
        help="send the tasks of lost rows again; it is safe to do this twice",
    )


def doctor(command: BaseCommand, **options: Any) -> None:
    """Print all problems; with ``--requeue`` send the tasks of lost rows again.

    Raises `CommandError` if a problem is serious. A lost row that was sent again is none any more.
    """
    found: list[Problem] = []
    done: dict[int, tuple[str, Sent | None]] = {}
    for problem in diagnose([options["store"]] if options["store"] else None):
        found.append(problem)
        if options["requeue"] and problem.kind == "lost work":
            done[len(found) - 1] = _send(problem)
    if options["format"] == "json":
        command.stdout.write(
            as_json(_as_json(problem, *done.get(at, NOT_SENT)) for at, problem in enumerate(found))
        )
    elif found:
        command.stdout.write(
            as_lines(
                HEADERS,
                [_cells(problem, *done.get(at, NOT_SENT)) for at, problem in enumerate(found)],
            )
        )
    else:
        command.stdout.write("Nothing is wrong.")
    serious = sum(
        problem.serious and done.get(at, NOT_SENT)[0] not in MENDED
        for at, problem in enumerate(found)
    )
    if serious:
        raise CommandError(f"{serious} {'problem' if serious == 1 else 'problems'}.")


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
    "Find lost work, locks whose owner is gone, keys without a TTL, and servers that may "
    "lose locks. Exits 1 if a problem is serious and was not mended by --requeue.",
    "  manage.py locks doctor\n"
    "  manage.py locks doctor --requeue\n"
    "  */5 * * * *  manage.py locks doctor --format json || mail -s locks ops",
    add_arguments,
    doctor,
    all_stores=True,
)
