"""Who holds a lease, what its record says of them, and whether that very process still lives."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from os import getpid
from typing import Any

from .arguments import LARGEST_SLOTS, LONGEST_TEXT_BYTES
from .processes import DEAD, boot_id, group_lives, pid_namespace, start_of, time_namespace
from .words import printable

# a key of an operator's record, and of no other
HELD_BY = "held_by"
# a key of the record of a lease for which no process has to live, and of no other
MARK = "mark"
# the mark of a lock that its holder has released, and that stays taken for a while
COOLING = "cooling"
# a key of the record of a lock that code inside a task has taken, and of no other
INSIDE = "inside"
# a key of the record of a waiter: when it began to wait, in seconds since the epoch
SINCE = "since"
# a key of an operator's record; it means nothing in another one
REASON = "reason"

# the largest that the system calls take
LARGEST_PID = 2**31 - 1
# The kernel rounds starts: those of one process may differ by so much.
SAME_START_TICKS = 2
# Of the digest of a pid space: of four billion others one looks like it.
PID_SPACE_CHARACTERS = 8
# How long a process goes by what it has last read of itself.
KNOWN_SECONDS = 1.0


def _known(kind: type, least: int, most: int) -> Any:
    """A field of a record: its type, and the least and the most that it is, or that its text has in
    bytes."""
    return field(default=None, metadata={"limits": (kind, least, most)})


def _text() -> Any:
    return _known(str, 0, LONGEST_TEXT_BYTES)


@dataclass(frozen=True, slots=True)
class Owner:
    """The holder of a lease, for people and for takeover; it gives no right to release.

    Attributes:
        host: the name of the host.
        pid: the process. With ``host``, ``boot``, ``pidns``, ``timens`` and ``start`` it identifies
            one process for ever: the kernel uses a pid again, but not all of these together.
        task: the Celery task in which the lock was taken, or a command. None for other code.
        task_id: the task's id.
        thread: a name that no other thread, or asyncio task, of the process has at that time.
        boot: the kernel's boot id.
        pidns: the pid namespace.
        timens: the time namespace. None where the kernel has none.
        start: the start of the process, in clock ticks since boot, by the clock of ``timens``.
        group: a process group in which the work may go on after the process has ended.
        held_by: the name of an operator who holds the lock by ``locks.hold``; it may be empty. All
            other fields but ``reason`` are None then: no process has to live for the hold.
        reason: why the operator holds it.
        mark: says that no process has to live for the lease any more: the lock cools, or the lease
            is detached, and this identifies its handle.
        slots: the N that the holder of a permit gave.
        inside: True for a lock that code inside a task has taken, and that is not the task's own.
        waiting_since: when a waiter first asked for the lock, by the clock of its host. None for
            all others. Two owners that differ in it alone are equal.

    All fields are None for a key that other code set.
    """

    host: str | None = _text()
    pid: int | None = _known(int, 1, LARGEST_PID)
    task: str | None = _text()
    task_id: str | None = _text()
    thread: str | None = _text()
    boot: str | None = _text()
    pidns: str | None = _text()
    timens: str | None = _text()
    start: int | None = _known(int, 0, 2**63 - 1)
    group: int | None = _known(int, 1, LARGEST_PID)
    held_by: str | None = _text()
    reason: str | None = _text()
    mark: str | None = _known(str, 1, 64)
    slots: int | None = _known(int, 1, LARGEST_SLOTS)
    inside: bool | None = _known(bool, True, True)
    waiting_since: datetime | None = field(default=None, compare=False)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Owner:
        """The owner written in a store's record; fields that are absent stay None."""
        return cls(**{name: record.get(name) for name in LIMITS})

    @classmethod
    def of_anybody(cls, record: Mapping[str, Any]) -> Owner | None:
        """`from_record`, for a record that other code may have written.

        None if a field is not as `owner_record` or `operator_record` writes it.
        """
        found = {name: record[name] for name in LIMITS if record.get(name) is not None}
        if HELD_BY not in found:
            found.pop(REASON, None)
        elif found.keys() != {HELD_BY, REASON}:
            return None  # A hold names no process.
        if not all(_fits(value, *LIMITS[name]) for name, value in found.items()):
            return None
        return cls(**found)

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain JSON-able values; without ``waiting_since`` where that is None."""
        fields = asdict(self)
        since = fields.pop("waiting_since")
        return fields if since is None else {**fields, "waiting_since": since.isoformat()}

    @property
    def operator(self) -> str | None:
        """The operator in words, such as "operator alice"; None for every other owner."""
        if self.held_by is None:
            return None
        return f"operator {self.held_by}" if self.held_by else "an operator"

    @property
    def runs(self) -> bool:
        """Whether it is the run of a message, which holds the lock of its task."""
        return self.task_id is not None and not self.inside

    @property
    def detached(self) -> bool:
        """Whether the process has detached the lease, and nobody has adopted it yet."""
        return self.mark not in (None, COOLING)

    def is_local(self) -> bool:
        """True if the process ran on this machine, since its last boot, in our namespaces of pids
        and of time, and has to live for the lease."""
        # Machines that were resumed from one memory have all of that in common, but for the host.
        here = this_process()
        return (
            None not in (self.pid, self.start, self.boot, self.pidns)
            and self.mark is None
            and (self.host, self.boot, self.pidns, self.timens)
            == (here["host"], here["boot"], here["pidns"], here["timens"])
        )

    def alive(self) -> bool | None:
        """Whether the process, or one of its ``group``, still lives; None where this process
        cannot know that, or where no process has to live for the lease."""
        if self.pid is None or self.start is None or not self.is_local():
            return None
        start = start_of(self.pid)
        if start is None:
            return None
        if abs(start - self.start) <= SAME_START_TICKS:
            return True
        # Either of us may have been restored from a checkpoint: since then it has another start, in
        # a time namespace of its own.
        restored = start != DEAD and time_namespace(self.pid) != self.timens
        _read_this_process()
        if restored or not self.is_local():
            return None
        return group_lives(self.group) if self.group else False

    def __str__(self) -> str:
        if self.held_by is not None:
            return f"{self.operator} ({self.reason})" if self.reason else f"{self.operator}"
        if self.pid is None and self.host is None:
            return "an unknown owner"
        task = task_words(self)
        return f"pid {self.pid} on {self.host}{f', task {task}' if task else ''}"


# of the fields of an owner in a record
LIMITS = {each.name: each.metadata["limits"] for each in fields(Owner) if each.metadata}


def _fits(value: Any, kind: type, least: int, most: int) -> bool:
    given = type(value)
    if given is not kind or (kind is str and not value.isprintable()):
        return False
    return bool(least <= (len(value.encode()) if kind is str else value) <= most)


def task_words(owner: Owner) -> str | None:
    """Return the owner's task with its task id in brackets, if it has one; None without a task."""
    if not owner.task:
        return None
    return f"{owner.task}[{owner.task_id}]" if owner.task_id else owner.task


