"""``manage.py locks list``: once, or again and again."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.core.management.base import BaseCommand

from ..describe import printable
from ..exceptions import StoreUnavailable
from ..lease import LockInfo
from ..service import locks
from .live import live_view
from .output import stream_of
from .select import chosen
from .show import COLUMNS, as_json, as_lines, as_rich_table, cells_of, row_of

__all__ = ["list_locks"]

CSV_FIELDS = (
    "name", "ttl", "acquired_at", "host", "pid", "alive", "thread", "task", "task_id",
    "fence", "waiters", "renewing", "token", "store", "key",
)  # fmt: skip


def list_locks(command: BaseCommand, **options: Any) -> None:
    service = locks.using(options["store"])
    if options["watch"] is None:
        _write(command, _text(chosen(service, options), command, options))
        return
    try:
        with _screen(command, color=not options["no_color"]) as show:
            while stream_of(command.stdout).error is None:
                try:
                    text = _text(chosen(service, options), command, options)
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
        return as_csv(found)
    if not found:
        return "No locks."
    rows = [cells_of(info) for info in found]
    if command.stdout.isatty():
        table = as_rich_table(COLUMNS, rows, color=not options["no_color"])
        if table is not None:
            return table
    return as_lines(COLUMNS, rows)


def as_csv(found: Sequence[LockInfo]) -> str:
    """A line of headers and a line for each lock, as spreadsheets read them."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_FIELDS)
    for info in found:
        fields = {**info.owner.as_dict(), **row_of(info)}
        writer.writerow([_cell(fields[name]) for name in CSV_FIELDS])
    return out.getvalue()


def _cell(value: object) -> str:
    text = "" if value is None else printable(value)
    # A spreadsheet would take it for a formula, and run what a stranger wrote.
    return f"'{text}" if isinstance(value, str) and text[:1] in tuple("=+-@") else text
