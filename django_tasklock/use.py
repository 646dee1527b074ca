"""One use of a `lock()`: whose lease it is, and how it is left."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import Any, overload
from weakref import ref

from .exceptions import StoreUnavailable
from .lease import HELD, RELEASED, Lease

__all__ = ["ByHand", "Exit", "Use", "entering"]


class ByHand:
    """The open leases of a lock whose ``__enter__`` was called, and not by a ``with``."""

    def __init__(self) -> None:
        self._open: list[tuple[object, Lease]] = []

    def add(self, lease: Lease) -> None:
        """One that is left by a call of ``__exit__``, in this thread if others are open."""
        self._open.append((_here.thread, lease))

    def take(self) -> Lease:
        """The one that is left by this call. Raises `RuntimeError` if that cannot be told."""
        thread = _here.thread
        candidates = [entry for entry in self._open if entry[0] is thread] or self._open[:]
        if candidates and (candidates[-1][0] is thread or len(candidates) == 1):
            try:
                self._open.remove(candidates[-1])
            except ValueError:  # Another thread was first.
                candidates = []
            else:
                return candidates[-1][1]
        if not candidates:
            raise RuntimeError("this lock() was left already, or never entered")
        for _, lease in candidates:
            lease.renew = False  # Perhaps nobody will ever leave it.
        raise RuntimeError(
            f"this lock() was entered {len(candidates)} times by other threads, and which of "
            "them is left here cannot be told: nothing was released, and their leases are not "
            "renewed any more. Use one lock() for each use."
        )


class Use:
    """The ``__exit__`` of one block, with the block's lease.

    A block keeps the one that it was given when it was entered, whoever shares the `lock` object
    and whichever thread closes the block. A use that is dropped and not left, as when an exception
    came in the very moment of leaving, gives its lease up.
    """

    __slots__ = ("__weakref__", "by_hand", "lease")

    def __init__(self, by_hand: ByHand | None) -> None:
        self.by_hand = by_hand
        self.lease: Lease | None = None

    def __call__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self.leave(failed=kind is not None)

    def leave(self, *, failed: bool) -> None:
        """Release at the end of a block; what the block raised comes before what is wrong here."""
        try:
            if self.lease is None:
                assert self.by_hand is not None
                self.lease = self.by_hand.take()
            lease = self.lease
            released = lease.release()
            if not released and not failed and lease._state != RELEASED:
                lease.assert_held()
        except StoreUnavailable:
            if not failed:
                raise
        finally:
            self.drop()

    def drop(self) -> None:
        """Give up the lease, if it was not released."""
        lease, self.lease = self.lease, None
        if lease is not None and lease._state == HELD:
            lease._keeper.give_up(lease)

    def __del__(self) -> None:
        if getattr(self, "lease", None) is not None:  # It was made whole.
            self.drop()


class _OfClass(Use):
    """Its use by way of the class, as `contextlib.ExitStack` does: the lock is an argument."""

    __slots__ = ("frame",)

    def __init__(self, frame: int) -> None:
        super().__init__(None)
        self.frame = frame

    def __call__(self, block: Any, *exc: Any) -> None:
        self.by_hand = block._by_hand
        super().__call__(*exc)


class Exit:
    """An ``__exit__`` that is a new `Use` each time that it is looked up.

    ``with`` looks up ``__enter__`` and ``__exit__`` before it calls the former (The Python Language
    Reference, 8.5), and keeps the latter until its end. So does `contextlib.ExitStack`.
    """

    @overload
    def __get__(self, block: None, owner: type[Any]) -> _OfClass: ...
    @overload
    def __get__(self, block: Any, owner: type[Any]) -> Use: ...
    def __get__(self, block: Any, owner: type[Any]) -> Use:
        use = _OfClass(id(sys._getframe(1))) if block is None else Use(block._by_hand)
        _here.last = ref(use)
        return use


class _Here(threading.local):
    """What is known of this thread."""

    last: ref[Use] | None = None
    """the last use that was looked up"""

    def __init__(self) -> None:
        self.thread = object()
        """the thread itself: another one may have its number later"""


_here = _Here()


def entering(by_hand: ByHand) -> Use | None:
    """The use that somebody has looked up to leave the lock with that is entered now; for
    ``__enter__``. None: it is entered by hand, and left by any call of ``__exit__``."""
    last, _here.last = _here.last, None
    use = None if last is None else last()
    if use is None or use.lease is not None:
        return None
    if isinstance(use, _OfClass):
        return use if use.frame == id(sys._getframe(2)) else None
    return use if use.by_hand is by_hand else None
