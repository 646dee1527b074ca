"""Locks as text: aligned lines for a pipe, rich's table for a terminal, JSON for programs."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterable, Sequence
from typing import Any

from ..describe import age, duration, place, printable
from ..lease import LockInfo
from ..owner import Owner

__all__ = [
    "COLUMNS",
    "as_json",
    "as_line_of_waiters",
    "as_lines",
    "as_rich_table",
    "as_sheet",
    "cells_of",
    "row_of",
]

COLUMNS = ("NAME", "TTL", "AGE", "HELD BY", "PROCESS", "TASK", "TASK ID")
WAITER_COLUMNS = ("IN LINE", "HOST", "PID", "PROCESS", "TASK", "TASK ID")
NOTHING = "-"


def cells_of(info: LockInfo) -> tuple[str, ...]:
    """One row of the table; every cell is safe for a terminal, and none is empty."""
    return (
        printable(info.name),
        _ttl(info),
        _age(info),
        place(info.owner) or NOTHING,
        _life(info.owner),
        _text(info.owner.task),
        _text(info.owner.task_id),
    )


def as_lines(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns, two spaces apart, one row a line, the headers first."""
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (headers, *rows)
    )
    return "\n".join(lines)


def as_rich_table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], *, color: bool
) -> str | None:
    """The same with rich, as wide as the terminal; None where rich is not installed."""
    try:
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return None
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for header in headers:
        table.add_column(header, overflow="fold", no_wrap=header in ("TTL", "AGE", "PROCESS"))
    for row in rows:
        # Text, so that no cell is read as rich's own markup.
        table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    out = io.StringIO()
    console = Console(
        file=out,
        force_terminal=True,
        no_color=not color,
        width=shutil.get_terminal_size().columns,
    )
    console.print(table)
    return out.getvalue()


_STYLES = {"gone": "bold red", "never": "yellow", NOTHING: "dim"}


def as_sheet(info: LockInfo, row: str | None = None) -> str:
    """All that is known of one lock, a field a line; and its guarded row, where it has one."""
    owner = info.owner
    acquired = info.acquired_at
    fields = {
        "name": info.name,
        "store": info.store,
        "key": info.key,
        "ttl": _ttl(info),
        "acquired": f"{acquired.isoformat()} ({_age(info)} ago)" if acquired else None,
        "host": owner.host,
        "pid": owner.pid,
        "process": _life(owner),
        "thread": owner.thread,
        "task": owner.task,
        "task id": owner.task_id,
        "token": info.token,
        "fence": info.fence,
        "waiters": info.waiters,
        "renewed": None if info.renewing is None else "yes" if info.renewing else "no",
    }
    if row is not None:
        fields["row"] = row
    width = max(map(len, fields)) + 2
    return "\n".join(f"{label + ':':<{width}}{_text(value)}" for label, value in fields.items())


def as_line_of_waiters(waiting: Sequence[Owner]) -> str:
    """Who waits for a lock, the next first, as aligned lines."""
    rows = [
        (
            str(number),
            _text(owner.host),
            _text(owner.pid),
            _life(owner),
            _text(owner.task),
            _text(owner.task_id),
        )
        for number, owner in enumerate(waiting, 1)
    ]
    return as_lines(WAITER_COLUMNS, rows)


def as_json(rows: Iterable[dict[str, Any]]) -> str:
    """A JSON array, one row a line. ASCII only: nothing in it can act on a terminal."""
    lines = ",\n ".join(map(json.dumps, rows))
    return f"[{lines}]"


def row_of(info: LockInfo) -> dict[str, Any]:
    """A lock's row in JSON: what a table, or CSV, says of it, and more of its owner."""
    return info.as_json() | {
        "fence": info.fence, "waiters": info.waiters, "alive": info.owner.alive(),
        "renewing": info.renewing,
    }  # fmt: skip


def _ttl(info: LockInfo) -> str:
    return "never" if info.ttl is None else duration(info.ttl)


def _age(info: LockInfo) -> str:
    if info.acquired_at is None:
        return NOTHING
    return duration(age(info.acquired_at))


def _life(owner: Owner) -> str:
    alive = owner.alive()
    return NOTHING if alive is None else "alive" if alive else "gone"


def _text(value: object) -> str:
    return NOTHING if value is None or value == "" else printable(value)
