"""The contract of a store that hands locks over to waiters (``supports_waiting``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from .values import Grant, Note, Refusal

__all__ = ["CannotSubscribe", "RankedWaiter", "Waiter", "WakingWaiter"]


class CannotSubscribe(Exception):
    """No connection is available to subscribe on at the moment: the caller polls instead."""


class Waiter(Protocol):
    """One caller that waits for one lock, and its entry in the lock's wait queue."""

    note: Note | None
    """the note that `ask` writes if it is granted the lock"""

    @property
    def ready(self) -> bool:
        """Whether `ask` can join the wait queue without a round trip of its own before it."""

    def ask(self) -> Grant | Refusal:
        """Ask for the lock. If it is held, join the wait queue, or keep the position there.

        Raises `CannotSubscribe` and `StoreUnavailable`.
        """

    def wait(self, seconds: float) -> Grant | Refusal | None:
        """Wait until the lock is handed over to this waiter, at most ``seconds``.

        Returns a `Refusal` when the lock was handed to another waiter, which is the holder now,
        and None when nothing happened. It may return early; `cut` then says whether to ask again.
        Raises `StoreUnavailable`.
        """

    @property
    def cut(self) -> bool:
        """Whether the connection was cut, so that no hand-over reaches this waiter."""

    def leave(self) -> Grant | None:
        """Leave the wait queue. Returns the grant if the lock was handed over just before.

        Raises `StoreUnavailable`.
        """

    def quit(self) -> None:
        """`leave`, for a caller that is about to raise an exception: returns and raises nothing."""


class RankedWaiter(Waiter, Protocol):
    """A waiter that knows its position in the queue. It is optional: any other counts as the next.

    The next waiter looks at once whether a holder has died, and the others only now and then.
    """

    ahead: int
    """how many were before it in the queue when it asked last; 0 if it was told since that it is
    the next"""


class WakingWaiter(Waiter, Protocol):
    """A waiter that can wake its caller by a call, so that no thread has to `wait` meanwhile.

    It is optional. Any other waiter is asked by ``wait(0)``, for code on an event loop, ten times a
    second.
    """

    def wake_by(self, wake: Callable[[], None]) -> float:
        """Have ``wake`` called, in any thread, when ``wait(0)`` may return something, or `cut` has
        become true: also at once, if it may now, and also for nothing.

        It is called after `ask`, and again after each ``wait(0)`` that returned None. ``wake``
        returns at once and raises nothing.

        Returns the seconds after which the caller is to call ``wait(0)`` even if it was not woken;
        infinity, if that is never needed.
        """
