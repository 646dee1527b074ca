"""Waiting in the wait queue of a lock: after a notification, and again and again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..._values import clock
from ..._values.owner import Owner
from ..._values.tokens import chance
from ...exceptions import StoreUnavailable
from ..base import Grant, Note, Refusal
from .notifications import Wakeup
from .queue_statements import ALIVE_SECONDS, LOOKED_AHEAD
from .rows import holder_of, owner_text, waiter_text

__all__ = ["DatabaseWaiter"]

FIRST_LOOK_SECONDS = (0.01, 0.1)
OTHERS_LOOK_SECONDS = (0.1, 0.4)
"""the pause between two looks of the first waiters in the queue, and of all others: it grows from
the first number to the second, with jitter"""
LISTENER_LOOKS_SECONDS = (0.25, 1.0)
"""the same, of a waiter that notifications reach: it looks in case that one does not"""
GROWTH = 1.5
STAY_SECONDS = ALIVE_SECONDS / 3
"""how often a waiter says that it is alive"""


class DatabaseWaiter:
    """One caller that waits for one lock; see `Waiter`.

    Its row in the queue is its position. It reads the lock's row again and again, and takes the
    lock once that is free and no live waiter stands before it.
    """

    ready = False
    cut = False

    def __init__(
        self, store: Any, name: str, token: str, ttl: float, owner: Mapping[str, Any]
    ) -> None:
        self._store, self._name, self._token = store, name, token
        self._ttl, self._owner, self._fields = ttl, owner_text(owner), owner
        self._key = store.key(name)
        self.note: Note | None = None
        self._entry = ""
        """the owner in this waiter's row, with the moment of the first question"""
        self._position: int | None = None
        self._stays_until = 0.0
        self._seen: str | int | None = None
        """what was in the way when `wait` or `ask` last returned it: the holder's token, or the
        position of the next waiter"""
        self._told_owner: Owner | None = None
        """the owner that `wait` or `ask` last returned: a lease that is handed on, or cools, keeps
        its token"""
        self._read_owner: str | None = None
        """the holder's owner at the last look, as the table has it"""
        self._pause = 0.0
        self._next_look = 0.0
        self._wakeup = Wakeup()
        """set when the lock may have become free"""

    def ask(self) -> Grant | Refusal:
        self._stay()
        answer = self._take()
        if isinstance(answer, Refusal):
            self._seen = answer.holder.token
        return answer

    def wait(self, seconds: float) -> Grant | Refusal | None:
        deadline = clock.now() + seconds
        while True:
            now = clock.now()
            if now >= self._next_look or self._wakeup.is_set():
                self._wakeup.clear()
                self._stay()
                news = self._look()
                if news is not None:
                    return news
            if now >= deadline:
                return None
            self._wakeup.wait(max(0.0, min(self._next_look, deadline) - clock.now()))

    def wake_by(self, wake: Callable[[], None]) -> float:
        """`WakingWaiter.wake_by`."""
        self._wakeup.waker = wake
        if self._wakeup.is_set():
            wake()
        return max(0.0, self._next_look - clock.now())

    def leave(self) -> Grant | None:
        # The lock may have become free after the last look, and others wait for this one's turn.
        try:
            answer = self._look() if self._position is not None else None
        except StoreUnavailable:
            self.drop()  # `quit` would ask again, for another time-out.
            raise
        if isinstance(answer, Grant):
            return answer
        self._go()
        return None

    def quit(self) -> None:
        try:
            self._go()
        except StoreUnavailable:
            pass  # The row counts as dead soon.

    def drop(self) -> None:
        """`quit` without a call: the row counts as dead soon."""
        self._listen_no_more()

    def _stay(self) -> None:
        """Join the queue, or say that this waiter is still there."""
        now = clock.now()
        if self._position is not None and now < self._stays_until:
            return
        statements = self._store.statements
        if self._position is None and self._store.notifications is not None:
            self._store.notifications.join(self._key, self._wakeup)
        self._entry = self._entry or waiter_text(self._fields)
        asked = {"key": self._key, "token": self._token, "owner": self._entry}
        if (
            self._position is None
            or self._store.run(statements.stay, {"position": self._position}).count == 0
        ):
            answer = self._store.run(statements.join, asked)
            self._position = answer.rows[0][0]
            if answer.repeated:
                asked = {"key": self._key, "token": self._token, "position": self._position}
                self._store.run(statements.leave_before, asked)
        self._stays_until = now + STAY_SECONDS

    def _look(self) -> Grant | Refusal | None:
        """Take the lock if it is free and this waiter is the next one.

        Returns a `Refusal` with the holder, or with the next waiter, if that has changed.
        """
        asked = {"key": self._key, "position": self._position}
        holder, owner, first, ahead = self._store.run(self._store.statements.turn, asked).rows[0]
        in_the_way = holder or first
        changed = in_the_way != self._seen or self._is_of_another(holder, owner)
        answer = None
        if (ahead == 0 and holder in (None, self._token)) or changed:
            answer = self._take()
            self._seen = in_the_way
        least, most = FIRST_LOOK_SECONDS if ahead < LOOKED_AHEAD else OTHERS_LOOK_SECONDS
        if self._store.notifications is not None and self._store.notifications.arrive:
            least, most = LISTENER_LOOKS_SECONDS
        self._pause = min(most, max(least, self._pause * GROWTH))
        self._next_look = clock.now() + self._pause * chance.uniform(0.6, 1.0)
        return answer

    def _is_of_another(self, token: str | None, owner: str) -> bool:
        """Whether the lease that was found has another owner than the one that was told."""
        if token is None or owner == self._read_owner:
            return False
        self._read_owner = owner
        return holder_of(token, owner) != self._told_owner

    def _take(self) -> Grant | Refusal:
        """Ask for the lock, and leave the queue with it."""
        asked = clock.now()
        answer: Grant | Refusal = self._store.ask(
            self._name, self._token, self._ttl, self._owner, self._position
        )
        if isinstance(answer, Refusal):
            self._told_owner = answer.holder.owner
            return answer
        if self._store.statements.acquire_and_leave:
            self._listen_no_more()
        else:
            self.quit()
        return answer._replace(started=asked)

    def _go(self) -> None:
        """Leave the queue."""
        position = self._listen_no_more()
        if position is not None:
            self._store.run(self._store.statements.leave, {"position": position})

    def _listen_no_more(self) -> int | None:
        """Returns the position that this waiter had."""
        position, self._position = self._position, None
        if self._store.notifications is not None:
            self._store.notifications.leave(self._key, self._wakeup)
        return position
