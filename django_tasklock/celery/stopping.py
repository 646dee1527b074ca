"""A run that waits for its lock leaves its worker free to shut down.

A warm shutdown waits for the runs, and one that waits for a lock may take for ever. It has begun
nothing, so its message goes back to the queue, and another worker waits on.

The main process is told to shut down, and its pool children are not. They share memory with it,
which was there before they were forked.
"""

from __future__ import annotations

import mmap
import os

from celery.signals import worker_shutting_down

from .._engine.lease import Lease
from .._engine.waiting import Pause, Steps, blocking
from .._values import clock
from .._values.lock_info import LockInfo
from ..stores.base import Grant, Refusal
from .message import Message
from .requeue import leave_worker

# How often a run that waits looks whether its worker shuts down.
LOOK_SECONDS = 0.25

# The pid of the main process that shuts down. Other workers may have been forked with the same.
_shared = mmap.mmap(-1, 8)


class _ShutsDown(Exception):
    """The worker of a run that waits shuts down."""


def waited_for(message: Message, steps: Steps[Lease | LockInfo]) -> Lease | LockInfo:
    """Make the steps of an acquire, for a run of this message. Returns and raises what they do; at
    a shutdown of the worker it raises what `leave_worker` raises."""
    try:
        return blocking(steps, _wait if message.queued else Pause.wait)
    except _ShutsDown:
        leave_worker(message)


def _wait(pause: Pause) -> Grant | Refusal | None:
    """As `Pause.wait`, in slices. Raises `_ShutsDown`."""
    until, waiter = clock.now() + pause.seconds, pause.waiter
    while True:
        if int.from_bytes(_shared[:], "big") in (os.getpid(), os.getppid()):
            raise _ShutsDown
        left = until - clock.now()
        news = pause._replace(seconds=min(left, LOOK_SECONDS)).wait()
        ends = pause.watched or left <= LOOK_SECONDS or (waiter is not None and waiter.cut)
        if news is not None or ends:
            return news


@worker_shutting_down.connect
def _shut_down(**_: object) -> None:
    # Here, because only a worker is to import it.
    from .._compat.celery_worker import active_requests

    _shared[:] = os.getpid().to_bytes(8, "big")
    # If they do not end in time, that is no death of theirs.
    for request in active_requests():
        if hasattr(request, "take_back"):
            request.take_back()
