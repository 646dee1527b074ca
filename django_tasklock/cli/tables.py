"""What is said of locks: the cells of a table, a sheet for one lock, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from .._values.describe import age, duration, place, printable
from .._values.liveness import Liveness
from .._values.lock_info import LockInfo
from .._values.owner import Owner
from .columns import NOTHING, as_lines

__all__ = [
    "LOCK_COLUMNS",
    "as_json",
    "as_sheet",
    "as_waiter_lines",
    "cells_of",
    "json_row",
]

LOCK_COLUMNS = ("NAME", "TTL", "AGE", "WAIT", "HELD BY", "PROCESS", "TASK", "TASK ID")
WAITER_COLUMNS = ("POSITION", "WAITS", "SINCE", "HOST", "PID", "PROCESS", "TASK", "TASK ID")
COOLING_DOWN = "cooling down: it has released the lock, which stays taken until its TTL ends"


def cells_of(info: LockInfo, liveness: Liveness | None = None) -> tuple[str, ...]:
    """Return one row of the table; every cell is safe for a terminal, and none is empty.

    ``liveness`` knows the processes of rows before this one.
    """
    return (
        printable(info.name),
        _ttl(info),
        _age(info),
        _wait(info),
        place(info.owner) or NOTHING,
        "cooling" if info.cooling else _life(info.owner, liveness),
        _text(info.owner.task),
        _text(info.owner.task_id),
    )


def as_sheet(info: LockInfo, row: str | None = None) -> str:
    """Return all that is known of one lock, one field on each line; ``row`` is its guarded row."""
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
        "process": COOLING_DOWN if info.cooling else _life_in_words(owner),
        "thread": owner.thread,
        "task": owner.task,
        "task id": owner.task_id,
        "token": info.token,
        "fence": info.fence,
        "waiters": info.waiters,
        "renewed": None if info.renewing is None else "yes" if info.renewing else "no",
    }
    if info.waiting_since is not None:
        fields["longest wait"] = _wait(info)
    if info.slot is not None:
        fields["permit"] = f"{info.slot} of {owner.slots}"
    if owner.waits_for is not None:
        fields["holder"] = f"the first of the waiters for a permit of {owner.waits_for}"
    if info.held_by is not None:
        fields |= {"held by": owner.operator, "reason": info.reason}
    if row is not None:
        fields["row"] = row
    width = max(map(len, fields)) + 2
    return "\n".join(f"{label + ':':<{width}}{_text(value)}" for label, value in fields.items())


def as_waiter_lines(waiting: Sequence[Owner]) -> str:
    """Return the wait queue of a lock as aligned lines, the next waiter first."""
    rows = [
        (
            str(number),
            *_since(owner),
            _text(owner.operator or owner.host),
            _text(owner.pid),
            _life(owner),
            _text(owner.task),
            _text(owner.task_id),
        )
        for number, owner in enumerate(waiting, 1)
    ]
    return as_lines(WAITER_COLUMNS, rows)


def as_json(rows: Iterable[dict[str, Any]]) -> str:
    """Return a JSON array, one row on each line; it is ASCII, and so safe for a terminal."""
    lines = ",\n ".join(map(json.dumps, rows))
    return f"[{lines}]"


def json_row(info: LockInfo, liveness: Liveness | None = None) -> dict[str, Any]:
    """Return a lock as JSON-able values: the table's columns, and more of the lease and owner.

    ``liveness`` knows the processes of rows before this one.
    """
    return info.as_json() | {
        "fence": info.fence, "waiters": info.waiters, "longest_wait": info.longest_wait,
        "alive": _alive(info.owner, liveness),
        "renewing": info.renewing, "held_by": info.held_by, "reason": info.reason,
        "slot": info.slot,
        "cooling": info.cooling,
    }  # fmt: skip


def _ttl(info: LockInfo) -> str:
    return "never" if info.ttl is None else duration(info.ttl)


def _age(info: LockInfo) -> str:
    if info.acquired_at is None:
        return NOTHING
    return duration(age(info.acquired_at))


def _wait(info: LockInfo) -> str:
    wait = info.longest_wait
    return NOTHING if wait is None else duration(wait)


def _since(waiter: Owner) -> tuple[str, str]:
    """For how long a waiter waits, and since when."""
    since = waiter.waiting_since
    if since is None:
        return NOTHING, NOTHING
    return duration(age(since)), since.isoformat(timespec="seconds")


def _alive(owner: Owner, liveness: Liveness | None) -> bool | None:
    return owner.alive() if liveness is None else liveness.of(owner)


def _life(owner: Owner, liveness: Liveness | None = None) -> str:
    if owner.detached:
        return "detached"
    alive = _alive(owner, liveness)
    return NOTHING if alive is None else "alive" if alive else "gone"


def _life_in_words(owner: Owner) -> str:
    if owner.detached:
        return "detached: waits for its run"
    if owner.pid is None or owner.alive() is not None:
        return _life(owner)
    # Without its start in the record, not even its own host can tell whether the process lives.
    known = owner.start is not None and not owner.is_local()
    return "unknown (another host or container)" if known else "unknown"


def _text(value: object) -> str:
    return NOTHING if value is None or value == "" else printable(value)
