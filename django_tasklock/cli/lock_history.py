"""``manage.py locks history``: what happened to the locks, once or as it comes."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from .._engine.service import locks
from .._values.describe import age, duration, printable
from .._values.event import Event
from .._values.owner import task_words
from ..exceptions import StoreUnavailable
from ..operators.holders import who
from .tables import as_json, text, write_table
from .verb import Verb, lock_name, number, task_id

__all__ = ["VERB", "show_history"]

COLUMNS = ("AGE", "WHAT", "NAME", "TASK", "WHO", "BY", "SECONDS", "REASON")
DEFAULT_EVENTS = 100
FOLLOW_PAUSE_SECONDS = 1.0
MOST_FOLLOWED = 1000  # of one look; what more came since the last one is not shown


def add_arguments(parser: CommandParser) -> None:
    """Add which events to show, and whether to wait for more."""
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="only of this lock, and of its permits"
    )
    parser.add_argument(
        "--task-id",
        type=task_id,
        metavar="ID",
        help="only what happened to this task: why it was skipped, and who held the lock",
    )
    parser.add_argument(
        "--limit",
        type=number,
        default=DEFAULT_EVENTS,
        metavar="N",
        help="show the newest N events (default: %(default)s)",
    )
    parser.add_argument(
        "--follow",
        action="store_true",
        help="the oldest of them first, and then new ones as they come, until Ctrl-C",
    )


def show_history(command: BaseCommand, **options: Any) -> None:
    """Print the events, the newest first; with ``--follow`` the oldest first, and then new ones.

    Raises `ListingNotSupported`, and `StoreUnavailable` unless it follows.
    """
    name = None if options["name"] is None else lock_name(options["name"])
    ask = partial(locks.using(options["store"]).history, name, options["task_id"])
    if not options["follow"]:
        _write(command, ask(limit=options["limit"]), options["format"])
        return
    seen: set[Event] = set()
    limit = options["limit"]
    try:
        while True:
            try:
                found = ask(limit=limit)
            except StoreUnavailable as error:
                command.stderr.write(f"{printable(error)}; waiting for it")
            else:
                # An event of the same moment, and of the same words, is the same event.
                for event in reversed([event for event in found if event not in seen]):
                    _write_new(command, event, options["format"])
                command.stdout.flush()
                seen, limit = set(found) | (seen if len(found) < limit else set()), MOST_FOLLOWED
            time.sleep(FOLLOW_PAUSE_SECONDS)
    except KeyboardInterrupt:
        pass


def _write(command: BaseCommand, found: Sequence[Event], form: str) -> None:
    if form == "json":
        command.stdout.write(as_json(event.as_json() for event in found))
    elif found:
        rows = [(duration(age(event.at)), *_cells(event)) for event in found]
        write_table(command, COLUMNS, rows)
    else:
        command.stdout.write("No events.")


def _write_new(command: BaseCommand, event: Event, form: str) -> None:
    if form == "json":
        command.stdout.write(json.dumps(event.as_json()))
    else:
        when = event.at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        command.stdout.write("  ".join(filter(None, (when, *_cells(event)))))


def _cells(event: Event) -> Sequence[str]:
    """All cells of a row but the first one; every cell is safe for a terminal."""
    by, why, holder = event.by, event.reason, event.holder
    if holder is not None:
        # Of a message that has not begun to run, only the task is known.
        place = who(holder) if holder.host or not holder.task else None
        by = " ".join(filter(None, (place, task_words(holder))))
        why = ": ".join(filter(None, (why, holder.reason)))
    times = "" if event.count == 1 else f" \N{MULTIPLICATION SIGN} {event.count}"
    return (
        event.kind + times,
        printable(event.name),
        text(task_words(event.owner)),
        "" if event.name == "*" else who(event.owner),
        text(by),
        "" if event.seconds is None else duration(event.seconds),
        text(why),
    )


VERB = Verb(
    "history",
    "Show what happened to the locks: who was refused or skipped, lost a lock, or cleared one.",
    (
        "manage.py locks history video:123 --limit 20",
        "manage.py locks history --task-id 0f0d6b0e-6b3e-4a67-9a4c-2f7d8d1f4f55",
        "manage.py locks history --follow",
    ),
    add_arguments,
    show_history,
)