def place(owner: Owner) -> str:
    """Return the process that holds a lock as ``host:pid``; "" for an operator, and for a foreign
    key's owner."""
    if owner.host is None and owner.pid is None:
        return ""
    return printable(f"{owner.host or '?'}:{owner.pid if owner.pid is not None else '?'}")


_this_process: dict[str, Any] = {}
_pid_space = ""
# When that was last read, on the clock that a checkpoint does not stop.
_read_at = 0.0


def strand_name() -> str:
    """A name that no other living thread, or asyncio task, of this process has: code may give the
    same name to several."""
    thread = f"{threading.current_thread().name}-{threading.get_ident()}"
    task = None if asyncio._get_running_loop() is None else asyncio.current_task()
    return thread if task is None else f"{thread} {task.get_name()}-{id(task)}"


def owner_record(
    task: str | None = None, task_id: str | None = None, strand: str = "", **more: Any
) -> dict[str, Any]:
    """The owner's fields as a new dict of JSON-able values, for a store's record.

    ``strand``: the `strand_name` of whoever asks, if that is not the caller. ``more``: further
    fields, such as the ``group`` in which the work goes on.
    """
    record = {**this_process(), **more, "thread": recorded(strand or strand_name())}
    if task is not None:
        record["task"] = recorded(task)
    if task_id is not None:
        record["task_id"] = recorded(task_id)
    return record


def operator_record(by: str, reason: str) -> dict[str, Any]:
    """The owner's fields of an operator, who holds a lock without a process."""
    return {HELD_BY: by, REASON: reason}


def recorded(value: object) -> str:
    """``value`` as printable text of at most `LONGEST_TEXT_BYTES`, for a record.

    Text that is cut ends with a digest, so that two different texts stay different.
    """
    text = str(value)
    if not text.isprintable():
        text = printable(text)
    plain = text.encode()
    if len(plain) <= LONGEST_TEXT_BYTES:
        return text
    digest = hashlib.sha256(plain).hexdigest()[:32]
    return f"{plain[: LONGEST_TEXT_BYTES - 36].decode(errors='ignore')}...{digest}"


def process_words() -> str:
    """This process as a short text, for `lives`."""
    here = this_process()
    return f"{here['pid']} {here['start']} {_pid_space}"


def lives(words: str) -> bool | None:
    """Whether the process lives that has these `process_words`; None where this process cannot know
    that."""
    with suppress(ValueError):
        pid, start, where = words.split(" ")
        owner = Owner(**{**this_process(), "pid": int(pid), "start": int(start)})
        return owner.alive() if where == _pid_space else None
    return None


def this_process() -> dict[str, Any]:
    """The fields that are the same for the whole process. Not to be changed.

    They are read again every second: those of a process that is restored from a checkpoint change.
    """
    known = 0 <= time.time() - _read_at < KNOWN_SECONDS
    if not known or _this_process.get("pid") != getpid():
        _read_this_process()
    return _this_process


def _read_this_process() -> None:
    global _read_at, _pid_space
    pid, _read_at = getpid(), time.time()
    here = {
        "host": recorded(socket.gethostname()),
        "boot": boot_id(),
        "pidns": pid_namespace(),
        "timens": time_namespace(),
    }
    # Within one pid space a pid means one process. It is known before the process is, for which
    # other threads look.
    where = " ".join(map(str, here.values()))
    _pid_space = hashlib.sha256(where.encode()).hexdigest()[:PID_SPACE_CHARACTERS]
    # One step of the interpreter: other threads find the old ones, or the new ones.
    _this_process.update(here, pid=pid, start=start_of(pid))
