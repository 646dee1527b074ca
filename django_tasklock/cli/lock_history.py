"""``manage.py locks history``: what happened to the locks, once or as it comes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from .._engine.service import locks
from .._values.describe import age, duration, place, printable
from .._values.event import Event
from .._values.owner import task_words
from ..exceptions import StoreUnavailable
from .columns import NOTHING, as_table, lines_of, widths_of
from .most_contended import show_most_contended
from .output import stream_of
from .parsing import count, lock_name, task_id
from .tables import as_json
from .verb import Verb

__all__ = ["HISTORY_COLUMNS", "VERB", "show_history"]

HISTORY_COLUMNS = ("AGE", "WHAT", "NAME", "WHO", "TASK", "BY", "SECONDS", "REASON")
DEFAULT_EVENTS = 100
FOLLOW_PAUSE_SECONDS = 1.0
FOLLOWED_EVENTS = 100
MOST_FOLLOWED_EVENTS = 10_000
"""of one look; what more came since the last one is not shown"""
NONE = "No events."


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
        type=count,
        default=DEFAULT_EVENTS,
        metavar="N",
        help="show the newest N events (default: %(default)s)",
    )
    parser.add_argument(
        "--follow",
        action="store_true",
        help="the oldest of them first, and then new ones as they come, until Ctrl-C",
    )
    parser.add_argument(
        "--top",
        action="store_true",
        help="instead of events, the locks with most refusals and long waits of the last hour",
    )


def show_history(command: BaseCommand, **options: Any) -> None:
    """Print the events, the newest first; with ``--follow`` the oldest first, and then new ones.

    With ``--top`` the locks with most of them. Raises `ListingNotSupported`, and
    `StoreUnavailable` unless it follows.
    """
    if options["top"]:
        show_most_contended(command, **options)
        return
    name = None if options["name"] is None else lock_name(options["name"])
    ask = partial(locks.using(options["store"]).history, name, options["task_id"])
    if options["follow"]:
        _follow(command, ask, options)
        return
    found = ask(limit=options["limit"])
    if options["format"] == "json":
        command.stdout.write(as_json(event.as_json() for event in found))
    elif not found:
        command.stdout.write(NONE)
    else:
        rows = [(duration(age(event.at)), *_cells(event)) for event in found]
        command.stdout.write(as_table(HISTORY_COLUMNS, rows, command, options))


def _follow(
    command: BaseCommand, ask: Callable[..., Sequence[Event]], options: dict[str, Any]
) -> None:
    show = _json_lines(command) if options["format"] == "json" else _growing_table(command)
    new: Sequence[Event]
    seen: Sequence[Event] | None = None
    silent = False
    try:
        while stream_of(command.stdout).error is None:
            try:
                if seen is None:
                    seen = ask(limit=max(FOLLOWED_EVENTS, options["limit"]))
                    new = seen[: options["limit"]]
                else:
                    new, seen = _new(ask, seen)
                silent = False
            except StoreUnavailable as error:
                if not silent:  # Once for each outage.
                    command.stderr.write(f"{printable(error)}; waiting for it")
                    command.stderr.flush()
                new, silent = [], True
            for event in reversed(new):
                show(event)
            command.stdout.flush()
            time.sleep(FOLLOW_PAUSE_SECONDS)
    except KeyboardInterrupt:
        pass


def _new(
    ask: Callable[..., Sequence[Event]], seen: Sequence[Event]
) -> tuple[Sequence[Event], Sequence[Event]]:
    """The events that came after those that were ``seen``, and all that were looked at."""
    limit = FOLLOWED_EVENTS
    while True:
        found = ask(limit=limit)
        # Events have no number, and two of them may be equal: those that were seen are a part of
        # the list, which begins where the new ones end.
        for at in range(len(found)):
            there = found[at : at + len(seen)]
            # Few events are all that there were: nothing comes after them.
            at_end = len(seen) >= FOLLOWED_EVENTS or at + len(seen) >= len(found)
            if there and at_end and there == list(seen[: len(there)]):
                return found[:at], found
        if len(found) < limit or limit >= MOST_FOLLOWED_EVENTS:
            return found, found
        limit *= 10


def _json_lines(command: BaseCommand) -> Callable[[Event], None]:
    return lambda event: command.stdout.write(json.dumps(event.as_json()))


def _growing_table(command: BaseCommand) -> Callable[[Event], None]:
    """Lines whose columns become as wide as what was in them so far."""
    headers = ("TIME", *HISTORY_COLUMNS[1:])
    widths = [len("2026-01-01 00:00:00"), len("taken over"), *map(len, headers[2:])]

    def line(cells: Sequence[str]) -> str:
        widths[:] = map(max, widths, widths_of([cells]))
        return lines_of([cells], widths)

    def show(event: Event) -> None:
        when = event.at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        command.stdout.write(line((when, *_cells(event))))

    command.stdout.write(line(headers))
    return show


def _cells(event: Event) -> tuple[str, ...]:
    """All cells of a row but the first one; every cell is safe for a terminal, and none empty."""
    owner, by, why, holder = event.owner, event.by, event.reason, event.holder
    if holder is not None:
        by = " ".join(filter(None, (place(holder), task_words(holder)))) or "another program"
        why = ": ".join(filter(None, (why, holder.reason)))
    task = task_words(owner)
    times = "" if event.count == 1 else f" \N{MULTIPLICATION SIGN} {event.count}"
    return (
        event.kind + times,
        printable(event.name),
        place(owner) or NOTHING,
        printable(task) if task else NOTHING,
        printable(by) if by else NOTHING,
        NOTHING if event.seconds is None else duration(event.seconds),
        printable(why) if why else NOTHING,
    )


VERB = Verb(
    "history",
    "Show what happened to the locks: who was refused or skipped, lost a lock, or cleared one.",
    "  manage.py locks history\n"
    "  manage.py locks history video:123 --limit 20\n"
    "  manage.py locks history --task-id 0f0d6b0e-6b3e-4a67-9a4c-2f7d8d1f4f55\n"
    "  manage.py locks history --follow\n"
    "  manage.py locks history --top --limit 20\n"
    "  manage.py locks history --format json | jq -r '.[].kind' | sort | uniq -c",
    add_arguments,
    show_history,
)
