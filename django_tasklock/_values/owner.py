"""Who holds a lease, and whether that very process still lives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from .arguments import LONGEST_TEXT_BYTES, is_remark
from .owner_record import COOLING, owner_record, this_process
from .processes import group_lives, start_of
from .slots import LARGEST_SLOTS

__all__ = ["Owner", "is_number_of_adoptions", "task_words"]

LONGEST_MARK = 64
"""characters"""
MOST_ADOPTIONS = 2**31 - 1
LARGEST_PID = 2**31 - 1
LARGEST_START_TICKS = 2**63 - 1
"""the largest that the system calls take"""


@dataclass(frozen=True, slots=True)
class Owner:
    """The holder of a lease, for people and for takeover; it gives no right to release.

    ``host`` is the name of its host. ``thread`` is a name that no other thread, or asyncio task, of
    the process has at that time. ``task`` and ``task_id`` are those of a task, or name a command;
    None for other code.

    ``pid``, ``boot``, ``pidns`` and ``start`` (the kernel's boot id, the pid namespace, the
    process's start in clock ticks since boot) identify one process for ever: the kernel uses a pid
    again, but not all four together. ``group`` is a process group in which the work may go on after
    the process has ended. All fields are None for a key that other code set.

    An operator who holds a lock by ``locks.hold`` has ``held_by``, a name that may be empty,
    and ``reason``. All other fields are None then: no process has to live for it.

    ``mark`` says that no process has to live for the lease any more, though one has taken it:
    `COOLING`, or a word that identifies the handle of a lease that was detached.
    The holder of a permit has ``slots``, the N that it gave. ``waits_for`` is the name of the
    permits for which the first of those who wait holds a lock of its own. ``adoptions`` is how
    often the lease was adopted; None: never. ``inside`` is True for a lock that code inside a task
    has taken, and that is not the task's own: the task does not do the work of another message with
    this lock. None for all others.

    ``waiting_since`` is when a waiter first asked for the lock, by the clock of its host; None for
    all others, and where that is not known. Two owners that differ in it alone are equal.
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
    held_by: str | None = None
    reason: str | None = None
    mark: str | None = None
    slots: int | None = None
    waits_for: str | None = None
    adoptions: int | None = None
    inside: bool | None = None
    waiting_since: datetime | None = field(default=None, compare=False)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Owner:
        """The owner written in a store's record; fields that are absent stay None."""
        get = record.get
        return cls(
            get("host"), get("pid"), get("task"), get("task_id"), get("thread"), get("boot"),
            get("pidns"), get("start"), get("group"), get("held_by"), get("reason"), get("mark"),
            get("slots"), get("waits_for"), get("adoptions"), get("inside"),
        )  # fmt: skip

    @classmethod
    def of_anybody(cls, record: Mapping[str, Any]) -> Owner | None:
        """`from_record`, for a record that other code may have written.

        None if a field is not as `owner_record` or `operator_record` writes it.
        """
        get = record.get
        if get("held_by") is not None:
            return cls._operator_of_anybody(record)
        pid, start, group, slots = get("pid"), get("start"), get("group"), get("slots")
        adoptions = get("adoptions")
        if not (
            (pid is None or (type(pid) is int and 0 < pid <= LARGEST_PID))
            and (group is None or (type(group) is int and 0 < group <= LARGEST_PID))
            and (start is None or (type(start) is int and 0 <= start <= LARGEST_START_TICKS))
            and (slots is None or (type(slots) is int and 0 < slots <= LARGEST_SLOTS))
            and (adoptions is None or is_number_of_adoptions(adoptions))
            and (get("inside") is None or get("inside") is True)
        ):
            return None
        host, task, task_id, thread = get("host"), get("task"), get("task_id"), get("thread")
        boot, pidns, mark = get("boot"), get("pidns"), get("mark")
        waits_for = get("waits_for")
        if mark is not None and (type(mark) is not str or not 0 < len(mark) <= LONGEST_MARK):
            return None
        try:
            texts = (host, task, task_id, thread, boot, pidns, mark, waits_for)
            text = "".join([text for text in texts if text is not None])
        except TypeError:
            return None
        if len(text) > len(texts) * LONGEST_TEXT_BYTES or not text.isprintable():
            return None
        return cls(
            host, pid, task, task_id, thread, boot, pidns, start, group, None, None, mark, slots,
            waits_for, adoptions, get("inside"),
        )  # fmt: skip

    @classmethod
    def _operator_of_anybody(cls, record: Mapping[str, Any]) -> Owner | None:
        operator = cls.from_record(record)
        held_by, reason = operator.held_by, operator.reason
        if (
            type(held_by) is str
            and type(reason) is str
            and is_remark(held_by)
            and is_remark(reason)
            and operator == cls(held_by=held_by, reason=reason)
        ):
            return operator
        return None

    @classmethod
    def current(cls, task: str | None = None, task_id: str | None = None) -> Owner:
        """The owner that a lease taken here and now would record."""
        return cls.from_record(owner_record(task, task_id))

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
        return self.mark is not None and self.mark != COOLING

    def is_local(self) -> bool:
        """True if the process ran on this machine, since its last boot, in our pid namespace, and
        has to live for the lease."""
        here = this_process()
        return (
            self.pid is not None
            and self.mark is None
            and self.start is not None
            and self.boot is not None
            and self.pidns is not None
            and (self.boot, self.pidns) == (here["boot"], here["pidns"])
        )

    def alive(self) -> bool | None:
        """Whether the process, or one of its ``group``, still lives; None where this process
        cannot know that, or where no process has to live for the lease."""
        if not self.is_local():
            return None
        assert self.pid is not None
        start = start_of(self.pid)
        if start is None or start == self.start or not self.group:
            return None if start is None else start == self.start
        return group_lives(self.group)

    def __str__(self) -> str:
        if self.held_by is not None:
            return f"{self.operator} ({self.reason})" if self.reason else f"{self.operator}"
        if self.pid is None and self.host is None:
            return "an unknown owner"
        task = task_words(self)
        return f"pid {self.pid} on {self.host}{f', task {task}' if task else ''}"


def task_words(owner: Owner) -> str | None:
    """Return the owner's task with its task id in brackets, if it has one; None without a task."""
    if not owner.task:
        return None
    return f"{owner.task}[{owner.task_id}]" if owner.task_id else owner.task


def is_number_of_adoptions(value: Any) -> bool:
    """Whether a lease may have been adopted so often."""
    return type(value) is int and 0 <= value < MOST_ADOPTIONS
