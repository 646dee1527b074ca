"""A lock stays taken for a while after its release: ``hold_at_least``, ``cooldown``.

The release of a cooling lock rewrites the owner of its lease instead of ending it: the lease goes
on without a process, with the mark `COOLING`, and ends by itself. So nothing has to run meanwhile,
nobody takes it over, and the wait queue, the list and `clear` work as for any lease.

When the lock is free again is a moment on this process's clock, which is set once. A release that
is repeated, after an outage or an interruption, makes the lease end at the same moment.

A holder that is killed releases nothing, so its lock does not cool: the message of a killed run
comes back, and must not be refused because of its own dead run.
"""

from __future__ import annotations

from typing import NamedTuple

from .._values import clock
from .._values.arguments import SHORTEST_TTL_SECONDS
from ..exceptions import InvalidLockConfig
from ..stores.base import BaseStore


class CoolingTimes(NamedTuple):
    """The options of a lock, in seconds; 0 for none."""

    hold_at_least: float
    cooldown: float
    cooldown_after_error: float

    def check(self, store: BaseStore) -> None:
        """Raise `InvalidLockConfig` if the store does not keep a lock for as long."""
        store.check_lasts("hold_at_least and cooldowns", max(self), InvalidLockConfig)


class Cooling:
    """How long the lock of one lease stays taken. Made when the lease was acquired.

    ``hold_at_least`` counts from after the store's answer, so it is never a moment too short.
    """

    __slots__ = ("_ended", "_times", "_until")

    def __init__(self, times: CoolingTimes) -> None:
        self._times = times
        self._until = clock.now() + times.hold_at_least
        self._ended = False

    def ended(self, *, failed: bool) -> None:
        """Note that the run has ended, well or not. Only the first call counts."""
        if not self._ended:
            _, cooldown, after_error = self._times
            self._until = max(self._until, clock.now() + (after_error if failed else cooldown))
            self._ended = True

    def left(self) -> float:
        """The seconds for which the lock is still to be taken; 0.0 if it may be free."""
        left = self._until - clock.now()
        return left if left >= SHORTEST_TTL_SECONDS else 0.0
