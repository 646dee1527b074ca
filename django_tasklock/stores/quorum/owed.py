"""Releases that a member has not confirmed yet."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from ..._compat.native_threads import new_lock
from ..._values import clock
from ...exceptions import StoreUnavailable
from .quorum_lease import QuorumLease

__all__ = ["Owed"]

FIRST_RETRY_SECONDS = 0.1
LONGEST_RETRY_SECONDS = 2.0
"""from the first delay to the longest, before a member that did not answer is asked again"""
LOOK_SECONDS = (0.25, 1.0)
"""after these delays a member is asked once more for a lease that it did not have: the command that
was to acquire it may still be on its way, behind ours"""
MOST_OWED = 10_000
"""of more releases than that, the rest is left to the ends of the leases"""


class _Release(NamedTuple):
    due: float
    order: int
    lease: QuorumLease
    looks: int


class Owed:
    """Releases for one member, which its threads make when the member answers again.

    Without them a lease that was granted to a call which had no majority would stay until its end,
    and three such leases at three members would be an obstacle for everybody.

    Args:
        number: of the member.
        release: releases a lease at the member. Returns False if the member did not have it.
    """

    def __init__(self, number: int, release: Callable[[QuorumLease], bool]) -> None:
        self._number = number
        self._release = release
        self.begin()

    def begin(self) -> None:
        """Forget all of them."""
        self._arrivals: deque[_Release] = deque()
        self._heap: list[_Release] = []
        self._order = itertools.count()
        self._working = new_lock()
        """held by the one thread that makes one"""
        self._delay = 0.0

    def __len__(self) -> int:
        return len(self._heap) + len(self._arrivals)

    def add(self, lease: QuorumLease, until: float) -> None:
        """Release a lease later, which ends by itself at ``until`` on `clock.now`."""
        known = self._number in lease.owed
        lease.owed[self._number] = until
        if not known and len(self) < MOST_OWED:
            due = clock.now() + FIRST_RETRY_SECONDS
            self._arrivals.append(_Release(due, next(self._order), lease, 0))

    def next(self) -> Callable[[], None] | float | None:
        """The next release, if it is due; the seconds until then; None if there is none, or another
        thread makes it."""
        if not len(self) or not self._working.acquire(False):
            return None
        found: Callable[[], None] | float | None = None
        try:
            with suppress(IndexError):
                while True:
                    heapq.heappush(self._heap, self._arrivals.popleft())
            now = clock.now()
            while self._heap and self._until(self._heap[0]) <= now:
                self._end(heapq.heappop(self._heap))
            if not self._heap:
                pass
            elif self._heap[0].due <= now:
                found = partial(self._make, heapq.heappop(self._heap))
            else:
                found = self._heap[0].due - now
        finally:
            if not callable(found):
                self._working.release()
        return found

    def _make(self, entry: _Release) -> None:
        try:
            released = self._release(entry.lease)
        except StoreUnavailable:
            self._delay = min(LONGEST_RETRY_SECONDS, 2 * self._delay + FIRST_RETRY_SECONDS)
            due = clock.now() + self._delay
            self._arrivals.append(entry._replace(due=due))
            # The others would fail as well, each after the client's timeout.
            self._heap = [each._replace(due=max(each.due, due)) for each in self._heap]
            heapq.heapify(self._heap)
        except BaseException:
            self._end(entry)  # A store's mistake: the lease ends by itself.
            raise
        else:
            self._delay = 0.0
            if not released and entry.looks < len(LOOK_SECONDS):
                due = clock.now() + LOOK_SECONDS[entry.looks]
                self._arrivals.append(entry._replace(due=due, looks=entry.looks + 1))
            else:
                self._end(entry)
        finally:
            self._working.release()

    def _until(self, entry: _Release) -> float:
        return entry.lease.owed.get(self._number, 0.0)

    def _end(self, entry: _Release) -> None:
        entry.lease.owed.pop(self._number, None)
