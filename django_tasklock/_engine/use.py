"""One use of a `lock()` object: its lease, and the release at its end."""

from __future__ import annotations

import logging
import threading
from types import TracebackType
from typing import Any, overload
from weakref import ref

from .._compat.python import caller_id
from .._values.describe import printable
from ..exceptions import StoreUnavailable
from .cooling import Cooling, CoolingTimes
from .lease import Lease
from .lease_state import HELD
from .running import acts_for

__all__ = ["ByHand", "Exit", "Use", "entering", "log_not_released", "looked_up"]

logger = logging.getLogger("django_tasklock")


def log_not_released(who: str, name: str, error: StoreUnavailable) -> None:
    """WARNING: work was done under a lock, and the store does not answer its release.

    Whoever calls this raises nothing: an error would have the work done again.
    """
    logger.warning("%s could not release its lock %s now: %s", who, name, printable(error))


class ByHand:
    """The open leases of a `lock()` object whose ``__enter__`` was called without a ``with``.

    An entry is a lease, or a use that keeps more than one lease alone.
    """

    def __init__(self) -> None:
        self._open: list[tuple[object, Any]] = []

    def add(self, lease: Any) -> None:
        """Add a lease of this thread or task, which a later call of ``__exit__`` releases."""
        self._open.append((acts_for() or _here.thread, lease))

    def take(self) -> Any:
        """Remove and return the lease that this call of ``__exit__`` releases.

        That is the last one of this thread, or the only one. Raises `RuntimeError` if there is
        none, or if there are several and all are of other threads.
        """
        thread = acts_for() or _here.thread
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
            lease.renew = False  # Perhaps no call ever releases it: it ends with its ttl.
        raise RuntimeError(
            f"this lock() was entered {len(candidates)} times by other threads, and which of "
            "them is left here is not known: nothing was released, and their leases are not "
            "renewed any more. Use one lock() for each use."
        )


class Use:
    """The ``__exit__`` of one block, with the block's lease.

    A block keeps the use that it got when it was entered. So several blocks may share a `lock()`
    object, and another thread may close a block. A use that is garbage-collected with its lease
    gives the lease up: an exception from a signal handler may come just before the release.
    ``by_hand``: where to find the lease if ``__enter__`` was called without a ``with``.
    ``template``: what the lock's name was filled from, None if that is not known; of several locks,
    a list. ``note_kept``: whether the acquire has not written its note, because there is another.
    """

    __slots__ = ("__weakref__", "by_hand", "lease", "note_kept", "template")

    def __init__(self, by_hand: ByHand | None) -> None:
        self.by_hand = by_hand
        self.note_kept = False
        self.lease: Lease | None = None
        self.template: Any = None

    def __call__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self.leave(failed=kind is not None)

    def cool(self, times: CoolingTimes | None) -> None:
        """Let the lock stay taken for a while after its release: the block begins now. None: not,
        since the block does not begin."""
        if self.lease is not None:
            self.lease._cooling = None if times is None else Cooling(times)

    def note_end(self, *, failed: bool) -> None:
        """Note how the block has ended, which says how long its lock is to cool."""
        if self.lease is not None and self.lease._cooling is not None:
            self.lease._cooling.ended(failed=failed)

    def leave(self, *, failed: bool, quiet: bool | None = None) -> None:
        """Release the lease at the end of a block.

        ``failed``: the block raised an error. ``quiet``: raise nothing; None: if the block failed,
        because its error is to be reported. Otherwise raises `LeaseLost` if the lease was lost, and
        `StoreUnavailable`.
        """
        quiet = failed if quiet is None else quiet
        try:
            if self.lease is None:
                assert self.by_hand is not None
                self.lease = self.by_hand.take()
            lease = self.lease
            self.note_end(failed=failed)
            released = lease.release()
            if not released and not quiet and not lease._ended_well():
                lease.assert_held()
        except StoreUnavailable:
            if not quiet:
                raise
        finally:
            self.drop()

    def shared(self) -> bool:
        """Whether another block has the same lease."""
        return False

    def keep(self) -> None:
        """Have a later call of ``__exit__`` release the lease, and not this use."""
        assert self.by_hand is not None
        self.by_hand.add(self.lease)
        self.lease = None

    def drop(self) -> None:
        """Give the lease up if it was not released."""
        lease, self.lease = self.lease, None
        if lease is not None and lease._state == HELD:
            lease._keeper.give_up(lease)

    def __del__(self) -> None:
        if getattr(self, "lease", None) is not None:  # None: `__init__` was interrupted.
            self.drop()


class _OfClass:
    """An ``__exit__`` that was looked up on the class, as `contextlib.ExitStack` does.

    Its call gets the `lock()` object as an argument. ``frame`` identifies the code that looked it
    up. ``use`` is the use of the block that this code has entered since then.
    """

    __slots__ = ("__weakref__", "frame", "use")

    def __init__(self, frame: int) -> None:
        self.frame = frame
        self.use: Use | None = None

    def __call__(self, block: Any, *exc: Any) -> None:
        use: Use = self.use or block._new_use(block._by_hand)
        use(*exc)


class Exit:
    """An ``__exit__`` that is a new `Use` each time that it is looked up.

    The `lock()` object says of which class, in its attribute ``_new_use``.

    ``with`` looks up ``__enter__`` and ``__exit__`` before it calls ``__enter__`` (The Python
    Language Reference, 8.5), and keeps this ``__exit__`` until the block ends. So does
    `contextlib.ExitStack`.
    """

    @overload
    def __get__(self, block: None, owner: type[Any]) -> _OfClass: ...
    @overload
    def __get__(self, block: Any, owner: type[Any]) -> Use: ...
    def __get__(self, block: Any, owner: type[Any]) -> Use | _OfClass:
        found: Use | _OfClass = looked_up(block, 2)
        return found


def looked_up(block: Any, depth: int) -> Any:
    """Return the use for an ``__exit__`` that is looked up, by the caller so many calls up.

    For the class it is what gets one when a block is entered.
    """
    if block is None:
        of_class = _OfClass(caller_id(depth))
        _here.last = ref(of_class)
        return of_class
    use: Use = block._new_use(block._by_hand)
    _here.last = ref(use)
    return use


class _Here(threading.local):
    """The state of one thread."""

    last: ref[Use] | ref[_OfClass] | None = None
    """the last use that was looked up"""

    def __init__(self) -> None:
        self.thread = object()
        """stands for the thread, whose number another thread may have later"""


_here = _Here()


def entering(block: Any, depth: int = 2) -> Use | None:
    """Return the use that was looked up for the `lock()` object ``block``, which is entered now.

    `LockContext.__enter__` calls it. None: ``__enter__`` was called without a ``with``, and any
    call of ``__exit__`` may end the block. ``depth``: how many frames away it was entered.
    """
    last, _here.last = _here.last, None
    found = None if last is None else last()
    if isinstance(found, _OfClass):
        if found.use is not None or found.frame != caller_id(depth):
            return None
        found.use = block._new_use(block._by_hand)
        return found.use
    if found is None or found.lease is not None:
        return None
    return found if found.by_hand is block._by_hand else None
