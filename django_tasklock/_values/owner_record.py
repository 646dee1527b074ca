"""What a lease's record says of its owner: the fields of this process, thread and task."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .arguments import LONGEST_TEXT_BYTES
from .processes import boot_id, pid_namespace, start_of
from .strands import name_of_thread

__all__ = [
    "ADOPTIONS",
    "COOLING",
    "HELD_BY",
    "INSIDE",
    "MARK",
    "SINCE",
    "operator_record",
    "owner_record",
    "recorded",
    "recorded_as",
    "this_process",
]

HELD_BY = "held_by"
"""a key of an operator's record, and of no other"""
MARK = "mark"
"""a key of the record of a lease for which no process has to live, and of no other"""
COOLING = "cooling"
"""the mark of a lock that its holder has released, and that stays taken for a while"""
INSIDE = "inside"
"""a key of the record of a lock that code inside a task has taken, and of no other"""
ADOPTIONS = "adoptions"
"""a key of the record of a lease that was adopted, and of no other"""
SINCE = "since"
"""a key of the record of a waiter: when it began to wait, in seconds since the epoch"""

_this_process: dict[str, Any] = {}


class _Acting(threading.local):
    """For whom this thread acts."""

    name: str | None = None


_acting = _Acting()


@contextmanager
def recorded_as(name: str) -> Iterator[None]:
    """Have `owner_record` write ``name`` in the place of this thread's."""
    before, _acting.name = _acting.name, name
    try:
        yield
    finally:
        _acting.name = before


def owner_record(task: str | None = None, task_id: str | None = None) -> dict[str, Any]:
    """The owner's fields as a new dict of JSON-able values, for a store's record.

    The fields that are the same for the whole process are read once. ``thread`` is a name that no
    other thread, or asyncio task, of this process has now.
    """
    record = this_process().copy()
    record["thread"] = recorded(_acting.name or name_of_thread())
    if task is not None:
        record["task"] = recorded(task)
    if task_id is not None:
        record["task_id"] = recorded(task_id)
    return record


def operator_record(by: str, reason: str) -> dict[str, Any]:
    """The owner's fields of an operator, who holds a lock without a process."""
    return {HELD_BY: by, "reason": reason}


def recorded(value: object) -> str:
    """``value`` as printable text of at most `LONGEST_TEXT_BYTES`, for a record.

    Text that is cut ends with a digest, so that two different texts stay different.
    """
    text = str(value)
    if text.isprintable() and len(text) * 4 <= LONGEST_TEXT_BYTES:
        return text
    escaped = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )
    plain = escaped.encode()
    if len(plain) <= LONGEST_TEXT_BYTES:
        return escaped
    digest = hashlib.sha256(plain).hexdigest()[:32]
    return f"{plain[: LONGEST_TEXT_BYTES - 36].decode(errors='ignore')}...{digest}"


def this_process() -> dict[str, Any]:
    """The fields that are the same for the whole process, read once. Not to be changed."""
    if not _this_process:
        pid = os.getpid()
        _this_process.update(
            host=recorded(socket.gethostname()),
            pid=pid,
            boot=boot_id(),
            pidns=pid_namespace(),
            start=start_of(pid),
        )
    return _this_process


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_this_process.clear)
