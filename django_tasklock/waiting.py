"""Waiting for a lock: in its wait queue where the store has one, else by asking again and again."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from . import clock
from .lease import LockInfo
from .stores.base import BaseStore, CannotListen, Grant, Line, Note, Refusal

__all__ = ["Attempt"]

FIRST_DELAY = 0.01
LONGEST_DELAY = 1.0
"""seconds between questions where nothing hands the lock over: from the first, doubled, with
jitter, to the longest"""
A_LOOK = 0.05
"""seconds between looks at whether the holder's process, on this machine, still lives"""
FOREIGN = 1.0
"""seconds after which a waiter asks again about a key that somebody else set, and may delete
without telling the queue"""
PERSISTENT = 30.0
"""seconds after which a waiter asks again about a lease of ours that was made to last for ever"""
LATE = 0.002
"""seconds after the end of a lease at which the store will surely say so: its clock counts in
milliseconds"""
KEPT = 5.0
"""seconds after the end of the lease that was named when one asked, at which one asks again at the
latest, whoever holds the lock by then: the place in the queue is kept that long and longer"""
MOST_TRIES = 4
"""answers in a row, at most, that time may have overtaken"""

Answer = tuple[Grant | Refusal, float]
"""the store's answer, and the moment on `clock.now` since which a grant counts"""


@dataclass(slots=True)
class Attempt:
    """One call's attempt to take a lock, until ``deadline`` on `clock.now` (None: for ever).

    ``take_over(store, holder)`` clears the lease of an owner that is known to be dead; it returns
    True if it is worth asking again.
    """

    store: BaseStore
    name: str
    token: str
    ttl: float
    owner: Mapping[str, Any]
    deadline: float | None
    take_over: Callable[[BaseStore, LockInfo], bool]
    note: Note | None = None
    """what the store should write when it grants the lock"""
    line: Line | None = None

    def queue_at_once(self) -> Answer | None:
        """Ask for the lock and wait for it, standing in the queue with the very first question.

        None, and nothing was asked, if to listen would take a question of its own: most locks
        are not held, and to take them should take one.
        """
        line = self._line()
        return self._wait(None) if line is not None and line.ready else None

    def insist(self, answer: Grant | Refusal, began: float) -> Answer:
        """What to do about an answer that gave no lease; a grant would count since ``began``.

        Take over from a dead owner, wait, and ask again where a grant came so late that its
        lease is over. Returns the last answer.
        """
        for _ in range(MOST_TRIES):
            if isinstance(answer, Grant):
                if clock.now() < began + self.ttl:
                    break
            elif not self.take_over(self.store, answer.holder):
                if self._left() <= 0:
                    break
                answer, began = self._wait(answer)
                continue
            answer, began = self._ask()
        return answer, began

    def _ask(self) -> Answer:
        asked, store = clock.now(), self.store
        if self.note is None:
            return store.acquire(self.name, self.token, self.ttl, self.owner), asked
        return store.acquire_noted(self.name, self.token, self.ttl, self.owner, self.note), asked

    def _line(self) -> Line | None:
        if self.line is None and self.store.supports_waiting:
            self.line = self.store.line(self.name, self.token, self.ttl, self.owner)
            if self.line is not None:
                self.line.note = self.note
        return self.line

    def _wait(self, refusal: Refusal | None) -> Answer:
        """Wait until the lock is granted or the deadline has passed.

        ``refusal`` is the answer that made the caller wait; None: nothing was asked yet.
        """
        line = self._line()
        try:
            delay = FIRST_DELAY
            while True:
                if line is not None:
                    try:
                        return self._in_line(line)
                    except CannotListen:
                        pass  # Nothing would be heard in the queue: ask, and try again to listen.
                if refusal is None or self._left() > 0:
                    if refusal is not None:
                        self._pause(delay, refusal.holder)
                        delay = min(delay * 2, LONGEST_DELAY)
                        self.take_over(self.store, refusal.holder)
                    answer, asked = self._ask()
                    if isinstance(answer, Grant):
                        return answer, asked
                    refusal = answer
                    continue
                grant = None if line is None else line.leave()
                return (refusal, 0.0) if grant is None else (grant, _since(grant, 0.0))
        except BaseException:
            # Whoever gives up in this way passes the lock on, if it was handed over: the caller
            # abandons the token.
            if line is not None:
                line.quit()
            raise

    def _pause(self, delay: float, holder: LockInfo) -> None:
        pause = min(delay * random.uniform(0.5, 1.0), self._left())
        if holder.ttl:
            pause = min(pause, holder.ttl + LATE)
        time.sleep(pause)

    def _in_line(self, line: Line) -> Answer:
        while True:
            asked = clock.now()
            answer = line.ask()
            if isinstance(answer, Grant):
                return answer, asked
            if self.take_over(self.store, answer.holder):
                continue
            grant: Grant | Refusal | None = answer
            again = _end(answer.holder) + KEPT
            if answer.holder.token is None:
                again = clock.now() + FOREIGN
            if self.deadline is not None:
                again = min(again, self.deadline)
            while isinstance(grant, Refusal):
                refusal = grant
                grant = self._until_over(line, refusal.holder, again)
            if grant is not None:
                began = _since(grant, asked)
                if began + self.ttl > clock.now():
                    return grant, began
                # We slept through all of it (a stopped process): once more.
            if self._left() <= 0:
                # It may be handed over in the very moment in which we leave.
                grant = line.leave()
                return (refusal, asked) if grant is None else (grant, _since(grant, asked))

    def _until_over(self, line: Line, holder: LockInfo, again: float) -> Grant | Refusal | None:
        """Wait for the hand-over, at most until the holder's lease could end, its owner is dead,
        or the moment ``again``.

        A refusal names the next holder.
        """
        ends = min(_end(holder), again)
        look = self.store.takeover
        while True:
            left = ends - clock.now()
            if left <= 0 or line.cut:
                return None
            news = line.wait(min(left, A_LOOK) if look else left)
            if news is not None:
                return news
            if look:
                if self.take_over(self.store, holder):
                    return None
                # Not before: among many who wait for moments, to read who holds it costs the most.
                look = holder.owner.is_local()

    def _left(self) -> float:
        return math.inf if self.deadline is None else self.deadline - clock.now()


def _end(holder: LockInfo) -> float:
    """When to ask again, on `clock.now`."""
    return clock.now() + (PERSISTENT if holder.ttl is None else holder.ttl + LATE)


def _since(grant: Grant, asked: float) -> float:
    return asked if grant.started is None else grant.started
