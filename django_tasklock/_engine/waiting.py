"""Waiting for a lock: in its wait queue where the store has one, otherwise by polling."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .._values import clock
from .._values.chance import chance
from .._values.lock_info import LockInfo
from ..exceptions import StoreUnavailable
from ..stores.base import BaseStore, CannotSubscribe, Grant, Note, Refusal, Waiter
from .steps import Pause, Steps

__all__ = ["Attempt", "always_late"]

FIRST_POLL_SECONDS = 0.01
MAX_POLL_SECONDS = 1.0
"""the pause between two polls is doubled from the first to the last of these, with jitter"""
FOREIGN_KEY_RETRY_SECONDS = 1.0
"""how often a waiter asks again about a key that other code set: no waiter is notified when it
is deleted"""
ENDLESS_LEASE_RETRY_SECONDS = 30.0
"""how often a waiter asks again about a lease of ours whose key somebody has made permanent"""
EXPIRY_GRACE_SECONDS = 0.002
"""how long after the end of a lease the store surely knows of it: its clock counts milliseconds"""
QUEUE_RETRY_SECONDS = 5.0
"""a waiter asks again at the latest this long after the end of the lease that held the lock when it
asked, even if another lease holds it by then; join_queue.lua keeps the queue for longer"""
LATER_OWNER_CHECK_SECONDS = 2.0
"""how often, at least, a waiter with one before it checks whether the holder's process lives; with
two before it half as often, and so on up to `MOST_AHEAD`. It may know of an earlier holder only,
whose process has ended after its turn, and asks again to find that out. With checks at
`OWNER_CHECK_SECONDS`, 50 waiters in as many processes took 2.5 times as long for their turns"""
MOST_AHEAD = 5
"""The next waiter finds out at once that a holder has died. The second is needed only if the next
one has died too, and so on. So a waiter far back matters less, and there are more of them"""
LONGEST_SILENCE_SECONDS = 30.0
"""a waiter asks again at the latest so long after it asked: the holder may have made its lease
shorter, and of a hand-over only the next waiter is told, which may have died"""
MAX_LATE_GRANTS = 4
"""how many grants in a row may come so late that their lease is over, before the store counts as
unavailable"""
MAX_TAKEOVERS = 100
"""how many dead owners in a row are taken over from without a wait"""

Answer = tuple[Grant | Refusal, float]
"""the store's answer, and when its lease began if it is a grant, on `clock.now`"""


