"""What each process has of its own; and which processes of this machine live, according to the
kernel: in /proc, and by signal 0."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from os import getpid
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")

# A start that no living process has.
DEAD = -(2**63)

_all: WeakValueDictionary[int, OfProcess[Any]] = WeakValueDictionary()


class OfProcess(Generic[T]):
    """What each process has one of, for all of its threads: made when the process first asks.

    Python tells of its own forks, and not of those in C: uWSGI's workers run no handler of
    `os.register_at_fork`. So the pid is compared each time. Nothing is locked: a lock may be held
    at the fork by a thread that the child does not have.
    """

    def __init__(self, make: Callable[[], T], leave: Callable[[T], object] | None = None) -> None:
        """``make`` makes it; of threads that ask at the same time, all get what the first has made.
        ``leave`` gets that of the parent, in a forked child."""
        self._make, self._leave = make, leave
        self._made: dict[int, T] = {}
        _all[id(self)] = self

    def own(self) -> T:
        """That of this process."""
        found = self._made.get(getpid())
        if found is None:
            found = self._made.setdefault(getpid(), self._make())
            if len(self._made) > 1:
                _leave_inherited()
        return found

    def leave_inherited(self) -> None:
        """Drop what is another process's."""
        for pid in [each for each in list(self._made) if each != getpid()]:
            inherited = self._made.pop(pid, None)
            if inherited is not None and self._leave is not None:
                self._leave(inherited)


def own_of(thing: object, attribute: str, make: Callable[[Any], T]) -> T:
    """What each process has one of for a thing, which keeps it: made of the thing when the process
    first asks."""
    found: OfProcess[T] | None = vars(thing).get(attribute)
    if found is None:
        found = vars(thing).setdefault(attribute, OfProcess(partial(make, thing)))
    return found.own()


def _leave_inherited() -> None:
    # One step of the interpreter: another thread may add one.
    for reference in _all.valuerefs():
        if (each := reference()) is not None:
            each.leave_inherited()


if hasattr(os, "register_at_fork"):
    # Where Python forks, the parent's sockets are closed at once, and not when they are missed.
    os.register_at_fork(after_in_child=_leave_inherited)


def boot_id() -> str | None:
    """The kernel's id of this boot of the machine; None where there is none."""
    path = "/proc/sys/kernel/random/boot_id"
    with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return file.read().strip()
    return None


def pid_namespace() -> str | None:
    """The pid namespace of this process; None where it cannot be known."""
    # Otherwise this /proc has the pids of another namespace.
    return _link("/proc/self/ns/pid") if _link("/proc/self") == str(getpid()) else None


def time_namespace(pid: int | str = "self") -> str | None:
    """The time namespace of a process; None where there is none, or it cannot be known."""
    return _link(f"/proc/{pid}/ns/time")


def _link(path: str) -> str | None:
    with suppress(OSError):
        return os.readlink(path)
    return None


def start_of(pid: int) -> int | None:
    """The start time of a living process, proc(5) field 22; `DEAD` for a dead one or a zombie.

    The kernel counts it by the clock of whoever reads it, which each time namespace has set anew.

    None where that cannot be known. A process whose first thread has ended and whose other threads
    still run looks like a zombie too.
    """
    try:
        after_command = _fields_of_process(pid)
        if after_command[0] in b"ZX" and len(os.listdir(f"/proc/{pid}/task")) < 2:
            return DEAD
    except (FileNotFoundError, ProcessLookupError):
        return None if _exists(os.kill, pid) else DEAD
    except OSError:
        return None  # No free file descriptor, for example: that does not mean that it is dead.
    return int(after_command[19])


def _fields_of_process(pid: int | str) -> list[bytes]:
    """The fields of proc(5)'s stat from the third on: state, parent, group, session…"""
    # Each waiter reads this of its holder again and again; a text file takes twice as long.
    with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
        # The second field, the command, may itself hold spaces and brackets.
        return file.read().rpartition(b")")[2].split()


def _exists(kill: Callable[[int, int], None], of: int) -> bool:
    """Whether there is such a process, or process group: /proc may hide it (hidepid), or not show
    it yet. ``kill``: what sends it a signal."""
    try:
        kill(of, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


def group_lives(group: int) -> bool | None:
    """Whether a process of the process group lives; None where that cannot be known.

    Zombies do not count: their parent may never collect them.
    """
    try:
        if group < 1 or not _exists(os.killpg, group):
            return False
        states, member = b"", str(group).encode()
        for pid in [name for name in os.listdir("/proc") if name.isdigit()]:
            with suppress(OSError):  # It has ended since.
                state, _, its_group, *_ = _fields_of_process(pid)
                states += state if its_group == member else b""
        # The group exists and /proc shows no member: they are hidden (hidepid).
        return bool(states.strip(b"ZX")) if states else _exists(os.killpg, group)
    except (OSError, OverflowError, TypeError, ValueError):
        return None  # No free file descriptor, for example, or a number that we have not written.
