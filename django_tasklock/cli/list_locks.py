"""``manage.py locks list``: once, or repeated with ``--watch``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from .._engine.service import locks
from .._values.describe import printable
from .._values.ordering import ORDERS
from ..exceptions import StoreUnavailable
from ..operators.reservations import QueuedJob
from . import list_queued
from .columns import as_table
from .list_queued import chosen_jobs
from .output import stream_of
from .parsing import count, pause, seconds
from .select import streamed
from .streaming import LOCK_CSV_FIELDS, as_csv, pieces_of
from .tables import as_json
from .verb import Verb
from .watch import live_view

__all__ = ["LOCK_CSV_FIELDS", "VERB", "list_locks"]

WATCH_PAUSE_SECONDS = 2.0


def add_arguments(parser: CommandParser) -> None:
    """Add which locks to list, in which order, and how often."""
    parser.add_argument(
        "prefix",
        nargs="?",
        default="",
        metavar="PREFIX",
        help="only locks whose name begins with it",
    )
    parser.add_argument("--task", metavar="TASK", help="only locks of this task (with * and ?)")
    parser.add_argument(
        "--owner",
        metavar="OWNER",
        help="only locks of this host, host:pid, pid or operator (with * and ?)",
    )
    parser.add_argument(
        "--expiring",
        type=seconds,
        metavar="SECONDS",
        help="only locks that expire within so many seconds",
    )
    parser.add_argument(
        "--sort",
        choices=ORDERS,
        default="ttl",
        help="how to sort (default: ttl, the soonest to expire first); -age: the oldest first",
    )
    parser.add_argument("--limit", type=count, metavar="N", help="show at most N locks")
    parser.add_argument(
        "--watch",
        type=pause,
        nargs="?",
        const=WATCH_PAUSE_SECONDS,
        metavar="SECONDS",
        help="repeat every SECONDS (2, if not given) until Ctrl-C",
    )
    parser.add_argument(
        "--scan",
        action="store_true",
        help="walk through the whole store: also finds keys that no lease set",
    )
    parser.add_argument(
        "--queued",
        action="store_true",
        help="the jobs that are reserved for a message in the queue (unique_while) instead of "
        "locks: further calls of them are duplicates",
    )


def list_locks(command: BaseCommand, **options: Any) -> None:
    """Print the chosen locks, or reservations; with ``--watch`` again and again until Ctrl-C.

    Raises `ListingNotSupported`, and `StoreUnavailable` unless it watches.
    """
    service = locks.using(options["store"])

    def look() -> Iterator[str]:
        if options["queued"]:
            text = _text_of_queued(chosen_jobs(service.store, options), command, options)
            return iter([text.removesuffix("\n") + "\n"])
        return pieces_of(streamed(service, options), command, options)

    if options["watch"] is None:
        for piece in look():
            command.stdout.write(piece, ending="")
            command.stdout.flush()
            if stream_of(command.stdout).error is not None:
                return
        return
    try:
        with _screen(command, color=not options["no_color"]) as show:
            while stream_of(command.stdout).error is None:
                try:
                    text = "".join(look())
                except StoreUnavailable as error:
                    text = printable(error)  # the next look may have an answer
                show(text)
                time.sleep(options["watch"])
    except KeyboardInterrupt:
        pass


@contextmanager
def _screen(command: BaseCommand, *, color: bool) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a text: on a terminal it replaces the text before."""
    live = live_view(command.stdout, color=color) if command.stdout.isatty() else None
    if live is not None:
        with live as show:
            yield show
        return

    def show_below(text: str) -> None:
        _write(command, text)
        command.stdout.flush()

    yield show_below


def _write(command: BaseCommand, text: str) -> None:
    command.stdout.write(text, ending="" if text.endswith("\n") else "\n")


def _text_of_queued(
    found: Sequence[QueuedJob], command: BaseCommand, options: dict[str, Any]
) -> str:
    if options["format"] == "json":
        return as_json(job.as_json() for job in found)
    if options["format"] == "csv":
        return as_csv(list_queued.QUEUED_CSV_FIELDS, (job.as_json() for job in found))
    if not found:
        return list_queued.NONE
    return as_table(
        list_queued.QUEUED_COLUMNS, [list_queued.cells_of(job) for job in found], command, options
    )


VERB = Verb(
    "list",
    "Show the live locks, the soonest to expire first.",
    "  manage.py locks list\n"
    "  manage.py locks list video:\n"
    "  manage.py locks list --task 'videos.*' --expiring 30 --watch\n"
    "  manage.py locks list --queued\n"
    "  manage.py locks list --format json | jq -r '.[].name'",
    add_arguments,
    list_locks,
    ("table", "json", "csv"),
)
