"""``manage.py locks doctor``: what is wrong, and lost work sent again."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ..describe import printable
from ..doctor import Problem, diagnose, requeue
from .show import as_json, as_lines

__all__ = ["doctor"]

HEADERS = ("PROBLEM", "WHAT", "WHY", "WHAT TO DO")


def doctor(command: BaseCommand, **options: Any) -> None:
    """Exits 1 when anything is wrong that is serious."""
    found, done = [], {}
    for problem in diagnose([options["store"]] if options["store"] else None):
        found.append(problem)
        if options["requeue"] and problem.kind == "lost work":
            done[len(found) - 1] = _send(problem)
    if options["format"] == "json":
        rows = (problem.as_json() | {"requeued": done.get(at)} for at, problem in enumerate(found))
        command.stdout.write(as_json(rows))
    elif found:
        command.stdout.write(
            as_lines(HEADERS, [_cells(problem, done.get(at)) for at, problem in enumerate(found)])
        )
    else:
        command.stdout.write("Nothing is wrong.")
    serious = sum(problem.serious for problem in found)
    if serious:
        raise CommandError(f"{serious} {'problem' if serious == 1 else 'problems'}.")


def _send(problem: Problem) -> str:
    try:
        return "sent again" if requeue(problem) else "sent a moment ago"
    except TypeError as error:
        return f"cannot be sent from the row alone: {error}"
    except Exception as error:
        # A broker, say, that does not answer: the other rows are still to be told of.
        return f"could not be sent: {error}"


def _cells(problem: Problem, done: str | None) -> tuple[str, ...]:
    hint = done or problem.hint or "-"
    return tuple(map(printable, (problem.kind, problem.what, problem.message, hint)))