@dataclass(slots=True)
class Attempt:
    """One call's attempt to take a lock, until ``deadline`` on `clock.now` (None: for ever).

    ``take_over(store, holder)`` clears the lease of an owner that is known to be dead; it returns
    True if it is worth asking again. What waits returns its steps: see steps.py.
    """

    store: BaseStore
    name: str
    token: str
    ttl: float
    owner: Mapping[str, Any]
    deadline: float | None
    take_over: Callable[[BaseStore, LockInfo], bool]
    note: Note | None = None
    """written with the grant"""
    waiter: Waiter | None = None
    met: LockInfo | None = None
    """the holder for which it began to wait"""

    def queue_at_once(self) -> Steps[Answer | None]:
        """Ask for the lock and join its wait queue in the same round trip; then wait.

        Returns None, and asks nothing, if the waiter would have to subscribe first: most locks are
        not held, and to take one should cost one round trip.
        """
        waiter = self._waiter()
        if waiter is None or not waiter.ready:
            return None
        return (yield from self._wait(None))

    def acquire_with_wait(self, answer: Grant | Refusal, began: float) -> Steps[Answer]:
        """Go on after an answer that gave no lease: it is a refusal, or a grant that came so late
        that its lease is over.

        Takes over from a dead owner, waits, and asks again. ``began`` is when the lease of a grant
        began, on `clock.now`. Returns a refusal, or a grant whose lease is not over. Raises
        `StoreUnavailable`, also if the store always answers too late.
        """
        late = takeovers = 0
        while True:
            if isinstance(answer, Grant):
                if clock.now() < began + self.ttl:
                    return answer, began
                if late == MAX_LATE_GRANTS:
                    raise always_late(self.store, self.ttl)
                late += 1
            elif takeovers < MAX_TAKEOVERS and self.take_over(self.store, answer.holder):
                takeovers += 1
            elif self._left() <= 0:
                return answer, began
            else:
                answer, began = yield from self._wait(answer)
                continue
            answer, began = self._ask()

    def _ask(self) -> Answer:
        asked, store = clock.now(), self.store
        if self.note is None:
            return store.acquire(self.name, self.token, self.ttl, self.owner), asked
        return store.acquire_with_note(
            self.name, self.token, self.ttl, self.owner, self.note
        ), asked

    def _waiter(self) -> Waiter | None:
        if self.waiter is None and self.store.supports_waiting:
            self.waiter = self.store.waiter(self.name, self.token, self.ttl, self.owner)
            if self.waiter is not None:
                self.waiter.note = self.note
        return self.waiter

    def _wait(self, refusal: Refusal | None) -> Steps[Answer]:
        """Wait until the lock is granted or the deadline has passed.

        ``refusal`` is the answer that made the caller wait; None: nothing was asked yet.
        """
        waiter = self._waiter()
        if refusal is not None:
            self.met = self.met or refusal.holder
        try:
            delay = FIRST_POLL_SECONDS
            while True:
                if waiter is not None:
                    try:
                        return (yield from self._in_queue(waiter))
                    except CannotSubscribe:
                        pass  # Poll once, and then try again to subscribe.
                if refusal is None or self._left() > 0:
                    if refusal is not None:
                        yield self._pause(delay, refusal.holder)
                        delay = min(delay * 2, MAX_POLL_SECONDS)
                        self.take_over(self.store, refusal.holder)
                    answer, asked = self._ask()
                    if isinstance(answer, Grant):
                        return answer, asked
                    refusal = answer
                    self.met = self.met or refusal.holder
                    continue
                grant = None if waiter is None else waiter.leave()
                return (refusal, 0.0) if grant is None else (grant, _since(grant, 0.0))
        except BaseException:
            # The lock may have been handed over just before. Then the caller, which abandons the
            # token, passes it on.
            if waiter is not None:
                waiter.quit()
            raise

    def _pause(self, delay: float, holder: LockInfo) -> Pause:
        pause = min(delay * chance.uniform(0.5, 1.0), self._left())
        if holder.ttl:
            pause = min(pause, holder.ttl + EXPIRY_GRACE_SECONDS)
        return Pause(pause)

    def _in_queue(self, waiter: Waiter) -> Steps[Answer]:
        while True:
            asked = clock.now()
            answer = waiter.ask()
            if isinstance(answer, Grant):
                return answer, asked
            if self.take_over(self.store, answer.holder):
                continue
            self.met = self.met or answer.holder
            if self._left() <= 0:
                # Only now: somebody may have deleted the lock's key, which tells no waiter.
                # The lock may be handed over just before this waiter leaves.
                late = waiter.leave()
                return (answer, asked) if late is None else (late, _since(late, asked))
            grant: Grant | Refusal | None = answer
            again = _end(answer.holder) + QUEUE_RETRY_SECONDS
            if answer.holder.token is None:
                again = clock.now() + FOREIGN_KEY_RETRY_SECONDS
            again = min(again, asked + LONGEST_SILENCE_SECONDS)
            if self.deadline is not None:
                again = min(again, self.deadline)
            while isinstance(grant, Refusal):
                grant = yield from self._until_over(waiter, grant.holder, again)
            if grant is not None:
                began = _since(grant, asked)
                if began + self.ttl > clock.now():
                    return grant, began
                # The process was stopped for longer than the lease: ask once more.

    def _until_over(
        self, waiter: Waiter, holder: LockInfo, again: float
    ) -> Steps[Grant | Refusal | None]:
        """Wait for the hand-over, at most until ``again`` (on `clock.now`), until the holder's
        lease could end, or until its owner is dead.

        Returns a `Refusal` with the next holder if the lock was handed to another waiter.
        """
        ends = min(_end(holder), again)
        check_owner = self.store.takeover
        while True:
            left = ends - clock.now()
            if left <= 0 or waiter.cut:
                return None
            ahead = min(getattr(waiter, "ahead", 0), MOST_AHEAD)
            at_once = check_owner and not ahead
            if check_owner and ahead:
                left = min(left, ahead * LATER_OWNER_CHECK_SECONDS * chance.uniform(0.5, 1.0))
            news = yield Pause(left, waiter, holder if at_once else None)
            if news is not None:
                return news
            if check_owner:
                if at_once:
                    if self.take_over(self.store, holder):
                        return None
                elif holder.owner.alive() is False:
                    return None  # The next answer says who holds the lock now: mostly another.
                # Only now, because it decodes the holder's record: that is the most expensive part
                # of a short wait.
                check_owner = holder.owner.is_local()

    def _left(self) -> float:
        return math.inf if self.deadline is None else self.deadline - clock.now()


def always_late(store: BaseStore, ttl: float) -> StoreUnavailable:
    """What is raised after too many grants whose leases are over: no work may begin under one."""
    return StoreUnavailable(store.alias, f"its answers come later than a lease of {ttl:g} s lasts")


def _end(holder: LockInfo) -> float:
    """When the holder's lease will be over, on `clock.now`."""
    return clock.now() + (
        ENDLESS_LEASE_RETRY_SECONDS if holder.ttl is None else holder.ttl + EXPIRY_GRACE_SECONDS
    )


def _since(grant: Grant, asked: float) -> float:
    return asked if grant.started is None else grant.started
