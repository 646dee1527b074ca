"""Waiting for a lock: in its line where the store has one, else asking again and again."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

from . import clock
from .lease import LockInfo
from .stores.base import BaseStore, CannotListen, Grant, Line, Refusal

__all__ = ["insist", "stand_at_once"]

FIRST_DELAY = 0.01
LONGEST_DELAY = 1.0
"""seconds between questions where nothing hands the lock over: from the first, doubled, with
jitter, to the longest"""
A_LOOK = 0.05
"""seconds between looks at whether the holder's process, on this machine, still lives"""
PERSISTENT = 30.0
"""seconds after which a waiter asks again about a key that never expires"""
LATE = 0.002
"""seconds after the end of a lease at which the store will surely say so: its clock counts in
milliseconds"""
KEPT = 5.0
"""seconds after the end of the lease that was named when one asked, at which one asks again at the
latest, whoever holds the lock by then: the place in the line is kept that long and longer"""
MOST_TRIES = 4
"""answers in a row, at most, that time may have overtaken"""

Answer = tuple[Grant | Refusal, float]


def stand_at_once(
    store: BaseStore,
    name: str,
    token: str,
    ttl: float,
    owner: Mapping[str, Any],
    deadline: float | None,
    take_over: Callable[[BaseStore, LockInfo], bool],
) -> Answer | None:
    """Ask for the lock and wait for it, standing in line with the very first question.

    As `wait_for`; None, and nothing was asked, if to listen would take a question of its own:
    most locks are not held, and to take them should take one.
    """
    line = store.line(name, token, ttl, owner) if store.supports_waiting else None
    if line is None or not line.ready:
        return None
    try:
        return _in_line(store, line, ttl, deadline, take_over)
    except CannotListen:
        return None


def insist(
    store: BaseStore,
    name: str,
    token: str,
    ttl: float,
    owner: Mapping[str, Any],
    answer: Grant | Refusal,
    began: float,
    deadline: float | None,
    take_over: Callable[[BaseStore, LockInfo], bool],
) -> Answer:
    """What to do about an answer that gave no lease; a grant would count since ``began``.

    Take over from a dead owner, wait until ``deadline`` on `clock.now` (None: for ever), and
    ask again where a grant came so late that its lease is over. Returns the last answer, and
    the moment since which a grant counts.
    """
    for _ in range(MOST_TRIES):
        if isinstance(answer, Grant):
            if clock.now() < began + ttl:
                break
        elif not take_over(store, answer.holder):
            if _left(deadline) <= 0:
                break
            answer, began = wait_for(store, name, token, ttl, owner, answer, deadline, take_over)
            continue
        began = clock.now()
        answer = store.acquire(name, token, ttl, owner)
    return answer, began


def wait_for(
    store: BaseStore,
    name: str,
    token: str,
    ttl: float,
    owner: Mapping[str, Any],
    refusal: Refusal,
    deadline: float | None,
    take_over: Callable[[BaseStore, LockInfo], bool],
) -> Answer:
    """Wait until the lock is granted, or until ``deadline`` on `clock.now` (None: for ever).

    ``refusal`` is the answer that made the caller wait. Returns the last answer, and the
    moment since which a grant counts.
    """
    line = store.line(name, token, ttl, owner) if store.supports_waiting else None
    if line is not None:
        try:
            return _in_line(store, line, ttl, deadline, take_over)
        except CannotListen:
            pass
    delay = FIRST_DELAY
    while True:
        left = _left(deadline)
        if left <= 0:
            return refusal, 0.0
        pause = min(delay * random.uniform(0.5, 1.0), left)
        if refusal.holder.ttl:
            pause = min(pause, refusal.holder.ttl + LATE)
        time.sleep(pause)
        delay = min(delay * 2, LONGEST_DELAY)
        take_over(store, refusal.holder)
        asked = clock.now()
        answer = store.acquire(name, token, ttl, owner)
        if isinstance(answer, Grant):
            return answer, asked
        refusal = answer


def _in_line(
    store: BaseStore,
    line: Line,
    ttl: float,
    deadline: float | None,
    take_over: Callable[[BaseStore, LockInfo], bool],
) -> Answer:
    try:
        while True:
            asked = clock.now()
            answer = line.ask()
            if isinstance(answer, Grant):
                return answer, asked
            if take_over(store, answer.holder):
                continue
            grant: Grant | Refusal | None = answer
            again = min(_end(answer.holder) + KEPT, math.inf if deadline is None else deadline)
            while isinstance(grant, Refusal):
                refusal = grant
                grant = _until_over(store, line, refusal.holder, again, take_over)
            if grant is not None:
                began = _since(grant, asked)
                if began + ttl > clock.now():
                    return grant, began
                # We slept through all of it (a stopped process): once more.
            if _left(deadline) <= 0:
                # It may be handed over in the very moment in which we leave.
                grant = line.leave()
                return (refusal, asked) if grant is None else (grant, _since(grant, asked))
    except BaseException:
        # Whoever gives up in this way passes the lock on, if it was handed over: the caller
        # abandons the token.
        line.quit()
        raise


def _until_over(
    store: BaseStore,
    line: Line,
    holder: LockInfo,
    deadline: float,
    take_over: Callable[[BaseStore, LockInfo], bool],
) -> Grant | Refusal | None:
    """Wait for the hand-over, at most until the holder's lease could end or its owner is dead.

    A refusal names the next holder.
    """
    ends = min(_end(holder), deadline)
    look = store.takeover
    while True:
        left = ends - clock.now()
        if left <= 0 or line.cut:
            return None
        news = line.wait(min(left, A_LOOK) if look else left)
        if news is not None:
            return news
        if look:
            if take_over(store, holder):
                return None
            # Not before: among many who wait for moments, to read who holds it costs the most.
            look = holder.owner.is_local()


def _end(holder: LockInfo) -> float:
    """When to ask again, on `clock.now`."""
    return clock.now() + (PERSISTENT if holder.ttl is None else holder.ttl + LATE)


def _since(grant: Grant, asked: float) -> float:
    return asked if grant.started is None else grant.started


def _left(deadline: float | None) -> float:
    return float("inf") if deadline is None else deadline - clock.now()
