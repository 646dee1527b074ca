"""Asking a store for a lock, and waiting for it: in a thread, or on an event loop.

What waits is a generator of its steps. It yields a `Pause` where it has to wait, and gets the news
of it; between two pauses it calls the store, which blocks for a round trip. `blocking` does all of
that in the calling thread; `aio.drive` makes the steps in a few threads and holds none while it
waits. Both close the generator if their caller is interrupted, so ``except BaseException`` in it
sees every end.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

from django.core.exceptions import SynchronousOnlyOperation

from .._compat.native_threads import are_patched
from .._values import clock
from .._values.lock_info import LockInfo
from .._values.tokens import chance
from ..exceptions import StoreUnavailable
from ..stores.base import BaseStore, CannotSubscribe, Grant, Question, Refusal, Waiter

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
# How long after the end of a lease the store surely knows of it: its clock counts milliseconds.
EXPIRY_GRACE_SECONDS = 0.002
# A waiter asks again at the latest so long after the end of the lease that held the lock when it
# asked, even if another lease holds it by then; join_queue.lua keeps the queue for longer.
QUEUE_RETRY_SECONDS = 5.0
# And so long after it asked: the holder may have made its lease shorter, somebody may have made the
# key permanent, and of a hand-over only the next waiter is told, which may have died.
LONGEST_SILENCE_SECONDS = 30.0
# So many grants in a row may come so late that their lease is over, before the store counts as
# unavailable.
MAX_LATE_GRANTS = 4
# If a lease is handed over later than after this share of its ttl, its waiter asks once more.
FRESH_SHARE = 0.5
# From so many dead owners in a row a caller takes over without a wait.
MAX_TAKEOVERS = 100


# What a pause may bring: see `Waiter.wait`.
News: TypeAlias = "Grant | Refusal | None"


class Pause(NamedTuple):
    """What the steps wait for: news of a waiter, or only that some time passes.

    ``seconds``: how long at most; it may be less. ``watched``: the pause also ends soon after the
    process of the holder could have died.
    """

    seconds: float
    waiter: Waiter | None = None
    watched: bool = False

    def wait(self) -> News:
        """Wait in this thread."""
        if self.waiter is None:
            time.sleep(self.seconds)
            return None
        look = OWNER_CHECK_SECONDS if self.watched else self.seconds
        return self.waiter.wait(min(self.seconds, look))


Steps = Generator[Pause, News, R]


def blocking(steps: Steps[R], wait: Callable[[Pause], News] = Pause.wait) -> R:
    """Make the steps in this thread. ``wait``: waits for a pause as `Pause.wait` does; what it
    raises ends the steps. Returns, or raises, what they do."""
    try:
        pause = next(steps)
        while True:
            pause = advance(steps, partial(wait, pause))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        steps.close()  # A signal's exception may come just between two steps.


def advance(steps: Steps[Any], hear: Callable[[], News]) -> Pause:
    """Make the steps up to the next pause, with the news that ``hear`` returns, or what it raises.
    Raises `StopIteration` with what they return in the end."""
    try:
        news = hear()
    except BaseException as error:
        return steps.throw(error)
    return steps.send(news)


def refuse_on_loop() -> None:
    """Raise Django's `SynchronousOnlyOperation` where a wait would stop a running event loop.

    To be called before a question by whoever may wait for its answer, also if the lock is free: the
    mistake is not to be seen under load first. Under gevent and eventlet nobody is refused:
    greenlets of one thread find the loop of any of them.
    """
    on_loop = asyncio._get_running_loop() is not None and not are_patched()
    if on_loop and not os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE"):
        raise SynchronousOnlyOperation(
            "to wait here for a lock would stop the event loop: write `async with lock(...)`, or "
            "wait=0, which does not wait"
        )


def ask(
    store: BaseStore, question: Question, waiter: Waiter | None, *, joins: bool = False
) -> tuple[Grant | Refusal, float, Waiter | None]:
    """Ask the store for a lock; again, if the lease that it grants is over when the answer comes.

    ``waiter``: it asks, and joins the wait queue if the lock is held, where that takes no round
    trip of its own: most locks are free. ``joins``: also where it has to subscribe before.

    Returns the answer; when the store was asked, on `clock.now`: a lease begins then; and the
    waiter, if it has asked. Raises `StoreUnavailable`, also if each grant comes too late.
    """
    for _ in range(1 + MAX_LATE_GRANTS):
        asked = clock.now()
        answer: News = None
        queued: Waiter | None = None
        if waiter is not None and (joins or waiter.ready):
            with suppress(CannotSubscribe):  # The next question tries again to subscribe.
                answer, queued = waiter.ask(), waiter
        if answer is None:
            answer = store.acquire(*question)
        if isinstance(answer, Refusal) or clock.now() < asked + question.ttl:
            return answer, asked, queued
    raise always_late(store, question.ttl)


class Attempt:
    """The attempt of a caller that was refused, until ``deadline`` on `clock.now`: it takes over
    from dead owners, waits in the queue, or polls.

    ``waiter``: None if the caller does not wait, or the store has no wait queues.
    ``take_over(store, holder)`` clears the lease of an owner that is known to be dead; it returns
    True if it is worth asking again. ``in_vain(holder)``: whether there is no use in waiting for
    it.
    """

    def __init__(
        self, store: BaseStore, question: Question, waiter: Waiter | None, deadline: float,
        take_over: Callable[[BaseStore, LockInfo], bool], in_vain: Callable[[LockInfo], bool],
    ) -> None:  # fmt: skip
        self.store, self.question, self.waiter, self.deadline = store, question, waiter, deadline
        self.take_over, self.in_vain = take_over, in_vain
        # The holder for which it began to wait.
        self.met: LockInfo | None = None
        # Whether its questions join the wait queue; how long it has polled; and from how many
        # owners it has taken over since it waited.
        self._joins, self._pause, self._takeovers = False, 0.0, 0

    def steps(
        self, answer: Grant | Refusal, asked: float, queued: Waiter | None
    ) -> Steps[tuple[Grant | Refusal, float]]:
        """Go on from what `ask` has returned. Returns the last refusal, or a grant whose lease is
        not over; and when it was asked for. Raises `StoreUnavailable`."""
        while isinstance(answer, Refusal):
            self._joins = self._joins or queued is not None
            if not self._takes_over(answer):
                vain = next(filter(self.in_vain, answer.holders), None)
                if vain is None and clock.now() < self.deadline:
                    grant = yield from self._wait(answer, asked, queued)
                else:
                    # The lock may have been handed over just before.
                    grant = None if self.waiter is None else self.waiter.leave()
                    if grant is None:
                        return Refusal((vain or answer.holder,)), asked
                # If little is left of the lease that was handed over, it is granted anew.
                if grant is not None and clock.now() < asked + self.question.ttl * FRESH_SHARE:
                    return grant, asked
            answer, asked, queued = ask(self.store, self.question, self.waiter, joins=self._joins)
        return answer, asked

    def _takes_over(self, refusal: Refusal) -> bool:
        """Clear what dead owners hold. Returns whether to ask again."""
        if self._takeovers == MAX_TAKEOVERS:
            return False
        again = True in [self.take_over(self.store, holder) for holder in refusal.holders]
        self._takeovers += again
        return again

    def _wait(self, refusal: Refusal, asked: float, queued: Waiter | None) -> Steps[Grant | None]:
        """Wait in the queue, or poll once. Returns what was handed over. None: it is time to ask
        again, which is at once if the next question is the first one that joins the queue."""
        self.met = self.met or refusal.holder
        self._takeovers = 0
        if queued is not None:
            return (yield from self._hear(queued, refusal, asked))
        if self._joins or self.waiter is None:
            yield self._poll(refusal.holder)
        self._joins = True
        return None

    def _poll(self, holder: LockInfo) -> Pause:
        self._pause = max(FIRST_POLL_SECONDS, min(self._pause * 2, MAX_POLL_SECONDS))
        pause = min(self._pause * chance.uniform(0.5, 1.0), self.deadline - clock.now())
        if holder.ttl:
            pause = min(pause, holder.ttl + EXPIRY_GRACE_SECONDS)
        return Pause(max(0.0, pause))

    def _hear(self, waiter: Waiter, refusal: Refusal, asked: float) -> Steps[Grant | None]:
        """Wait for the hand-over, until a holder's lease could end, or its owner is dead.

        Returns None if it is time to ask again. If the lock is handed to another waiter, that is
        the holder from then on.
        """
        ends = end_of(refusal.holder)
        latest = min(ends + QUEUE_RETRY_SECONDS, asked + LONGEST_SILENCE_SECONDS)
        if refusal.holder.token is None:
            latest = clock.now() + FOREIGN_KEY_RETRY_SECONDS
        latest = min(latest, self.deadline)
        watches = self.store.takeover
        while not waiter.cut:
            left = min(ends, latest) - clock.now()
            if left <= 0:
                break
            ahead = min(waiter.ahead, MOST_AHEAD)
            if watches and ahead:
                left = min(left, ahead * LATER_OWNER_CHECK_SECONDS * chance.uniform(0.5, 1.0))
            news = yield Pause(left, waiter, watched=watches and not ahead)
            if isinstance(news, Grant):
                return news
            if isinstance(news, Refusal):
                # One of the locks was handed to somebody else; the other holders are as before.
                told = {info.name for info in news.holders}
                others = [info for info in refusal.holders if info.name not in told]
                refusal = Refusal((*news.holders, *others))
                if any(map(self.in_vain, refusal.holders)):
                    return None
                ends, watches = end_of(refusal.holder), self.store.takeover
            elif watches:
                owners = [holder.owner for holder in refusal.holders]
                # The next waiter takes over. A later one asks, and learns how many are before it.
                dead = any(owner.alive() is False for owner in owners)
                if dead and (ahead or self._takes_over(refusal)):
                    return None
                # Only now, because it decodes the holder's record: that is the most expensive part
                # of a short wait.
                watches = any(each.is_local() and each.pid != os.getpid() for each in owners)
        return None


def always_late(store: BaseStore, ttl: float) -> StoreUnavailable:
    """What is raised after too many grants whose leases are over: no work may begin under one."""
    late = f"its answers come later than a lease of {ttl:g} s lasts: use a longer ttl"
    return StoreUnavailable(store.alias, late)


def end_of(holder: LockInfo) -> float:
    """When the holder's lease will be over, on `clock.now`."""
    left = LONGEST_SILENCE_SECONDS if holder.ttl is None else holder.ttl
    return clock.now() + left + EXPIRY_GRACE_SECONDS
