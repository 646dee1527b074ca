"""The states of a lease, and the one way from each to the next.

A lease begins as held. It is then released, or lost, or detached, or given up: it is given up when
its release or its detaching was interrupted, and given back when another thread released it after
that. Then the holder's next call of `Lease.release` returns True.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

from .._values import clock
from .causes import RAN_OUT

__all__ = [
    "DETACHED",
    "DETACHING",
    "GIVEN_BACK",
    "GIVEN_UP",
    "HELD",
    "LOST",
    "RELEASED",
    "Keeps",
    "LeaseState",
    "process",
]

HELD, RELEASED, LOST, GIVEN_UP, GIVEN_BACK, DETACHING, DETACHED = range(7)

process = 0
"""counts the forks that led to this process: a lease of the parent has another number"""


class Keeps(Protocol):
    """What a lease needs of the service that granted it: `keeper.Keeper`."""

    def release(self, lease: Any, note: Any) -> bool: ...
    def give_up(self, lease: Any, note: Any = None) -> None: ...
    def released(self, lease: Any) -> bool: ...
    def extend(self, lease: Any, ttl: float) -> bool: ...
    def lost(self, lease: Any, reason: str) -> None: ...
    def detach(self, lease: Any, ttl: float | None) -> str: ...


class LeaseState:
    """What a lease is now. Each step is made once, by one caller, whatever interrupts the others.

    No lock protects a step: an exception from a signal handler would leave the lock locked.
    """

    __slots__ = (
        "_claims",
        "_deadline",
        "_keeper",
        "_left_in_store",
        "_process",
        "_reason",
        "_state",
        "renew",
    )

    _claims: list[None]
    """holds one item while a step may be made: who removes it makes the step"""
    _deadline: float
    """when the lease is over, on `clock.now`"""
    _keeper: Keeps
    _left_in_store: Callable[[], float] | None
    """`Grant.left`"""
    _process: int
    _reason: str
    """how the lease was lost"""
    _state: int
    renew: bool

    @property
    def held(self) -> bool:
        """Whether the lease still holds the lock, by this process's clock."""
        if self._state != HELD or self._process != process:
            return False
        if clock.now() < self._deadline and (
            self._left_in_store is None or self._left_in_store() > 0
        ):
            return True
        self._keeper.lost(self, RAN_OUT)
        return False

    def _why(self) -> str:
        if self._process != process:
            return "it belongs to the parent of this forked process"
        if self._state == GIVEN_UP:
            return "its release was interrupted"
        if self._state in (DETACHING, DETACHED):
            return "it was detached"
        return "it was released" if self._state in (RELEASED, GIVEN_BACK) else "it is over"

    def _is_mine(self) -> bool:
        return self._process == process

    def _end(self, state: int, reason: str = "") -> bool:
        """Leave HELD for good, for ``state``. True for the one caller that did it."""
        if self._state != HELD or self._process != process or not self._claim():
            return False
        self._state = state
        self._reason = reason
        return True

    def _is_detached(self) -> bool:
        """Whether the lease goes on without this process."""
        return self._state == DETACHED

    def _ended_well(self) -> bool:
        """Whether the holder has released the lease, or has detached it."""
        return self._state in (RELEASED, DETACHED)

    def _hold_on(self) -> None:
        """Return to HELD. Only for the caller that has left it by `_end`."""
        self._state = HELD
        self._claims.append(None)

    def _give_up(self) -> bool:
        """Give the lease up. False: it cannot be in the store, or it was given up before."""
        if self._process != process or self._state in (LOST, GIVEN_UP, GIVEN_BACK, DETACHED):
            return False
        self._state = GIVEN_UP
        self._claims[:] = (None,)
        self.renew = False
        return True

    def _given_back(self) -> bool:
        """Note that a lease which was given up is released. True for the one caller that did it."""
        if self._state != GIVEN_UP or not self._claim():
            return False
        self._state = GIVEN_BACK
        self._claims.append(None)
        return True

    def _tell_release(self) -> bool:
        """Whether the lease was given back and its holder does not know yet: True once."""
        if self._state != GIVEN_BACK or not self._claim():
            return False
        self._state = RELEASED
        return True

    def _claim(self) -> bool:
        try:
            self._claims.pop()
        except IndexError:
            return False
        return True


def _forget_parent() -> None:
    # After a fork the child owns none of its parent's leases.
    global process
    process += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)
