"""Taking a lock from a store: ask, take over from a dead owner, wait in the queue or poll.

What waits is a generator of its steps. It yields a `Pause` where it has to wait, and gets the news
of it; between two pauses it calls the store, which blocks for a round trip. `blocking` does all of
that in the calling thread; `aio.drive` makes the steps in a few threads and holds none while it
waits. Both close the generator if their caller is interrupted, so ``except BaseException`` in it
sees every end.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

from django.core.exceptions import SynchronousOnlyOperation

from .._compat.native_threads import are_patched
from .._values import clock
from .._values.lock_info import LockInfo
from .._values.tokens import chance
from ..exceptions import StoreUnavailable
from ..stores.base import BaseStore, CannotSubscribe, Grant, Question, Refusal, Waiter
from .own_token import OwnToken

R = TypeVar("R")

# The pause between two polls is doubled from the first to the last of these, with jitter.
FIRST_POLL_SECONDS, MAX_POLL_SECONDS = 0.01, 1.0
# How often a waiter looks whether the holder's process, on this machine, still lives.
OWNER_CHECK_SECONDS = 0.05
# The same, at least, for a waiter with one before it; with two before it half as often, up to
# `MOST_AHEAD`. The next waiter finds out at once that a holder has died; the second is needed only
# if the next one has died too. With checks at `OWNER_CHECK_SECONDS`, 50 waiters in as many
# processes took 2.5 times as long for their turns.
LATER_OWNER_CHECK_SECONDS, MOST_AHEAD = 2.0, 5
# How often a waiter asks again about a key that other code set: nobody tells it of its end.
FOREIGN_KEY_RETRY_SECONDS = 1.0
# The same for a lease of ours whose key somebody has made permanent.
ENDLESS_LEASE_RETRY_SECONDS = 30.0
# How long after the end of a lease the store surely knows of it: its clock counts milliseconds.
EXPIRY_GRACE_SECONDS = 0.002
# A waiter asks again at the latest so long after the end of the lease that held the lock when it
# asked, even if another lease holds it by then; join_queue.lua keeps the queue for longer.
QUEUE_RETRY_SECONDS = 5.0
# And so long after it asked: the holder may have made its lease shorter, and of a hand-over only
# the next waiter is told, which may have died.
LONGEST_SILENCE_SECONDS = 30.0
# So many grants in a row may come so late that their lease is over, before the store counts as
# unavailable.
MAX_LATE_GRANTS = 4
# A lease that is handed over later than after this share of its ttl is asked for once more.
FRESH_SHARE = 0.5
# So many dead owners in a row are taken over from without a wait.
MAX_TAKEOVERS = 100

# The store's answer, and when its lease began if it is a grant, on `clock.now`.
Answer = tuple[Grant | Refusal, float]


class Pause(NamedTuple):
    """What the steps wait for: news of a waiter, or only that some time passes.

    ``seconds``: how long at most; it may be less. ``watched``: the pause also ends soon after the
    process of the holder could have died.
    """

    seconds: float
    waiter: Waiter | None = None
    watched: bool = False

    def wait(self) -> Grant | Refusal | None:
        """Wait in this thread. Returns what `Waiter.wait` returns."""
        if self.waiter is None:
            time.sleep(self.seconds)
            return None
        return self.waiter.wait(
            min(self.seconds, OWNER_CHECK_SECONDS if self.watched else math.inf)
        )


Steps = Generator[Pause, "Grant | Refusal | None", R]


def blocking(
    steps: Steps[R], wait: Callable[[Pause], Grant | Refusal | None] = Pause.wait
) -> R:  # fmt: skip
    """Make the steps in this thread. ``wait``: waits for a pause as `Pause.wait` does; what it
    raises ends the steps. Returns, or raises, what they do."""
    try:
        pause = next(steps)
        while True:
            pause = advance(steps, partial(wait, pause))
    except StopIteration as end:
        return cast("R", end.value)
    finally:
        steps.close()  # A signal's exception may come just between two steps.


def advance(steps: Steps[Any], hear: Callable[[], Grant | Refusal | None]) -> Pause:
    """Make the steps up to the next pause, with the news that ``hear`` returns, or what it raises.
    Raises `StopIteration` with what they return in the end."""
    try:
        news = hear()
    except BaseException as error:
        return steps.throw(error)
    return steps.send(news)


def refuse_on_loop(wait: float | None) -> None:
    """Raise Django's `SynchronousOnlyOperation` where a wait would stop a running event loop.

    ``wait``: seconds that the caller is willing to wait for a lock; None: for ever. Under gevent
    and eventlet nobody is refused: greenlets of one thread find the loop of any of them.
    """
    if wait == 0 or os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE"):
        return
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    if not are_patched():
        raise SynchronousOnlyOperation(
            "to wait here for a lock would stop the event loop: write `async with lock(...)`, or "
            "wait=0, which does not wait"
        )


@dataclass(slots=True)
class Attempt:
    """One call's attempt to take the first that is free of the names of ``entry``, until
    ``deadline`` on `clock.now` (None: for ever).

    ``take_over(holder)`` clears the lease of an owner that is known to be dead; it returns True if
    it is worth asking again. ``in_vain(holder)``: whether there is no use in waiting for it.
    """

    store: BaseStore
    entry: OwnToken
    deadline: float | None
    take_over: Callable[[LockInfo], bool]
    in_vain: Callable[[LockInfo], bool]
    # The holder for which it began to wait.
    met: LockInfo | None = None
    _waiter: Waiter | None = None

    def take(self) -> Steps[Answer]:
        """Ask until the lock is granted, or the deadline has passed. Returns a refusal, or a grant
        whose lease is not over. Raises `StoreUnavailable`, also if each grant comes too late."""
        late = takeovers = 0
        refused, pause = False, FIRST_POLL_SECONDS
        try:
            while True:
                asked, hears = clock.now(), False
                waiter = self._join()
                if waiter is not None and (waiter.ready or refused):
                    with suppress(CannotSubscribe):  # Poll once, and then try again to subscribe.
                        answer, hears = waiter.ask(), True
                if not hears:
                    answer = self.store.acquire(*self._question)
                if isinstance(answer, Grant):
                    if clock.now() < asked + self.entry.ttl:
                        return answer, asked
                    if late == MAX_LATE_GRANTS:
                        raise always_late(self.store, self.entry.ttl)
                    late += 1
                    continue
                if takeovers < MAX_TAKEOVERS and self._take_over_any(answer):
                    takeovers += 1
                    continue
                vain = next(filter(self.in_vain, answer.holders), None)
                if vain is not None or self._left() <= 0:
                    grant = self._leave()
                    if grant is None:
                        return (answer if vain is None else Refusal((vain,))), asked
                else:
                    self.met = self.met or answer.holder
                    if not hears:
                        if waiter is None or refused:
                            yield self._poll(pause, answer.holder)
                            pause = min(pause * 2, MAX_POLL_SECONDS)
                        refused = True
                        continue
                    grant = yield from self._hear(answer, asked)
                # The lock was handed over. If little of the lease is left, it is granted anew.
                if grant is not None and clock.now() < asked + self.entry.ttl * FRESH_SHARE:
                    return grant, asked
        except BaseException:
            # The lock may have been handed over just before. Then the caller, which gives the token
            # up, passes it on.
            if self._waiter is not None:
                self._waiter.quit()
            raise

    @property
    def _question(self) -> Question:
        entry = self.entry
        return Question(entry.names, entry.token, entry.ttl, entry.record, entry.note)

    def _join(self) -> Waiter | None:
        """Return what joins the wait queue with its question; None if the caller does not wait, or
        the store has no queues.

        The first question is asked without it, if it would have to subscribe before: most locks
        are not held, and to take one should cost one round trip.
        """
        if self._waiter is None and self.store.supports_waiting and self._left() > 0:
            self._waiter = self.store.waiter(*self._question)
        return self._waiter

    def _leave(self) -> Grant | None:
        """Leave the wait queue. Returns the grant if the lock was handed over just before. Raises
        `StoreUnavailable`."""
        grant = None if self._waiter is None else self._waiter.leave()
        self._waiter = None  # Not before: if the call is interrupted, the steps quit.
        return grant

    def _take_over_any(self, refusal: Refusal) -> bool:
        return True in [self.take_over(holder) for holder in refusal.holders]

    def _poll(self, seconds: float, holder: LockInfo) -> Pause:
        pause = max(0.0, min(seconds * chance.uniform(0.5, 1.0), self._left()))
        return Pause(min(pause, holder.ttl + EXPIRY_GRACE_SECONDS) if holder.ttl else pause)

    def _hear(self, refusal: Refusal, asked: float) -> Steps[Grant | None]:
        """Wait for the hand-over, until a holder's lease could end, or its owner is dead.

        Returns None if it is time to ask again. If the lock is handed to another waiter, that is
        the holder from then on.
        """
        waiter, holder = self._waiter, refusal.holder
        assert waiter is not None
        latest = min(end_of(holder) + QUEUE_RETRY_SECONDS, asked + LONGEST_SILENCE_SECONDS)
        if holder.token is None:
            latest = clock.now() + FOREIGN_KEY_RETRY_SECONDS
        if self.deadline is not None:
            latest = min(latest, self.deadline)
        ends, watches = end_of(holder), self.store.takeover
        while (left := min(ends, latest) - clock.now()) > 0 and not waiter.cut:
            ahead = min(waiter.ahead, MOST_AHEAD)
            if watches and ahead:
                left = min(left, ahead * LATER_OWNER_CHECK_SECONDS * chance.uniform(0.5, 1.0))
            news = yield Pause(left, waiter, watches and not ahead)
            if isinstance(news, Grant):
                return news
            if news is not None:
                refusal, watches = _with_news(refusal, news), self.store.takeover
                ends = end_of(refusal.holder)
            elif watches:
                # Of an earlier holder than the present one the next answer tells.
                dead = [each for each in refusal.holders if each.owner.alive() is False]
                if self._take_over_any(Refusal((*dead,))) if not ahead else dead:
                    return None
                # Only now, because it decodes the holder's record: that is the most expensive part
                # of a short wait.
                watches = any(
                    each.owner.is_local() and each.owner.pid != os.getpid()
                    for each in refusal.holders
                )
        return None

    def _left(self) -> float:
        return math.inf if self.deadline is None else self.deadline - clock.now()


def _with_news(refusal: Refusal, news: Refusal) -> Refusal:
    """The holders, after one of the locks was handed to somebody else."""
    names = {info.name for info in news.holders}
    others = [info for info in refusal.holders if info.name not in names]
    return Refusal((*news.holders, *others))


def always_late(store: BaseStore, ttl: float) -> StoreUnavailable:
    """What is raised after too many grants whose leases are over: no work may begin under one."""
    late = f"its answers come later than a lease of {ttl:g} s lasts: use a longer ttl"
    return StoreUnavailable(store.alias, late)


def end_of(holder: LockInfo) -> float:
    """When the holder's lease will be over, on `clock.now`."""
    return clock.now() + (
        ENDLESS_LEASE_RETRY_SECONDS if holder.ttl is None else holder.ttl + EXPIRY_GRACE_SECONDS
    )
