"""Exceptions between any two instructions, as from the handler of a signal."""

from __future__ import annotations

import ctypes
import dis
import gc
import os
import random
import secrets
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from django_tasklock import locks
from tests.inside import is_renewed
from tests.waiting import until

ENGINE = tuple(
    f"django_tasklock/{name}.py"
    for name in (
        "_engine/lock", "_engine/decorator", "_engine/service", "_engine/acquiring",
        "_engine/keeper", "_engine/jobs", "_engine/own_token", "_engine/lease", "_engine/waiting",
        "_engine/stopping", "_values/interruptions", "celery/run",
        "stores/redis/listener", "stores/redis/waiter",
    )
)  # fmt: skip

UNHEARD = {"blocking"}
"""what has ``except StopIteration as end``: at its end, where no signal is looked for, an exception
would leave a circle of ``end`` and its own frame to the garbage collector"""

SILENT = {dis.opmap.get("SETUP_FINALLY"), dis.opmap.get("SETUP_WITH")}
"""Python 3.10 looks for no signal before these, of which a ``try`` or ``with`` begins with one; in
later versions no code has them"""


EVERY = int(os.environ.get("INTERRUPT_EVERY", "5"))
"""Of so many instructions in a row one is interrupted, each time another; 1: each of them"""


NEVER = sys.maxsize
"""For a first run: Python 3.13 tells of the instructions of a function from its second call on, and
the store is made in it."""


SOON_SECONDS = 30.0
"""after which what was interrupted must be over, also on a busy machine; less than a ttl"""


class Interrupt(Exception):
    """What the handler of a signal raises."""


class Exit(BaseException):
    """What it raises where the process is to end."""


@contextmanager
def signalled(error: BaseException, seconds: float = 0.2) -> Iterator[None]:
    """The handler of a signal raises ``error`` in so many seconds, if the block still goes on."""

    def handler(*_: object) -> None:
        raise error

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def interrupted_at_random(
    call: Callable[[int], Any], *, times: int, within: float, after: Callable[[], Any] = tuple
) -> int:
    """Call it so often, with its number, and have the handler of a signal raise in it somewhere in
    the first ``within`` seconds. Returns how often it came so far."""
    cut = 0
    for number in range(times):
        try:
            with signalled(Interrupt(), random.uniform(0.00001, within)):
                call(number)
        except Interrupt:
            cut += 1
        after()
    return cut


class interrupted:
    """Raise ``error`` before the instruction of that number in our own code, or in the function
    named ``also``; the place where is what it is entered as, an empty list if it never came so far.
    ``lines_of``: before that line of the code in files whose paths begin so, instead.

    No generator: on Python 3.13 its frame and the exception would refer to each other, and keep
    until the next garbage collection what the interrupted call has left.
    """

    def __init__(
        self, number: int, also: str = "", error: type[BaseException] = Interrupt, *,
        lines_of: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self.error = error
        self.lines_of = lines_of
        self.left = number
        self.also = also
        self.where: list[str] = []

    def trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        ours = code.co_filename.endswith(ENGINE) and code.co_name not in UNHEARD
        if self.lines_of:
            ours = code.co_filename.startswith(self.lines_of)
        if not ours and code.co_name != self.also:
            return None
        if event == "call" and in_finalizer(frame):
            return None  # Python tells nobody of an exception there, nor in what gc calls.
        kind = "line" if self.lines_of else "opcode"
        frame.f_trace_opcodes, frame.f_trace_lines = kind == "opcode", kind == "line"
        if event == kind and (kind == "line" or code.co_code[frame.f_lasti] not in SILENT):
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                self.where.append(f"{code.co_name}+{frame.f_lasti}")
                raise self.error
        return self.trace

    def __enter__(self) -> list[str]:
        self.before, self.collects = sys.gettrace(), gc.isenabled()
        gc.disable()
        sys.settrace(self.trace)
        return self.where

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> bool:
        sys.settrace(self.before)
        if self.collects:
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
    """The locks are free soon, without the garbage collector, and nothing is renewed."""
    forget_handled()
    names = (name, *others)
    free = lambda: not any(map(locks.is_locked, names))  # noqa: E731
    until(free, f"the end of {names} after {where}", SOON_SECONDS, every=0.002)
    until(lambda: not is_renewed(*names), f"the end of the renewal after {where}", SOON_SECONDS)


def assert_nothing_is_kept(block: Callable[[object], object], error: type[BaseException]) -> None:
    """What the block refers to ends when it is interrupted, without the garbage collector."""
    gc.disable()
    try:
        local = threading.Event()
        of_the_block = weakref.ref(local)
        with suppress(error):
            block(local)
            raise AssertionError("nothing was raised")
        del local
        assert of_the_block() is None
    finally:
        gc.enable()


def before_first() -> int:
    """Where to begin, so that the next one is among the first `EVERY` instructions: printed."""
    number = secrets.randbelow(EVERY) + 1 - EVERY
    print(f"interrupted before instruction {number + EVERY}, and then before each {EVERY}th")
    print(f"{number} instructions")
    return number


def nothing(*_: object) -> None: ...


def at_every_instruction(
    work: Callable[[str], object],
    name: str,
    also: str = "",
    others: tuple[str, ...] = (),
    *,
    error: type[BaseException] = Interrupt,
    before: Callable[[], object] = nothing,
    after: Callable[[list[str]], object] = nothing,
) -> int:
    """Run ``work`` with an interruption before every `EVERY`-th instruction, until it is
    interrupted nowhere; return how many instructions there are, or a few more.

    After each run the lock ``name``, and ``others``, are free. ``before`` each run and ``after`` it
    these are called, without interruptions; the latter is told where the run was interrupted.
    """
    number, missed = before_first(), 0

    def run(number: int) -> list[str]:
        before()
        with interrupted(number, also, error) as where:
            work(name)
        after(where)
        assert_over(name, where, *others)
        return where

    gc.collect()
    gc.disable()
    try:
        run(NEVER)
        while missed < 3:  # Not every run has as many instructions.
            number += EVERY
            missed = 0 if run(number) else missed + 1
    finally:
        gc.enable()
    print(f"{number} instructions")
    return number
