"""`Lease`: what the holder of a lock has."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import Any

from .._compat.native_threads import new_lock
from .._values import clock
from .._values.owner import Owner
from .._values.owner_record import owner_record
from .._values.slots import slot_of
from ..exceptions import LeaseLost
from . import lease_state
from .aio.lease_verbs import AsyncLease
from .lease_state import DETACHED, DETACHING, HELD, LOST, Keeps, LeaseState

__all__ = ["Lease"]

# No function is called while this lock is held: a signal handler could run then, and need it too.
_overlaps = new_lock()


class Lease(AsyncLease, LeaseState):
    """One timed grant of a lock to one holder.

    ``name``, ``token``, ``fence`` (None on a store without fences) and ``store`` (the alias) do not
    change. ``ttl`` is the length of the last grant or extension, in seconds. ``template`` is what
    the name was filled from, such as "video:{video_id}"; None where that is not known.

    The lease is over ``ttl`` seconds after the moment just before that call was sent, by the clock
    of this process. That is final, whatever the server says later.

    A lease belongs to the process that acquired it. There, ``copy.copy`` and ``copy.deepcopy``
    return the lease itself. A lease that is unpickled has the same fields, but is not held, and its
    ``release`` returns False.
    """

    __slots__ = (
        "__weakref__",
        "_calls",
        "_cooling",
        "_due",
        "_earliest",
        "_proof",
        "_record",
        "_since",
        "fence",
        "name",
        "store",
        "template",
        "token",
        "ttl",
    )

    def __init__(
        self,
        keeper: Keeps,
        store: str,
        name: str,
        token: str,
        fence: int | None,
        ttl: float,
        deadline: float,
        record: Mapping[str, Any],
        proof: Any = None,
        renew: bool = False,
        left: Callable[[], float] | None = None,
    ) -> None:
        self._keeper = keeper
        self.store = store
        self.name = name
        self.token = token
        self.fence = fence
        self.ttl = ttl
        self.renew = renew
        self.template: str | None = None
        self._deadline = deadline
        self._since = deadline - ttl
        self._due = math.inf
        self._record = record
        self._proof = proof
        self._left_in_store = left
        self._process = lease_state.process
        self._state = HELD
        self._claims: list[None] = [None]
        self._reason = ""
        self._calls = 0
        self._cooling: Any = None  # Its `cooling.Cooling`, if the lock has one.
        self._earliest = math.inf

    def __repr__(self) -> str:
        words = ("held", "released", "lost", "given up", "released", "detached", "detached")
        state = words[self._state]
        return f"<Lease {self.name!r} fence={self.fence} {state}>"

    def __copy__(self) -> Lease:
        return self

    def __deepcopy__(self, memo: object) -> Lease:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        record = dict(self._record)
        return _unpickled, (self.store, self.name, self.token, self.fence, self.ttl, record)

    @property
    def slot(self) -> int | None:
        """The number of the permit, from 1; None for the lease of a plain lock."""
        return slot_of(self.name, self._record.get("slots"))

    @property
    def owner(self) -> Owner:
        """The owner that is recorded with the lease."""
        return Owner.from_record(self._record)

    @property
    def remaining(self) -> float:
        """The seconds that are left; 0.0 if the lease is not held."""
        if not self.held:
            return 0.0
        left = self._deadline - clock.now()
        if self._left_in_store is not None:
            left = min(left, self._left_in_store())
        return max(0.0, left)

    def assert_held(self) -> None:
        """Raise `LeaseLost` if the lease does not hold the lock any more."""
        if not self.held:
            raise LeaseLost(self.name, self._reason or self._why())

    def extend(self, ttl: float | None = None) -> bool:
        """Make the lease last ``ttl`` seconds from now. None: as long as last time.

        Returns False if the lease no longer held the lock; nothing was changed then. Raises
        `StoreUnavailable` if the store does not answer: the lease ends at the earlier of its old
        and its new deadline then, unless a later call succeeds. Raises `TypeError` or `ValueError`
        for a wrong ``ttl``.
        """
        return self._keeper.extend(self, self.ttl if ttl is None else ttl)

    def release(self, _note: Any = None) -> bool:
        """Give the lock back, or let it cool (``hold_at_least``, ``cooldown``).

        Returns False if the lease no longer held it; nothing was changed then. Raises
        `StoreUnavailable` if the store does not answer. Then, and if any other exception interrupts
        the call, the lease is given up: it is not held any more, and the renewal thread releases it
        as soon as the store answers. It ends at its deadline at the latest. A later call of this
        method returns True, once, if the lease was released after all.
        """
        # On one line: a signal may interrupt before each line, also before a bare `try:`.
        try: return self._keeper.release(self, _note)  # fmt: skip # noqa: E701
        except BaseException:
            self._keeper.give_up(self, _note)
            raise

    def detach(self, ttl: float | None = None) -> str:
        """Let the lease go on without this process. Returns a handle for ``locks.adopt``, with
        which another process, or this one, goes on under it.

        From then on this process neither holds nor renews the lease: `held` is False, `release`
        returns False, a block that holds it ends without an error and releases nothing. Nobody else
        gets the lock until the lease ends, ``ttl`` seconds from now (None: as long as last time),
        or the adopter releases it, whatever becomes of this process.

        The handle is a str of printable ASCII, for JSON or a header. It can be used once.

        Raises `LeaseLost` if the lease does not hold the lock, `TypeError` or `ValueError` for a
        wrong ``ttl``, `InvalidLockConfig` on a store without ``supports_rewrite``, and
        `StoreUnavailable`. After that, and if any other exception interrupts the call, the lease is
        given up, as by an interrupted `release`.
        """
        try: handle = self._keeper.detach(self, ttl); self._state = DETACHED; return handle  # fmt: skip # noqa: E501, E701, E702
        except BaseException:
            if self._state == DETACHING:
                self._keeper.give_up(self)
            raise

    def _extending(self, began: list[bool]) -> bool:
        """Note that an extension begins, in ``began``. Returns False if the lease is not held."""
        if not self.held:
            return False
        with _overlaps:
            if self._calls == 0:
                self._earliest = math.inf
            self._calls += 1  # Before the look at the state: see `_extensions`.
            if self._state != HELD:
                self._calls -= 1
                return False  # It is released or detached just now.
            began[0] = True
        return True

    def _extensions(self) -> int:
        """The number of extensions under way. Once it is 0, a lease that is not held has none.

        Without the lock: the state was changed before, and an extension is counted before it looks
        at the state.
        """
        return self._calls

    def _extended(self, began: list[bool], ends: float, said: bool | None) -> None:
        """Note the end of an extension. ``said``: the store's reply; None if there was none.

        The extensions of a caller and of the renewal may overlap, and reach the store in any order.
        One without a reply may have shortened the lease. So the earliest end counts.
        """
        with _overlaps:
            if began[0]:
                began[0] = False
                self._calls -= 1
                if ends < self._earliest:
                    self._earliest = ends
                if said:
                    self._deadline = self._earliest
                elif said is None and ends < self._deadline:
                    self._deadline = ends


class _Nobody:
    """The keeper of an unpickled lease: every call does nothing."""

    def release(self, lease: Lease, note: Any) -> bool:
        return False

    def give_up(self, lease: Lease, note: Any = None) -> None:
        pass

    def released(self, lease: Lease) -> bool:
        return False

    def extend(self, lease: Lease, ttl: float) -> bool:
        return False

    def lost(self, lease: Lease, reason: str) -> None:
        pass

    def detach(self, lease: Lease, ttl: float | None) -> str:
        raise LeaseLost(lease.name, lease._reason)


def _unpickled(
    store: str, name: str, token: str, fence: int | None, ttl: float, record: dict[str, Any]
) -> Lease:
    lease = Lease(_Nobody(), store, name, token, fence, ttl, -math.inf, record)
    lease._state = LOST
    here = owner_record()
    fields = ("host", "boot", "pidns", "pid", "start")
    if all(record.get(field) == here[field] for field in fields):
        lease._reason = "this is an unpickled copy of it"
    else:
        lease._reason = "it belongs to another process"
    return lease


def _new_overlaps() -> None:
    # A thread that the child does not have may have held the lock.
    global _overlaps
    _overlaps = new_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_overlaps)
