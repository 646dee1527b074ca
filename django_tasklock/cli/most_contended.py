"""``manage.py locks history --top``: the locks that were most wanted in the last hour."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from .._engine.service import locks
from .._values.describe import duration, place, printable
from .._values.owner import task_words
from ..operators.contention import EVENTS_READ, Contended, contended, past_hour
from .columns import NOTHING, as_table
from .tables import as_json

__all__ = ["CONTENTION_COLUMNS", "show_most_contended"]

CONTENTION_COLUMNS = (
    "NAME", "REFUSED", "WAITED", "LONGEST", "LOST", "CLEARED", "LAST HOLDER", "TASK",
)  # fmt: skip
NONE = "Nobody was refused a lock, or waited long for one, in the last hour."


def show_most_contended(command: BaseCommand, **options: Any) -> None:
    """Print the locks with most refusals and long waits, and from when on they are known.

    Raises `CommandError` for options that say which events to show, `ListingNotSupported`, and
    `StoreUnavailable`.
    """
    if options["name"] is not None or options["follow"]:
        raise CommandError("--top counts the events of all locks: it takes no NAME, nor --follow.")
    past = past_hour(locks.using(options["store"]))
    rows = contended(past.events)[: options["limit"]]
    reaches = None if past.reaches is None else past.reaches.astimezone()
    if options["format"] == "json":
        command.stdout.write(as_json(row.as_json() for row in rows))
    elif not rows:
        command.stdout.write(NONE)
    else:
        cells = [_cells(row) for row in rows]
        command.stdout.write(as_table(CONTENTION_COLUMNS, cells, command, options))
    if reaches is not None:
        # Not in the table: a program that reads it finds rows alone on standard output.
        command.stderr.write(
            f"The oldest of at most {EVENTS_READ} events that were read is of {reaches:%H:%M:%S}."
        )


def _cells(row: Contended) -> tuple[str, ...]:
    """The cells of a row; every cell is safe for a terminal, and none empty."""
    last = row.last
    task = None if last is None else task_words(last)
    return (
        printable(row.name),
        str(row.refused),
        str(row.waited),
        duration(row.longest),
        str(row.lost),
        str(row.cleared),
        (place(last) if last else "") or NOTHING,
        printable(task) if task else NOTHING,
    )
