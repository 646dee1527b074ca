"""Printing locks while they are read: the first lines come before the last locks are known."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from django.core.management.base import BaseCommand

from .._values.describe import printable
from .._values.liveness import Liveness
from .._values.lock_info import LockInfo
from .columns import NOTHING, as_rich_table, lines_of, widths_of, without
from .tables import LOCK_COLUMNS, cells_of, json_row

__all__ = ["LOCK_CSV_FIELDS", "as_csv", "json_pieces", "line_pieces", "pieces_of"]

T = TypeVar("T")

FIRST_ROWS = 200
"""rows whose cells say how wide the columns are; a terminal gets a table of no more"""
ROWS_PER_PIECE = 1000
ROOM = {
    "NAME": (4, 0),
    "TTL": (0, 7),
    "AGE": (0, 7),
    "WAIT": (0, 7),
    "HELD BY": (3, 0),
    "PROCESS": (0, 8),
}
"""how much wider columns are than the first rows need, and how wide at least: numbers grow, and the
later rows have longer TTLs"""
NO_LOCKS = "No locks.\n"
LOCK_CSV_FIELDS = (
    "name", "ttl", "acquired_at", "host", "pid", "alive", "thread", "task", "task_id",
    "fence", "waiters", "longest_wait", "renewing", "token", "store", "key", "held_by", "reason",
    "slot", "cooling",
)  # fmt: skip


def pieces_of(
    found: Iterable[LockInfo], command: BaseCommand, options: dict[str, Any]
) -> Iterator[str]:
    """Yield what to print of some locks, in the form of the options, piece by piece.

    The last piece ends the last line. Raises what reading the locks raises.
    """
    pieces = _in_pieces(found)
    if options["format"] == "json":
        return _json(pieces)
    if options["format"] == "csv":
        return _csv(pieces)
    return _table(pieces, command, options)


def json_pieces(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a JSON array of some rows, piece by piece, and the end of its last line."""
    before = "["
    for piece in _in_pieces(rows):
        yield before + ",\n ".join(map(json.dumps, piece))
        before = ",\n "
    yield "[]\n" if before == "[" else "]\n"


def line_pieces(
    headers: Sequence[str], rows: Iterable[Sequence[str]], nothing: str
) -> Iterator[str]:
    """Yield aligned columns of some rows, piece by piece; ``nothing`` if there are none.

    The first rows say how wide the columns are; a cell that is longer moves the rest of its line.
    """
    pieces = _in_pieces(rows)
    first = next(pieces, None)
    if first is None:
        yield nothing
        return
    widths = widths_of([headers, *first])
    yield lines_of([headers, *first], widths) + "\n"
    for piece in pieces:
        yield lines_of(piece, widths) + "\n"


def _in_pieces(found: Iterable[T]) -> Iterator[list[T]]:
    rest, size = iter(found), FIRST_ROWS
    while piece := list(islice(rest, size)):
        yield piece
        size = ROWS_PER_PIECE


def _json(pieces: Iterator[list[LockInfo]]) -> Iterator[str]:
    liveness = Liveness()
    return json_pieces(json_row(info, liveness) for piece in pieces for info in piece)


def _csv(pieces: Iterator[list[LockInfo]]) -> Iterator[str]:
    liveness, headers = Liveness(), True
    for piece in pieces:
        rows = ({**info.owner.as_dict(), **json_row(info, liveness)} for info in piece)
        yield as_csv(LOCK_CSV_FIELDS, rows, headers=headers)
        headers = False
    if headers:
        yield as_csv(LOCK_CSV_FIELDS, ())


def _table(
    pieces: Iterator[list[LockInfo]], command: BaseCommand, options: dict[str, Any]
) -> Iterator[str]:
    liveness = Liveness()
    first = [cells_of(info, liveness) for info in next(pieces, ())]
    if not first:
        yield NO_LOCKS
        return
    if command.stdout.isatty() and len(first) < FIRST_ROWS:
        wait = LOCK_COLUMNS.index("WAIT")
        # A terminal is narrow: no column where nobody waits.
        empty = () if any(row[wait] != NOTHING for row in first) else ("WAIT",)
        shown = without(empty, LOCK_COLUMNS, first)
        table = as_rich_table(*shown, color=not options["no_color"])
        if table is not None:
            yield table
            return
    widths = widths_of([LOCK_COLUMNS, *first])
    if len(first) == FIRST_ROWS:
        # A cell that is longer still moves the rest of its own line only.
        room = (ROOM.get(column, (0, 0)) for column in LOCK_COLUMNS)
        widths = [
            max(width + more, least) for width, (more, least) in zip(widths, room, strict=True)
        ]
    yield lines_of([LOCK_COLUMNS, *first], widths) + "\n"
    for piece in pieces:
        yield lines_of([cells_of(info, liveness) for info in piece], widths) + "\n"


def as_csv(
    fields: Sequence[str], rows: Iterable[Mapping[str, Any]], *, headers: bool = True
) -> str:
    """Return the CSV of some rows, with a line of headers unless it has been said."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if headers:
        writer.writerow(fields)
    for row in rows:
        # A token has 22 letters, digits, - and _ only, and others may need it as it is.
        writer.writerow([row[name] if name == "token" else _cell(row[name]) for name in fields])
    return out.getvalue()


def _cell(value: object) -> str:
    text = "" if value is None else printable(value)
    # A spreadsheet would run it as a formula, and anybody may have written it.
    return f"'{text}" if isinstance(value, str) and text[:1] in tuple("=+-@") else text
