"""Waiting in the queue of a lock: the nodes of those who want it, each of which watches the one
before it."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from kazoo.handlers.threading import KazooTimeoutError

from ..._compat.native_threads import new_lock
from ..._values import clock
from ..._values.lock_info import LockInfo
from ..._values.owner import HELD_BY
from ...exceptions import StoreUnavailable
from ..base import Grant, Note, Refusal
from .paths import token_of
from .records import Lease, encoded, waiter_record
from .requests import Requests

__all__ = ["ZooKeeperWaiter"]

OWNER_CHECK_SECONDS = 0.5
"""how often a waiter looks whether the process of the waiter before it, on this machine, lives"""


class ZooKeeperWaiter:
    """One caller that waits for one lock; see `Waiter`.

    Its node is its position. The end of the node before it wakes it, and so does a change of that
    node, such as the one by which a waiter takes the lock: nobody else is woken by either.
    """

    # The first question is the store's acquire, which makes no node where the lock is held.
    ready = False
    cut = False

    def __init__(
        self, store: Any, name: str, token: str, ttl: float, owner: Mapping[str, Any]
    ) -> None:
        self._store, self._name, self._token, self._ttl = store, name, token, ttl
        self._owner = dict(owner)
        self._lock: str = store.key(name)
        self.note: Note | None = None
        self._since = 0.0
        """when it first asked, in seconds since the epoch: it may have to join the queue again"""
        self._gone = False
        self._holder: LockInfo | None = None
        """the holder that `ask` or `wait` has returned last"""
        self._before: Lease | None = None
        """the node before this waiter's"""
        self._next_check = 0.0
        # Not a threading.Event, which an exception from a signal handler may leave locked.
        self._wakeup = new_lock()
        self._wakeup.acquire()
        self._woken = _waking(self)
        self._waker: Callable[[], None] | None = None

    def ask(self) -> Grant | Refusal:
        self._gone = False
        self._since = self._since or time.time()
        answer: Grant | Refusal = self._store.call(self._look)
        if isinstance(answer, Refusal):
            self._holder = answer.holder
        return answer

    def wait(self, seconds: float) -> Grant | Refusal | None:
        deadline = clock.now() + seconds
        while True:
            if self._wakeup.acquire(timeout=max(0.0, deadline - clock.now())):
                answer: Grant | Refusal = self._store.call(self._look)
                if isinstance(answer, Grant):
                    return answer
                known, holder = self._holder, answer.holder
                # A lease that is handed on, or cools, keeps its token.
                if known is None or (holder.token, holder.owner) != (known.token, known.owner):
                    self._holder = holder
                    return answer
            now = clock.now()
            if now >= self._next_check:
                self._next_check = now + OWNER_CHECK_SECONDS
                self._pass_over_the_dead()
            if now >= deadline:
                return None

    def wake_by(self, wake: Callable[[], None]) -> float:
        """`WakingWaiter.wake_by`."""
        self._waker = wake
        if not self._wakeup.locked():
            wake()
        return max(0.0, self._next_check - clock.now())

    def leave(self) -> Grant | None:
        grant: Grant | None = self._store.call(self._leave)
        return grant

    def quit(self) -> None:
        self._gone = True
        # Not waited for: an exception is on its way, and another one may come.
        with suppress(StoreUnavailable):
            self._store.post(self._go)

    def _look(self, z: Requests) -> Grant | Refusal:
        """Join the queue, if this waiter is not in it; take the lock, if it is the first."""
        verbs, joined = self._store.verbs, None
        while True:
            z.assert_in_time(self._lock)
            children = z.children(self._lock)
            own = next((child for child in children if token_of(child) == self._token), None)
            if own is None:
                record = waiter_record(self._token, self._owner, self._ttl, self._since)
                # An operator's hold outlives its process. As a waiter that has died it is removed
                # when its turn has come.
                ephemeral = HELD_BY not in self._owner
                joined, children = z.join(
                    self._lock, self._token, encoded(record), ephemeral=ephemeral
                )
                own = joined.child
                if own not in children:
                    continue
            if self._gone:
                # Its caller was interrupted while this went on.
                z.delete(f"{self._lock}/{own}")
                raise KazooTimeoutError("nobody waits any more")
            position = children.index(own)
            if position == 0:
                node = joined or z.node(f"{self._lock}/{own}")
                grant = None if node is None else verbs.take(z, Lease(node), self._ttl)
                if isinstance(grant, Grant):
                    self._before = None
                    return grant
                joined = None
                continue
            before = z.node(f"{self._lock}/{children[position - 1]}", watch=self._woken)
            if before is None:
                continue
            first = before if position == 1 else z.node(f"{self._lock}/{children[0]}")
            if first is None:
                continue
            judged = verbs.judged(z, self._lock, Lease(first), children)
            if judged.at_most is not None and judged.at_most <= 0:
                verbs.first(z, self._lock)  # This removes it.
                continue
            self._before = Lease(before)
            return Refusal(
                judged.lease.info(
                    self._name, self._store.alias, self._lock, judged.at_most, len(children) - 1
                )
            )

    def _pass_over_the_dead(self) -> None:
        """Remove the waiter before this one if its process is known to be dead.

        A holder that is dead is the service's business.
        """
        before = self._before
        if (
            before is not None
            and before.waiting
            and before.record is not None
            and before.record.owner.alive() is False
        ):
            node = before.node
            # In that version: if it has taken the lock, it is a holder.
            self._store.call(lambda z: self._store.verbs.delete_unchanged(z, node))

    def _leave(self, z: Requests) -> Grant | None:
        children = z.children(self._lock)
        if children and token_of(children[0]) == self._token:
            node = z.node(f"{self._lock}/{children[0]}")
            grant: Grant | None = None
            if node is not None:
                grant = self._store.verbs.take(z, Lease(node), self._ttl)
            return grant
        self._store.verbs.abandon(z, self._lock, self._token)
        return None

    def _go(self, z: Requests) -> None:
        self._store.verbs.abandon(z, self._lock, self._token)

    def wake(self) -> None:
        """For the client, when something has happened to the node before this waiter's."""
        with suppress(RuntimeError):  # It is awake already.
            self._wakeup.release()
        if self._waker is not None:
            self._waker()


def _waking(waiter: ZooKeeperWaiter) -> Callable[[Any], None]:
    """What kazoo calls with an event, also when the connection is cut, after which it watches
    nothing more. It keeps no waiter alive."""
    weak = weakref.ref(waiter)

    def woken(_event: Any) -> None:
        waiter = weak()
        if waiter is not None:
            waiter.wake()

    return woken
