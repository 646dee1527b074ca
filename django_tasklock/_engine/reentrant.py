"""``lock(..., reentrant=True)``: blocks that share one lease.

Nothing is counted. Each block that shares a lease has a use in ``Hold.uses``, and removes it when
it ends; the lease is released when that set is empty. To add and to remove are one step each, which
may be repeated, so an exception from a signal handler leaves no wrong number behind. A use that is
garbage-collected, because its block never began, removes itself as well. The hold itself lives as
long as a use refers to it, and gives its lease up at its end.
"""

from __future__ import annotations

from typing import Any
from weakref import ref

from .._values.keyed import key_of
from ..exceptions import StoreUnavailable
from .all_at_once import AllAtOnce
from .cooling import CoolingTimes
from .lease import Lease
from .lease_state import LOST
from .running import ListOfEach, Running, running
from .steps import Steps
from .taker import OneLock
from .use import Use

__all__ = ["Hold", "ReentrantLock", "ReentrantUse"]


class Hold(Use):
    """A lease that several blocks may share.

    ``alias`` and ``key`` are those of the lock; the key for permits is marked. ``sealed``: the
    last use may have left, so no further one may come in.
    """

    __slots__ = ("_runs", "alias", "key", "sealed", "uses")

    def __init__(self, alias: str, key: str, who: Running) -> None:
        super().__init__(None)
        self.alias = alias
        self.key = key
        self.sealed = False
        self.uses: set[int] = set()
        """the ids of the uses"""
        self._runs = who.refs()

    def is_of(self, alias: str, key: str, who: Running) -> bool:
        """Whether ``who`` has taken this lock."""
        return self.key == key and self.alias == alias and who.is_of(self._runs)

    def add(self, use: ReentrantUse) -> bool:
        """Add a use. False: the last one may have left meanwhile, in another thread."""
        self.uses.add(id(use))
        return not self.sealed

    def remove(self, use: ReentrantUse) -> bool:
        """Remove a use. True if no other is there: the lease is to be released.

        Whoever removes a use looks at the set after that, and whoever adds one looks at ``sealed``
        after that. So the lease of a use that was added is not released, and if two remove theirs
        at the same time, one of them at least gets True.
        """
        self.uses.discard(id(use))
        if self.uses:
            return False
        self.sealed = True
        return not self.uses

    def leave(self, *, failed: bool, quiet: bool | None = None) -> None:
        """As `Use.leave`. Several threads may call it."""
        lease, quiet = self.lease, failed if quiet is None else quiet
        if lease is None:
            return
        try:
            self.note_end(failed=failed)
            if not lease.release() and not quiet and not lease._ended_well():
                lease.assert_held()
        except StoreUnavailable:
            if not quiet:
                raise


class ReentrantUse(Use):
    """The ``__exit__`` of one block, with the block's share of a lease."""

    __slots__ = ("hold",)

    def __init__(self, by_hand: Any) -> None:
        self.hold: Hold | None = None
        super().__init__(by_hand)

    def cool(self, times: CoolingTimes | None) -> None:
        """As `Use.cool`, unless another block shares the lease: what the outermost block says
        counts."""
        if self.hold is not None and not self.shared():
            self.hold.cool(times)

    def note_end(self, *, failed: bool) -> None:
        """As `Use.note_end`, unless another block goes on with the lease."""
        if self.hold is not None and not self.shared():
            self.hold.note_end(failed=failed)

    def leave(self, *, failed: bool, quiet: bool | None = None) -> None:
        """As `Use.leave`; the lease is released if no other block shares it."""
        quiet = failed if quiet is None else quiet
        try:
            if self.hold is None:
                assert self.by_hand is not None
                entered: ReentrantUse = self.by_hand.take()
                entered.leave(failed=failed, quiet=quiet)
            elif self.hold.remove(self):
                self.hold.leave(failed=failed, quiet=quiet)
            elif not quiet:
                lease = self.hold.lease
                if lease is not None and not lease._ended_well():
                    lease.assert_held()
        finally:
            self.drop()

    def shared(self) -> bool:
        """Whether another block has the same lease."""
        return self.hold is not None and len(self.hold.uses) > 1

    def keep(self) -> None:
        """Have a later call of ``__exit__`` leave this use.

        The `lock()` object refers to this use from now on. If both go away, the lease is given up.
        """
        assert self.by_hand is not None
        self.by_hand.add(self)
        self.by_hand = None

    def drop(self) -> None:
        """Give the lease up, if it was not released and no other block shares it."""
        hold = self.hold
        if hold is not None:
            if hold.remove(self):
                hold.drop()
            self.hold = None

    @property
    def renew(self) -> bool:
        """Whether the lease is renewed."""
        return self.hold is not None and self.hold.lease is not None and self.hold.lease.renew

    @renew.setter
    def renew(self, renew: bool) -> None:
        if self.hold is not None and self.hold.lease is not None:
            self.hold.lease.renew = renew

    def __del__(self) -> None:
        if getattr(self, "hold", None) is not None:  # None: `__init__` was interrupted.
            self.drop()


class ReentrantLock(OneLock):
    """Takes one lock, or shares the lease of the same lock that is held here."""

    new_use = ReentrantUse

    def take(
        self, name: str, use: Use, wait: float | None, _together: AllAtOnce | None = None
    ) -> Steps[Lease]:
        """Take the lock ``name``, or a share of its lease. Several are taken one after the other:
        one that is shared would stand in the way of a question for all.

        Raises `LockNotAcquired`, `StoreUnavailable`, and `LeaseLost` if the lease that would be
        shared is lost.
        """
        assert isinstance(use, ReentrantUse)
        who = running()
        # No lock has such a name: a permit is shared for its own name only, with any N.
        shared = key_of(self.service.store.keyed(name))
        if self.slots > 1:
            shared += " permit"
        holds = _holds.of(who)
        for entry in tuple(holds):
            hold = entry()
            if hold is None or hold.sealed or not hold.is_of(self.service.alias, shared, who):
                continue
            lease = _usable(hold)
            if lease is not None:
                use.hold = hold
                if hold.add(use):
                    return lease
                use.drop()
        hold = Hold(self.service.alias, shared, who)
        hold.template = use.template
        use.hold = hold
        hold.add(use)
        lease = yield from super().take(name, hold, wait)
        # It goes when the hold does.
        holds.append(ref(hold, holds.remove))
        return lease


def _usable(hold: Hold) -> Lease | None:
    """Return the lease if it can be shared. Raises `LeaseLost` if it is lost."""
    lease = hold.lease
    if lease is None or lease.held:
        return lease
    if lease._state == LOST and lease._is_mine():
        lease.assert_held()
    return None


_holds: ListOfEach[ref[Hold]] = ListOfEach()
