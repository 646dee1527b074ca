"""Tables for people, and rows for programs."""

from __future__ import annotations

import json
import shutil
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from django.core.management.base import BaseCommand

from .._values.describe import age, duration, printable
from .._values.liveness import Liveness
from .._values.lock_info import LockInfo
from .._values.owner import Owner, task_words
from ..operators.holders import Holder, holder_of, who

__all__ = [
    "LOCK_COLUMNS",
    "WAITER_COLUMNS",
    "as_json",
    "as_table",
    "fields_of",
    "json_row",
    "lock_cells",
    "text",
    "waiter_cells",
    "write_fields",
    "write_table",
]

LOCK_COLUMNS = ("NAME", "TTL", "HELD BY", "STATE", "WAITING", "TASK", "AGE")
WAITER_COLUMNS = ("POSITION", "WAITS", "WHO", "STATE", "TASK")
LEAST_WIDTH = 8  # of a column that is made narrower


def write_table(
    command: BaseCommand, headers: Sequence[str], rows: Sequence[Sequence[str]]
) -> None:
    """Write a table to the command's stdout: as wide as the terminal at most."""
    width = shutil.get_terminal_size().columns if command.stdout.isatty() else None
    command.stdout.write(as_table(headers, rows, width))


def as_table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None
) -> str:
    """Return aligned lines, without the columns that are empty in every row.

    ``width``: in cells of the terminal; the widest columns are cut in the middle to fit. None: any.
    """
    kept = [at for at in range(len(headers)) if at == 0 or any(row[at] for row in rows)]
    table = [[row[at] or "-" for at in kept] for row in [headers, *rows]]
    widths = [max(map(_cells_of, column)) for column in zip(*table, strict=True)]
    while width is not None and sum(widths) + 2 * (len(widths) - 1) > width:
        widest = max(range(len(widths)), key=widths.__getitem__)
        if widths[widest] <= LEAST_WIDTH:
            break
        widths[widest] -= 1
    return "\n".join(
        "  ".join(map(_fitted, row, widths)).rstrip()  # The last column needs no padding.
        for row in table
    )


def write_fields(command: BaseCommand, fields: dict[str, object]) -> None:
    """Write the fields that have a value, one on each line."""
    known = {label: text(value) for label, value in fields.items()}
    width = max(map(len, known)) + 2
    for label, value in known.items():
        if value:
            command.stdout.write(f"{label + ':':<{width}}{value}")


def as_json(rows: Iterable[dict[str, Any]]) -> str:
    """Return a JSON array, one row on each line; it is ASCII, and so safe for a terminal."""
    lines = ",\n ".join(map(json.dumps, rows))
    return f"[{lines}]"


def lock_cells(liveness: Liveness | None = None) -> Callable[[LockInfo], Sequence[str]]:
    """Return a function that makes the row of a lock; every cell is safe for a terminal."""
    known = liveness or Liveness()

    def cells(info: LockInfo) -> Sequence[str]:
        holder = holder_of(info, known)
        return (
            printable(info.name),
            "never" if info.ttl is None else duration(info.ttl),
            who(info.owner),
            # What HELD BY says already is not said twice.
            "" if holder is Holder.FOREIGN else holder.value,
            _waiting(info),
            text(task_words(info.owner)),
            "" if info.acquired_at is None else duration(age(info.acquired_at)),
        )

    return cells


def waiter_cells(number: int, owner: Owner) -> Sequence[str]:
    """Return the row of one waiter, the ``number``-th in its queue."""
    since, alive = owner.waiting_since, owner.alive()
    return (
        str(number),
        "" if since is None else duration(age(since)),
        who(owner),
        "" if alive is None else "alive" if alive else "gone",
        text(task_words(owner)),
    )


def fields_of(info: LockInfo) -> dict[str, object]:
    """Return all that is known of one lock, by what it is called."""
    owner, acquired = info.owner, info.acquired_at
    return {
        "name": info.name,
        "store": info.store,
        "key": info.key,
        "ttl": "never expires" if info.ttl is None else duration(info.ttl),
        "acquired": f"{acquired.isoformat()} ({duration(age(acquired))} ago)" if acquired else None,
        "host": owner.host,
        "pid": owner.pid,
        "process": holder_of(info).value,
        "thread": owner.thread,
        "task": owner.task,
        "task id": owner.task_id,
        "held by": owner.operator,
        "reason": info.reason,
        "waits for": owner.waits_for and f"a permit of {owner.waits_for}",
        "permit": None if info.slot is None else f"{info.slot} of {owner.slots}",
        "token": info.token,
        "fence": info.fence,
        "renewed": None if info.renewing is None else "yes" if info.renewing else "no",
        "waiting": _waiting(info),
    }


def json_row(info: LockInfo, liveness: Liveness | None = None) -> dict[str, Any]:
    """Return a lock as JSON-able values: the table's columns, and more of the lease and owner.

    ``liveness`` knows the processes of rows before this one.
    """
    return info.as_json() | {
        "fence": info.fence,
        "waiters": info.waiters,
        "longest_wait": info.longest_wait,
        "alive": (liveness or Liveness()).of(info.owner),
        "renewing": info.renewing,
        "held_by": info.held_by,
        "reason": info.reason,
        "slot": info.slot,
        "cooling": info.cooling,
    }


def text(value: object) -> str:
    """Return the value in printable characters; "" for None."""
    return "" if value is None else printable(value)


def _waiting(info: LockInfo) -> str:
    if not info.waiters:
        return ""
    wait = info.longest_wait
    return f"{info.waiters}" if wait is None else f"{info.waiters}, {duration(wait)}"


def _cells_of(words: str) -> int:
    """How many cells of a terminal the words take: East Asian characters take two, accents none."""
    if words.isascii():
        return len(words)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in words
    )


def _fitted(words: str, width: int) -> str:
    """The words in exactly ``width`` cells: cut in the middle, or padded."""
    if (left := width - _cells_of(words)) >= 0:
        return words + " " * left
    head, tail = words[: len(words) // 2], words[len(words) // 2 :]
    while _cells_of(head) + 1 + _cells_of(tail) > width:
        head, tail = (head[:-1], tail) if len(head) >= len(tail) else (head, tail[1:])
    return _fitted(f"{head}…{tail}", width)
