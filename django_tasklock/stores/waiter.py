"""How a caller asks for a lock: its question, the answer, and the waiter of one that is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from .._values.lock_info import LockInfo
from .records import Note, Record


class Question(NamedTuple):
    """The arguments of `BaseStore.acquire`, which says what they mean."""

    names: Sequence[str]
    token: str
    ttl: float
    owner: Record
    note: Note | None = None


class Grant(NamedTuple):
    """The lock was granted.

    Attributes:
        name: which one, of several that were asked for.
        fence: the number of the lease, greater than that of every earlier lease of the lock. None
            on a store without fences.
        noted: whether the note was written in the same step, or was there already.
        left: returns the seconds that are left by a clock of the store's own, which this process
            can read: the lease is over as soon as either clock says so. None: only `clock.now`
            counts.
    """

    name: str
    fence: int | None = None
    noted: bool = False
    left: Callable[[], float] | None = None


class Refusal(NamedTuple):
    """None of the locks that were asked for is free: ``holders`` hold them, at least one."""

    holders: tuple[LockInfo, ...]

    @property
    def holder(self) -> LockInfo:
        """The one that ends first."""
        return min(self.holders, key=lambda info: float("inf") if info.ttl is None else info.ttl)


class CannotSubscribe(Exception):
    """No connection is available to subscribe on at the moment: the caller polls instead."""


class Waiter(Protocol):
    """One caller that waits for a lock, or for one of several, and its entry in the wait queue."""

    #: how many were before it in the queue when it asked last; 0 if it was told since that it is
    #: the next. The next one looks at once whether a holder has died, the others now and then
    ahead: int

    @property
    def ready(self) -> bool:
        """Whether `ask` can join the wait queue without a round trip of its own before it."""

    def ask(self) -> Grant | Refusal:
        """Ask for the lock. If it is held, join the wait queue, or keep the position there.

        Raises `CannotSubscribe` and `StoreUnavailable`.
        """

    def wait(self, seconds: float) -> Grant | Refusal | None:
        """Wait until the lock is handed over to this waiter, at most ``seconds``.

        Returns the grant, whose lease ends its ttl after the last `ask`; a `Refusal` when the lock
        was handed to another waiter, which is the holder now; None when nothing happened. It may
        return early; `cut` then says whether to ask again. Raises `StoreUnavailable`.
        """

    def wake_by(self, wake: Callable[[], None]) -> float:
        """Have ``wake`` called, in any thread, when ``wait(0)`` may return something, or `cut` has
        become true: also at once, if it may now, and also for nothing. For event loops.

        It is called after `ask`, and again after each ``wait(0)`` that returned None. ``wake``
        returns at once and raises nothing. Returns the seconds after which to call ``wait(0)`` even
        if nobody was woken; infinity, if that is never needed.
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
