"""A lease, as its holder has it."""

from __future__ import annotations

import base64
import math
import os
from collections.abc import Mapping
from typing import Any, Protocol

from . import clock
from .exceptions import LeaseLost
from .lock_info import LockInfo
from .native import new_lock
from .owner import Owner, owner_record

__all__ = ["Lease", "LockInfo", "new_token"]

TOKEN_LENGTH = 22
"""characters; 16 random bytes in URL-safe base64 without padding"""

HELD, RELEASED, LOST, GIVEN_UP, GIVEN_BACK = range(5)
"""A lease is given up when its release was interrupted, and given back when it was released after
that, beside its holder, who may still ask what came of it."""
# Nothing is called under this lock: there a signal could come in, and its handler want it too.
_overlaps = new_lock()
_process = 0


def new_token() -> str:
    """Random proof of one lease: 128 bits, `TOKEN_LENGTH` ASCII characters."""
    return base64.urlsafe_b64encode(os.urandom(16))[:TOKEN_LENGTH].decode("ascii")


class _Keeper(Protocol):
    """What a lease needs of the service that granted it: `keeper.Keeper`."""

    def release(self, lease: Lease, note: Any) -> bool: ...
    def give_up(self, lease: Lease) -> None: ...
    def released(self, lease: Lease) -> bool: ...
    def extend(self, lease: Lease, ttl: float) -> bool: ...
    def lost(self, lease: Lease, reason: str) -> None: ...


