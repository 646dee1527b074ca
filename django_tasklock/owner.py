"""Who holds a lease, and whether that very process still lives."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Owner", "group_lives", "owner_record", "recorded"]

LONGEST_TEXT = 255
"""bytes of UTF-8 that a text of a record has at most, as `recorded` makes it"""
LAST_PID = 2**31 - 1
LAST_START = 2**63 - 1
"""the largest that the system calls take"""


@dataclass(frozen=True, slots=True)
class Owner:
    """The holder of a lease, for people and for takeover; it gives no right to release.

    ``boot``, ``pidns`` and ``start`` (the kernel's boot id, the pid namespace, the process's
    start in clock ticks since boot) identify one process for good: a pid is given out again,
    the four together are not. ``group`` is a process group in which its work may go on after it.
    All fields are None for a key that somebody else set.
    """

    host: str | None = None
    pid: int | None = None
    task: str | None = None
    task_id: str | None = None
    thread: str | None = None
    boot: str | None = None
    pidns: str | None = None
    start: int | None = None
    group: int | None = None

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Owner:
        """The owner written in a store's record; fields that are absent stay None."""
        get = record.get
        return cls(
            get("host"), get("pid"), get("task"), get("task_id"), get("thread"), get("boot"),
            get("pidns"), get("start"), get("group"),
        )  # fmt: skip

    @classmethod
    def of_anybody(cls, record: Mapping[str, Any]) -> Owner | None:
        """`from_record` of one that anybody may have written: None if a field of it is not as
        `owner_record` writes it."""
        get = record.get
        pid, start, group = get("pid"), get("start"), get("group")
        if not (
            (pid is None or (type(pid) is int and 0 < pid <= LAST_PID))
            and (group is None or (type(group) is int and 0 < group <= LAST_PID))
            and (start is None or (type(start) is int and 0 <= start <= LAST_START))
        ):
            return None
        host, task, task_id, thread = get("host"), get("task"), get("task_id"), get("thread")
        boot, pidns = get("boot"), get("pidns")
        try:
            texts = (host, task, task_id, thread, boot, pidns)
            text = "".join([text for text in texts if text is not None])
        except TypeError:
            return None
        if len(text) > len(texts) * LONGEST_TEXT or not text.isprintable():
            return None
        return cls(host, pid, task, task_id, thread, boot, pidns, start, group)

    @classmethod
    def current(cls, task: str | None = None, task_id: str | None = None) -> Owner:
        """The owner that a lease taken here and now would record."""
        return cls.from_record(owner_record(task, task_id))

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain JSON-able values."""
        return asdict(self)

    def is_local(self) -> bool:
        """True if the process ran on this machine, since its last boot, in our pid namespace."""
        here = _process_fields()
        return (
            self.pid is not None
            and self.start is not None
            and self.boot is not None
            and self.pidns is not None
            and (self.boot, self.pidns) == (here["boot"], here["pidns"])
        )

    def alive(self) -> bool | None:
        """Whether the process, or one of its ``group``, still lives; None where that cannot be
        known from here."""
        if not self.is_local():
            return None
        assert self.pid is not None
        start = _start_of_living(self.pid)
        if start is None or start == self.start or not self.group:
            return None if start is None else start == self.start
        return group_lives(self.group)

    def __str__(self) -> str:
        if self.pid is None and self.host is None:
            return "an unknown owner"
        what = f", task {self.task}[{self.task_id}]" if self.task else ""
        return f"pid {self.pid} on {self.host}{what}"


_DEAD = -1
_this_process: dict[str, Any] = {}


def owner_record(task: str | None = None, task_id: str | None = None) -> dict[str, Any]:
    """The owner's fields as a new dict of JSON-able values, for a store's record.

    What is the same for the whole process is read once.
    """
    record = _process_fields().copy()
    record["thread"] = recorded(threading.current_thread().name)
    if task is not None:
        record["task"] = recorded(task)
    if task_id is not None:
        record["task_id"] = recorded(task_id)
    return record


def group_lives(group: int) -> bool | None:
    """Whether a process of the group lives; None where that cannot be told.

    Zombies, which nobody may ever ask for, do not count.
    """
    try:
        if not _group_exists(group):
            return False
        states, member = b"", str(group).encode()
        for pid in [name for name in os.listdir("/proc") if name.isdigit()]:
            try:
                fields = _fields_of_process(pid)
            except OSError:
                continue  # It has ended since.
            if fields[2] == member:
                states += fields[0]
        # Where /proc shows nobody of a group that there is, somebody is hidden (hidepid).
        return bool(states.strip(b"ZX")) if states else _group_exists(group)
    except (OSError, OverflowError, TypeError, ValueError):
        return None  # No file descriptor is left, say, or the number was not written by us.


def _group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def recorded(value: object) -> str:
    """``value`` as text, as a record carries it: printable, and of a sane length.

    What is cut has a digest at its end, so that two of them stay two.
    """
    text = str(value)
    if text.isprintable() and len(text) * 4 <= LONGEST_TEXT:
        return text
    escaped = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )
    plain = escaped.encode()
    if len(plain) <= LONGEST_TEXT:
        return escaped
    digest = hashlib.sha256(plain).hexdigest()[:32]
    return f"{plain[: LONGEST_TEXT - 36].decode(errors='ignore')}...{digest}"


def _process_fields() -> dict[str, Any]:
    if not _this_process:
        pid = os.getpid()
        _this_process.update(
            host=recorded(socket.gethostname()),
            pid=pid,
            boot=_read("/proc/sys/kernel/random/boot_id"),
            pidns=_pid_namespace(),
            start=_start_of_living(pid),
        )
    return _this_process


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None


def _pid_namespace() -> str | None:
    try:
        if os.readlink("/proc/self") != str(os.getpid()):
            return None  # This /proc tells of the pids of another namespace.
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def _start_of_living(pid: int) -> int | None:
    """The start time of a living process, proc(5) field 22; `_DEAD` for a dead one or a zombie.

    None where that cannot be told. The leader of a process whose other threads still run shows
    as a zombie too.
    """
    try:
        after_command = _fields_of_process(pid)
        if after_command[0] in b"ZX" and len(os.listdir(f"/proc/{pid}/task")) < 2:
            return _DEAD
    except (FileNotFoundError, ProcessLookupError):
        return None if _exists(pid) else _DEAD
    except OSError:
        return None  # No free file descriptor, say: that is no sign of anybody's death.
    return int(after_command[19])


def _fields_of_process(pid: int | str) -> list[bytes]:
    """The fields of proc(5)'s stat from the third on: state, parent, group, session…"""
    # Every waiter asks this of every holder, and a text file takes twice as long.
    file = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        # The second field, the command, may itself hold spaces and brackets.
        return os.read(file, 4096).rpartition(b")")[2].split()
    finally:
        os.close(file)


def _exists(pid: int) -> bool:
    """Whether there is such a process, which /proc may hide (hidepid) or not show yet."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_this_process.clear)
