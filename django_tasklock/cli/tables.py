"""Tables for people, and rows for programs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from datetime import datetime
from math import inf
from typing import Any, TypeAlias
from unicodedata import east_asian_width

from django.core.management.base import BaseCommand

from .._values.lock_info import LockInfo
from .._values.owner import task_words
from .._values.words import age, duration, printable
from ..operators.holders import Holder, holder_of, who

Row: TypeAlias = dict[str, Any]
# Of the lease, beside what `LockInfo.as_json` says of any lock.
LEASE = ("fence", "waiters", "longest_wait", "renewing", "held_by", "reason", "slot", "cooling")
LONG = ("NAME", "TASK", "BY", "REASON")  # columns


def write_rows(
    command: BaseCommand, form: str, rows: Iterable[Row], cells: Iterable[Row], none: str
) -> None:
    """Write the ``rows`` as ``json``, or their ``cells`` as a table; ``none`` for no cells."""
    if form == "json":
        command.stdout.write(as_json(rows))
    elif table := list(cells):
        write_table(command, table)
    else:
        command.stdout.write(none)


def write_table(command: BaseCommand, cells: list[Row]) -> None:
    """Write aligned lines of printable characters, without the columns that are empty in every row.
    Each row has its cells by the heads of their columns.

    On a terminal that is too narrow, what may be long is on a line above the rest. Nothing is cut.
    """
    words = [["" if cell is None else printable(cell) for cell in row.values()] for row in cells]
    first, *others = zip(cells[0], *words, strict=True)
    columns = [first, *(column for column in others if any(column[1:]))]
    room = shutil.get_terminal_size().columns if command.stdout.isatty() else inf
    names: list[tuple[str, ...]] = []
    if sum(max(map(_width, column)) + 2 for column in columns) - 2 > room:
        names = [column for column in columns if column[0] in LONG]
        columns = [column for column in columns if column[0] not in LONG]
    widths = [max(map(_width, column)) for column in columns]
    for at, row in enumerate(zip(*columns, strict=True)):
        if names:
            command.stdout.write("  ".join(filter(None, (column[at] for column in names))))
        # The last column needs no padding.
        line = "  ".join(map(_padded, row, widths)).rstrip()
        command.stdout.write(f"  {line}" if names else line)


def write_fields(command: BaseCommand, fields: Mapping[str, object]) -> None:
    """Write the fields that have a value, one on each line."""
    known = {label: value for label, value in fields.items() if value not in (None, "", {})}
    width = max(map(len, known)) + 2
    for label, value in known.items():
        if isinstance(value, Mapping):
            value = ", ".join(f"{name}={each}" for name, each in value.items())
        command.stdout.write(f"{label + ':':<{width}}{printable(value)}")


def as_json(rows: Iterable[Row]) -> str:
    """Return a JSON array, one row on each line; it is ASCII, and so safe for a terminal."""
    lines = ",\n ".join(map(json.dumps, rows))
    return f"[{lines}]"


def lock_cells(info: LockInfo) -> Row:
    """Return the row of a lock."""
    holder, wait = holder_of(info), info.longest_wait
    waited = "" if wait is None else f", {duration(wait)}"
    return {
        "NAME": info.name,
        "TTL": "never" if info.ttl is None else duration(info.ttl),
        "HELD BY": who(info.owner),
        # What HELD BY says already is not said twice.
        "STATE": None if holder is Holder.FOREIGN else holder.value,
        "WAITING": f"{info.waiters}{waited}" if info.waiters else None,
        "TASK": task_words(info.owner),
        "AGE": since(info.acquired_at),
    }


def json_row(info: LockInfo) -> Row:
    """Return a lock as JSON-able values: the table's columns, and more of the lease and owner."""
    more = {field: getattr(info, field) for field in LEASE}
    return info.as_json() | more | {"alive": info.owner.alive()}


def since(moment: datetime | None) -> str:
    """Return how long ago that was; "" for None."""
    return "" if moment is None else duration(age(moment))


def _width(words: str) -> int:
    """How many cells of a terminal the words take: an East Asian character takes two."""
    wide = "" if words.isascii() else words
    return len(words) + sum(east_asian_width(char) in "WF" for char in wide)


def _padded(words: str, width: int) -> str:
    """The words padded to ``width`` cells; "-" for none."""
    words = words or "-"
    return words + " " * (width - _width(words))