class Lease:
    """One timed grant of a lock to one holder.

    ``name``, ``token``, ``fence`` (None on a store without fences) and ``store`` (the alias)
    do not change; ``ttl`` is the length, in seconds, of the last grant or extension. A lease
    is over ``ttl`` seconds after the moment just before that call was sent, by this process's
    clock, whatever the server says later. Over is final.

    It belongs to its process. A copy within it is the lease itself; what another process
    unpickles tells of the lease, is not held there and releases nothing.
    """

    __slots__ = (
        "__weakref__",
        "_calls",
        "_claims",
        "_deadline",
        "_due",
        "_earliest",
        "_keeper",
        "_process",
        "_proof",
        "_reason",
        "_record",
        "_state",
        "fence",
        "name",
        "renew",
        "store",
        "token",
        "ttl",
    )

    def __init__(
        self,
        keeper: _Keeper,
        store: str,
        name: str,
        token: str,
        fence: int | None,
        ttl: float,
        deadline: float,
        record: Mapping[str, Any],
        proof: Any = None,
        renew: bool = False,
    ) -> None:
        self._keeper = keeper
        self.store = store
        self.name = name
        self.token = token
        self.fence = fence
        self.ttl = ttl
        self.renew = renew
        self._deadline = deadline
        self._due = math.inf
        self._record = record
        self._proof = proof
        self._process = _process
        self._state = HELD
        self._claims: list[None] = [None]
        self._reason = ""
        self._calls = 0
        self._earliest = math.inf

    def __repr__(self) -> str:
        state = ("held", "released", "lost", "given up", "released")[self._state]
        return f"<Lease {self.name!r} fence={self.fence} {state}>"

    def __copy__(self) -> Lease:
        return self

    def __deepcopy__(self, memo: object) -> Lease:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        record = dict(self._record)
        return _unpickled, (self.store, self.name, self.token, self.fence, self.ttl, record)

    @property
    def owner(self) -> Owner:
        """The owner recorded with the lease."""
        return Owner.from_record(self._record)

    @property
    def held(self) -> bool:
        """Whether the lease still holds the lock, by this process's clock."""
        if self._state != HELD or self._process != _process:
            return False
        if clock.now() < self._deadline:
            return True
        self._keeper.lost(self, "its ttl ran out")
        return False

    @property
    def remaining(self) -> float:
        """Seconds left; 0.0 once the lease is gone."""
        return max(0.0, self._deadline - clock.now()) if self.held else 0.0

    def assert_held(self) -> None:
        """Raise `LeaseLost` unless the lease still holds the lock."""
        if not self.held:
            raise LeaseLost(self.name, self._reason or self._why())

    def extend(self, ttl: float | None = None) -> bool:
        """Make the lease last ``ttl`` seconds from now (by default: as long as last time).

        Returns False if it was no longer ours; nothing was changed then. Raises
        `StoreUnavailable` when the store does not answer: the lease then ends at its old
        deadline, unless a later call succeeds.
        """
        return self._keeper.extend(self, self.ttl if ttl is None else ttl)

    def release(self, _note: Any = None) -> bool:
        """Give the lock back. Returns False if it was no longer ours; nothing was changed then.

        Raises `StoreUnavailable` when the store does not answer. Then, and when whatever else
        interrupts it, the lease is given up all the same: it is not held any more, and is released
        as soon as the store answers, at the latest at its deadline. A later call says whether it
        was still ours.
        """
        # On one line: what stands before it is not protected, and that includes a bare `try:`.
        try: return self._keeper.release(self, _note)  # fmt: skip # noqa: E701
        except BaseException:
            self._keeper.give_up(self)
            raise

    def _why(self) -> str:
        if self._process != _process:
            return "it belongs to the parent of this forked process"
        if self._state == GIVEN_UP:
            return "its release was interrupted"
        return "it was released" if self._state in (RELEASED, GIVEN_BACK) else "it is over"

    def _is_mine(self) -> bool:
        return self._process == _process

    def _end(self, state: int, reason: str = "") -> bool:
        """Leave HELD for good. True for the one caller who did it."""
        if self._state != HELD or self._process != _process or not self._claim():
            return False
        self._state = state
        self._reason = reason
        return True

    def _hold_on(self) -> None:
        """Back to HELD, for the one who left it a moment ago."""
        self._state = HELD
        self._claims.append(None)

    def _give_up(self) -> bool:
        """Give up what may still stand in the store. False: there is nothing, or it was done."""
        if self._process != _process or self._state in (LOST, GIVEN_UP, GIVEN_BACK):
            return False
        self._state = GIVEN_UP
        self._claims[:] = (None,)
        self.renew = False
        return True

    def _given_back(self) -> bool:
        """Note that a lease which was given up is released. True for the one caller who did it."""
        if self._state != GIVEN_UP or not self._claim():
            return False
        self._state = GIVEN_BACK
        self._claims.append(None)
        return True

    def _tell_release(self) -> bool:
        """True once after it was given back, for the holder, who did not hear of it then."""
        if self._state != GIVEN_BACK or not self._claim():
            return False
        self._state = RELEASED
        return True

    def _claim(self) -> bool:
        # One step, without a lock: an exception between two steps would leave that locked.
        try:
            self._claims.pop()
        except IndexError:
            return False
        return True

    def _extending(self, began: list[bool]) -> bool:
        """Announce an extension. False: the lease is gone."""
        if not self.held:
            return False
        with _overlaps:
            if self._calls == 0:
                self._earliest = math.inf
            self._calls += 1
            began[0] = True
        return True

    def _extended(self, began: list[bool], ends: float, said: bool | None) -> None:
        """Note what an extension came to: ``said`` is None where no reply came.

        Those that overlap (the caller's and the renewal's) may have reached the store in any
        order, and one without a reply may have shortened the lease: the earliest end counts.
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
    """The keeper of a lease that is held elsewhere."""

    def release(self, lease: Lease, note: Any) -> bool:
        return False

    def give_up(self, lease: Lease) -> None:
        pass

    def released(self, lease: Lease) -> bool:
        return False

    def extend(self, lease: Lease, ttl: float) -> bool:
        return False

    def lost(self, lease: Lease, reason: str) -> None:
        pass


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


def _forget_parent() -> None:
    # After a fork the child owns none of its parent's leases, and the lock may have been
    # held by a thread that the child does not have.
    global _process, _overlaps
    _process += 1
    _overlaps = new_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)
