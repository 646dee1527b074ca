"""Exceptions between any two instructions, as from the handler of a signal."""

from __future__ import annotations

import ctypes
import dis
import gc
import os
import secrets
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from django_tasklock import locks
from django_tasklock._engine.renewal import renewal
from django_tasklock._engine.store_renewal import Entry
from tests.waiting import until

ENGINE = tuple(
    f"django_tasklock/{name}.py"
    for name in (
        "_engine/context", "_engine/use", "_engine/service", "_engine/acquiring",
        "_engine/keeper", "_engine/lease", "_engine/lease_state", "_engine/renewal",
        "_engine/store_renewal", "_engine/renewal_thread", "_engine/abandoned",
        "_engine/taker", "_engine/reentrant",
        "_engine/running", "_engine/several", "_engine/all_or_none", "_engine/handing_on",
        "_engine/extensions", "_engine/cooling", "_engine/cooling_lock",
        "celery/run", "celery/taking",
    )
)  # fmt: skip
# Not "_engine/steps": after an exception that a trace function raises within its `except` clause,
# CPython keeps what the clause handles, with the lease in it. Signal handlers come at other places.

SILENT = {dis.opmap.get("SETUP_FINALLY"), dis.opmap.get("SETUP_WITH")}
"""Python 3.10 looks for no signal before these, of which a ``try`` or ``with`` begins with one; in
later versions no code has them"""


EVERY = int(os.environ.get("INTERRUPT_EVERY", "5"))
"""Of so many instructions in a row one is interrupted, each time another; 1: each of them"""


class Interrupt(Exception):
    """What the handler of a signal raises."""


class Exit(BaseException):
    """What it raises where the process is to end."""


class interrupted:
    """Raise ``error`` before the instruction of that number in our own code, or in the function
    named ``also``; the place where is what it is entered as, an empty list if it never came so far.

    No generator: on Python 3.13 its frame and the exception would refer to each other, and keep
    until the next garbage collection what the interrupted call has left.
    """

    def __init__(self, number: int, also: str = "", error: type[BaseException] = Interrupt) -> None:
        self.error = error
        self.left = number
        self.also = also
        self.where: list[str] = []

    def trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.endswith(ENGINE) and code.co_name != self.also:
            return None
        if event == "call" and in_finalizer(frame):
            return None  # Python tells nobody of an exception there, nor in what gc calls.
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode" and code.co_code[frame.f_lasti] not in SILENT:
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                self.where.append(f"{code.co_name}+{frame.f_lasti}")
                raise self.error
        return self.trace

    def __enter__(self) -> list[str]:
        self.before = sys.gettrace()
        gc.disable()
        sys.settrace(self.trace)
        return self.where

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> bool:
        sys.settrace(self.before)
        gc.enable()
        return kind is self.error


def in_finalizer(frame: FrameType | None) -> bool:
    """Whether a ``__del__`` has called this frame, or is it."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


def forget_handled() -> None:
    """End the handling of an exception that is over.

    If a trace function raises at certain instructions of an ``except`` clause, CPython goes on as
    if the exception of that clause were being handled for ever. It, and with it the frames and all
    that they refer to, would be the context of every later exception of the thread.
    """
    if sys.exc_info()[1] is not None:
        ctypes.pythonapi.PyErr_SetExcInfo.argtypes = [ctypes.c_void_p] * 3
        ctypes.pythonapi.PyErr_SetExcInfo(None, None, None)


def assert_over(name: str, where: list[str], *others: str) -> None:
    forget_handled()
    for one in (name, *others):
        until(lambda one=one: not locks.is_locked(one), f"the end of {one} after {where}")  # type: ignore[misc]

    def nothing_is_renewed() -> bool:
        leases = [entry.lease() for entry in renewal.entries() if isinstance(entry, Entry)]
        if not [lease for lease in leases if lease and lease.renew and lease.held]:
            return True
        # The thread of the renewal looks at it in this moment, or the exception refers to it.
        leases.clear()
        gc.collect()
        return False

    until(nothing_is_renewed, f"the end of the renewal after {where}")


def before_first() -> int:
    """Where to begin, so that the next one is among the first `EVERY` instructions: printed."""
    number = secrets.randbelow(EVERY) + 1 - EVERY
    print(f"interrupted before instruction {number + EVERY}, and then before each {EVERY}th")
    return number


def at_every_instruction(
    work: Callable[[str], None], name: str, also: str = "", others: tuple[str, ...] = ()
) -> int:
    """Run ``work`` with an interruption before every `EVERY`-th instruction, until it is
    interrupted nowhere; return how many instructions there are, or a few more.

    After each run the lock ``name``, and ``others``, are free.
    """
    number, missed = before_first(), 0
    while missed < 3:  # Not every run has as many instructions.
        number += EVERY
        with interrupted(number, also) as where:
            work(name)
        missed = 0 if where else missed + 1
        assert_over(name, where, *others)
    return number
