"""``manage.py locks history``: what happened, and what happens now."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from .._engine.service import locks
from .._values.durations import duration
from .._values.event import Event
from .._values.owner import task_words
from .._values.printable import printable
from ..exceptions import StoreUnavailable
from ..operators.holders import who
from .arguments import add_format, lock_name, number
from .tables import Row, since, write_rows

FOLLOW_PAUSE_SECONDS = 1.0
MOST_FOLLOWED = 1000  # of one look; what more came since the last one is not shown


def add_arguments(parser: CommandParser) -> None:
    """Add which events to show, and whether to wait for more."""
    parser.add_argument("name", nargs="?", type=lock_name, metavar="NAME")
    parser.add_argument("--task-id", metavar="ID", help="only events of the task with this id")
    parser.add_argument("--limit", type=number, default=100, metavar="N", help="(default: 100)")
    parser.add_argument("--follow", action="store_true", help="go on with new events, until Ctrl-C")
    add_format(parser)


def show_history(command: BaseCommand, **options: Any) -> None:
    """
    Show what happened to the locks: who was refused or skipped, who cleared one.

    The newest event comes first. --task-id says why that task was skipped, and who
    held the lock. WHO is the one to whom it happened; BY held the lock, or did it.
    With --follow the oldest event comes first, and then new ones as they happen.

    examples:
      manage.py locks history video:123 --limit 20
      manage.py locks history --task-id 0f0d6b0e-6b3e-4a67-9a4c-2f7d8d1f4f55
      manage.py locks history --follow
    """
    ask = partial(locks.using(options["store"]).history, options["name"], options["task_id"])
    limit, form = options["limit"], options["format"]
    if options["follow"]:
        _follow(command, ask, limit, form == "json")
    found = ask(limit=limit)
    rows, cells = map(Event.as_json, found), map(_event_cells, found)
    write_rows(command, form, rows, cells, "No events.")


def _follow(command: BaseCommand, ask: Any, limit: int, as_lines: bool) -> None:
    seen: set[Event] = set()
    while True:
        try:
            found = ask(limit=limit)
        except StoreUnavailable as error:
            command.stderr.write(f"waiting for the store: {printable(error)}")
        else:
            # An event of the same moment, and of the same words, is the same event.
            new = next((at for at, event in enumerate(found) if event in seen), len(found))
            for event in reversed(found[:new]):
                command.stdout.write(
                    json.dumps(event.as_json()) if as_lines else _event_line(event)
                )
            command.stdout.flush()
            seen, limit = set(found), MOST_FOLLOWED
        time.sleep(FOLLOW_PAUSE_SECONDS)


def _event_line(event: Event) -> str:
    when = event.at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    cells = _event_cells(event) | {"AGE": when}
    return printable("  ".join(filter(None, cells.values())))


def _event_cells(event: Event) -> Row:
    by, why, holder = event.by, event.reason, event.holder
    if holder is not None:
        # Of a message that has not begun to run, only the task is known.
        place = who(holder) if holder.host or not holder.task else None
        by = " ".join(filter(None, (place, task_words(holder))))
        why = ": ".join(filter(None, (why, holder.reason)))
    return {
        "AGE": since(event.at),
        "WHAT": event.kind
        + ("" if event.count == 1 else f" \N{MULTIPLICATION SIGN} {event.count}"),
        "NAME": event.name,
        "TASK": task_words(event.owner),
        "WHO": None if event.name == "*" else who(event.owner),
        "BY": by,
        "SECONDS": None if event.seconds is None else duration(event.seconds),
        "REASON": why,
    }
