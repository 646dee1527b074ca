"""The thread of a store's renewal: it works, and sleeps until it is woken or something is due."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from django.core.cache import caches
from django.db import connections

from .._compat.native_threads import NativeLock, this_thread

__all__ = ["close_own", "run", "wake"]

PAUSE_SECONDS = 0.1
"""after an error that should not have been raised"""


class Works(Protocol):
    """What the thread works for: `store_renewal.StoreRenewal`."""

    def work(self) -> float: ...
    def entries(self) -> Sequence[object]: ...


def run(of: Callable[[], Works | None], running: NativeLock, wakeup: NativeLock) -> None:
    """Work until ``of()`` returns None.

    ``running`` is held meanwhile; if another thread holds it, this one ends at once. ``wakeup`` is
    a lock that is held: `wake` releases it. Raises nothing.
    """
    if not running.acquire(False):
        return
    this_thread.renews = True
    while (own := of()) is not None:
        try:
            seconds = own.work()
        except BaseException:
            # Nothing in there may end the thread: every other lease depends on it.
            seconds = PAUSE_SECONDS
        if not own.entries():
            del own  # A store that is no longer in use is collected, which wakes this thread.
        wakeup.acquire(timeout=seconds)
    with suppress(Exception):
        close_own()


def wake(wakeup: NativeLock) -> None:
    """Wake the thread that sleeps, or let it not fall asleep. Raises nothing."""
    try:
        wakeup.release()
    except RuntimeError:
        pass  # It is woken already.


def close_own() -> None:
    """Close what this thread has open of Django's.

    It is no request, at whose end Django would close what a store, or a receiver of a signal, has
    opened.
    """
    connections.close_all()
    caches.close_all()
