"""What this process knows of one of its tokens: which calls about its lease are under way. And how
long its lock stays taken after the release: ``hold_at_least``, ``cooldown``.

The release of a cooling lock rewrites the owner of its lease instead of ending it: the lease goes
on without a process, with the mark `COOLING`, and ends by itself. So nothing has to run meanwhile,
nobody takes it over, and the wait queue, the list and `clear` work as for any lease.

When the lock is free again is a moment on this process's clock, which is set once. A release that
is repeated, after an outage or an interruption, makes the lease end at the same moment.

A holder that is killed releases nothing, so its lock does not cool: the message of a killed run
comes back, and must not be refused because of its own dead run.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from weakref import ref

from .._values import clock
from .._values.arguments import SHORTEST_TTL_SECONDS
from ..exceptions import InvalidLockConfig
from ..stores.base import BaseStore, Note

# The states of a token: lease.py draws them.
ASKED, HELD, RELEASED, DETACHED = "asked", "held", "released", "detached"
LOST, GIVEN_UP = "lost", "given up"


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


class LeaseCall:
    """One call about a lease. It is over with its last reference, also if it was interrupted."""


class OwnToken:
    """All that this process knows of one of its tokens.

    ``of`` is what needs the token, and ``names`` the lock, or those of which one is asked for.
    ``note`` is what the acquire writes; once the lease is granted, what its release is to write.
    """

    # There may be thousands.
    __slots__ = (
        "alarm", "bare", "calls", "cooling", "due", "lease", "left", "limit", "names", "note", "of",
        "reason", "recalled", "record", "renew", "since", "state", "token", "ttl", "until",
        "way_out",
    )  # fmt: skip

    def __init__(
        self, of: ref[Any], names: Sequence[str], token: str, ttl: float, record: dict[str, Any],
        note: Note | None = None, renew: bool = False,
    ) -> None:  # fmt: skip
        self.of, self.names, self.token, self.ttl = of, names, token, ttl
        self.record, self.note, self.renew = record, note, renew
        # When the lease ends, and when the thread has to do something about it, on `clock.now`.
        self.until = self.due = math.inf
        # Beyond this moment it is never extended (``max_hold``).
        self.limit = math.inf
        self.state = ASKED
        # When the caller read the grant, on `clock.now`. None: it has read none.
        self.since: float | None = None
        # Why it is lost.
        self.reason = ""
        # Whether ``of`` is a lease that nobody gives back: its end is only no longer put off.
        self.bare = False
        # That of the `Grant`.
        self.left: Callable[[], float] | None = None
        self.cooling: Cooling | None = None
        # Returns the `Lease`, the public face of the token, if the application still has it.
        self.lease: Callable[[], Any] = lambda: None
        # Called when it is lost, or its holder recalled, in the thread that finds that.
        self.alarm: Callable[[], None] | None = None
        # Has one item once the holder is recalled: the task id of the later call that replaces it.
        self.recalled: Sequence[str] = ()
        # The calls about the lease that are under way, in their order, each with its thread. One
        # that is over is removed by the callback of its reference: in C, where no signal handler
        # can run.
        self.calls: dict[ref[LeaseCall], int] = {}
        # Has one item while it is held: the caller that takes it makes the next passage. No lock:
        # an exception from a signal handler would leave it locked.
        self.way_out: dict[str, bool] = {}

    @property
    def name(self) -> str:
        """The lock's name, once it is granted."""
        return self.names[0]

    def bounded(self, ttl: float, now: float) -> float:
        """How long it lasts if it is extended at this moment, by so many seconds or up to its
        limit."""
        return min(ttl, max(SHORTEST_TTL_SECONDS, self.limit - now))

    @property
    def ends_at_limit(self) -> bool:
        """Whether its end cannot be put off any more."""
        return self.until > self.limit - SHORTEST_TTL_SECONDS

    def begin_call(self) -> LeaseCall:
        """Return what the caller refers to as long as its call about the lease lasts."""
        call = LeaseCall()
        self.calls[ref(call, self.calls.pop)] = threading.get_ident()
        return call

    def is_next(self, call: LeaseCall, until: float) -> bool:
        """Wait for the calls of other threads that began before this one, at most until ``until``,
        on `clock.now`. Returns whether they are over. An earlier call of this thread is over: it
        was interrupted."""
        while True:
            for each, thread in list(self.calls.items()):
                if each() is call:
                    return True
                if thread != threading.get_ident():
                    break
            if clock.now() >= until:
                return False
            time.sleep(0.001)
