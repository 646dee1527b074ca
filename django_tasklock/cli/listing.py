"""``manage.py locks list``: once, or again and again."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from django.core.management.base import BaseCommand

from ..describe import printable
from ..exceptions import StoreUnavailable
from ..lease import LockInfo
from ..queued import QueuedJob
from ..service import locks
from . import queued
from .live import live_view
from .output import stream_of
from .queued import chosen_jobs
from .select import chosen
from .show import COLUMNS, as_json, as_lines, as_rich_table, cells_of, row_of

__all__ = ["list_locks"]

CSV_FIELDS = (
    "name", "ttl", "acquired_at", "host", "pid", "alive", "thread", "task", "task_id",
    "fence", "waiters", "renewing", "token", "store", "key",
)  # fmt: skip


def list_locks(command: BaseCommand, **options: Any) -> None:
    service = locks.using(options["store"])

    def look() -> str:
        if options["queued"]:
            return _text_of_queued(chosen_jobs(service.store, options), command, options)
        return _text(chosen(service, options), command, options)

    if options["watch"] is None:
        _write(command, look())
        return
    try:
        with _screen(command, color=not options["no_color"]) as show:
            while stream_of(command.stdout).error is None:
                try:
                    text = look()
                except StoreUnavailable as error:
                    text = printable(error)  # the store may come back
                show(text)
                time.sleep(options["watch"])
    except KeyboardInterrupt:
        pass


@contextmanager
def _screen(command: BaseCommand, *, color: bool) -> Iterator[Callable[[str], None]]:
    """What shows a text: on a terminal in the place of the one before, else below it."""
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


def _text(found: Sequence[LockInfo], command: BaseCommand, options: dict[str, Any]) -> str:
    if options["format"] == "json":
        return as_json(map(row_of, found))
    if options["format"] == "csv":
        return _csv(CSV_FIELDS, ({**info.owner.as_dict(), **row_of(info)} for info in found))
    if not found:
        return "No locks."
    return _table(COLUMNS, [cells_of(info) for info in found], command, options)


def _text_of_queued(
    found: Sequence[QueuedJob], command: BaseCommand, options: dict[str, Any]
) -> str:
    if options["format"] == "json":
        return as_json(job.as_json() for job in found)
    if options["format"] == "csv":
        return _csv(queued.CSV_FIELDS, (job.as_json() for job in found))
    if not found:
        return queued.NONE
    return _table(queued.COLUMNS, [queued.cells_of(job) for job in found], command, options)


def _table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    command: BaseCommand,
    options: dict[str, Any],
) -> str:
    if command.stdout.isatty():
        table = as_rich_table(headers, rows, color=not options["no_color"])
        if table is not None:
            return table
    return as_lines(headers, rows)


def _csv(headers: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """A line of headers and a line for each row, as spreadsheets read them."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(headers)
    for row in rows:
        writer.writerow([_cell(row[name]) for name in headers])
    return out.getvalue()


def _cell(value: object) -> str:
    text = "" if value is None else printable(value)
    # A spreadsheet would take it for a formula, and run what a stranger wrote.
    return f"'{text}" if isinstance(value, str) and text[:1] in tuple("=+-@") else text
