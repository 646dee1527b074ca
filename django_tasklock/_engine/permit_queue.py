"""Waiting for one permit of several, without blocking on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .._values import clock
from .._values.chance import chance
from .._values.lock_info import LockInfo
from ..exceptions import StoreUnavailable
from ..stores.base import BaseStore, CannotSubscribe, Grant, Note, Refusal, Waiter
from .renewal import renewal
from .steps import OWNER_CHECK_SECONDS, Pause, Steps
from .waiting import (
    EXPIRY_GRACE_SECONDS,
    FIRST_POLL_SECONDS,
    FOREIGN_KEY_RETRY_SECONDS,
    LONGEST_SILENCE_SECONDS,
    MAX_POLL_SECONDS,
    QUEUE_RETRY_SECONDS,
    _end,
    _since,
)

__all__ = ["PermitQueue", "leave_queues"]


class PermitQueue:
    """The wait queue of one permit, for the one who waits for any of several.

    Only the holder of the gate waits there, so it is first. Where the store has no wait queues, or
    no connection to subscribe on, it polls, with pauses that get longer.
    """

    def __init__(
        self,
        store: BaseStore,
        name: str,
        token: str,
        ttl: float,
        owner: Mapping[str, Any],
        take_over: Callable[[BaseStore, LockInfo], bool],
        note: Note | None,
    ) -> None:
        self.name = name
        self.holder: LockInfo | None = None
        """what held the permit when it was last looked at"""
        self.asks_at = 0.0
        """when to ask for the permit again, on `clock.now`"""
        self._store, self._token, self._ttl, self._owner = store, token, ttl, owner
        self._take_over, self._note = take_over, note
        self._waiter: Waiter | None = None
        self._listens = False
        """whether a hand-over would reach the waiter"""
        self._asked = 0.0
        self._asks_at_the_latest = 0.0
        self._checks_at = 0.0
        self._pause = FIRST_POLL_SECONDS
        self.abandoned = False
        """whether the renewal thread releases the permit, whenever the store answers"""

    @property
    def listens(self) -> bool:
        """Whether to wait in `look`: a hand-over ends the wait."""
        return self._listens

    def look(self, seconds: float = 0.0) -> Steps[tuple[Grant, float] | None]:
        """Take the permit if it is free, or was handed over; wait for that for ``seconds`` at most.

        Returns the grant, and when its lease began, on `clock.now`. May return early. Raises
        `StoreUnavailable`.
        """
        if self._listens and self._waiter is not None and not self._waiter.cut:
            if clock.now() < self.asks_at:
                if seconds > 0:
                    news = yield Pause(seconds, self._waiter)
                else:
                    news = self._waiter.wait(0.0)
                if isinstance(news, Grant):
                    self._listens = False
                    began = _since(news, self._asked)
                    if clock.now() < began + self._ttl:
                        return news, began
                    # The process was stopped for longer than the lease: ask once more.
                    self.asks_at = 0.0
                elif news is not None:
                    self.holder = news.holder
                    self.asks_at = min(_end(news.holder), self._asks_at_the_latest)
        elif self._listens:
            self.asks_at = 0.0  # It was cut.
        now = clock.now()
        if now < self.asks_at:
            if now >= self._checks_at and self.holder is not None:
                self._checks_at = now + OWNER_CHECK_SECONDS
                if self._take_over(self._store, self.holder):
                    self.asks_at = 0.0
            if now < self.asks_at:
                return None
        return self._ask()

    def leave(self) -> Grant | None:
        """Leave the queue. Returns the grant if the permit was handed over just before.

        Raises `StoreUnavailable`.
        """
        if self._waiter is None:
            return None
        grant = self._waiter.leave()
        # Not before: if the call is interrupted, `quit` has to do it.
        self._waiter = None
        return grant

    def leave_or_release(self, *, keep: bool) -> tuple[str, Grant, float, None] | None:
        """Leave the queue. Returns the permit that was handed over just before, or releases it
        without ``keep``. Raises `StoreUnavailable`."""
        left_at = clock.now()
        grant = self.leave()
        if grant is None:
            return None
        if not keep:
            self._store.release(self.name, self._token, grant.proof)
            return None
        return self.name, grant, _since(grant, left_at), None

    def abandon(self) -> None:
        """Leave without a call, and have the renewal thread release what was handed over."""
        self.drop()
        self.abandoned = True
        renewal.abandon(self.name, self._token, self._ttl, self._store)

    def quit(self) -> None:
        """`leave`, for a caller that is about to raise an exception: returns and raises nothing."""
        if self._waiter is not None:
            self._waiter.quit()

    def drop(self) -> None:
        """`quit` where the store does not answer: a call for each permit might take as long."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            getattr(waiter, "drop", waiter.quit)()

    def _ask(self) -> tuple[Grant, float] | None:
        asked = clock.now()
        answer = self._question()
        if isinstance(answer, Grant):
            self._listens = False
            if clock.now() < asked + self._ttl:
                return answer, asked
            self.asks_at = 0.0
            return None
        holder = self.holder = answer.holder
        if self._listens:
            self._asked = asked
            self._asks_at_the_latest = min(
                _end(holder) + QUEUE_RETRY_SECONDS, asked + LONGEST_SILENCE_SECONDS
            )
            self.asks_at = min(_end(holder), self._asks_at_the_latest)
        else:
            self.asks_at = clock.now() + self._pause * chance.uniform(0.5, 1.0)
            self._pause = min(self._pause * 2, MAX_POLL_SECONDS)
            if holder.ttl:
                self.asks_at = min(self.asks_at, clock.now() + holder.ttl + EXPIRY_GRACE_SECONDS)
        if holder.token is None:
            self.asks_at = min(self.asks_at, clock.now() + FOREIGN_KEY_RETRY_SECONDS)
        if self._take_over(self._store, holder):
            # Where it polls, another waiter may be about to clear it: not without a pause.
            soon = 0.0 if self._listens else clock.now() + FIRST_POLL_SECONDS
            self.asks_at = min(self.asks_at, soon)
        return None

    def _question(self) -> Grant | Refusal:
        self._listens = False
        if self._waiter is None and self._store.supports_waiting:
            self._waiter = self._store.waiter(self.name, self._token, self._ttl, self._owner)
            if self._waiter is not None:
                self._waiter.note = self._note
        if self._waiter is not None:
            try:
                answer = self._waiter.ask()
                self._listens = isinstance(answer, Refusal)
                return answer
            except CannotSubscribe:
                pass  # Poll once, and then try again to subscribe.
        if self._note is None:
            return self._store.acquire(self.name, self._token, self._ttl, self._owner)
        return self._store.acquire_with_note(
            self.name, self._token, self._ttl, self._owner, self._note
        )


def leave_queues(
    queues: Sequence[PermitQueue], *, release: bool = False
) -> tuple[str, Grant, float, None] | None:
    """Leave the queues. Returns the first permit that was handed over just before; others, or all
    of them with ``release``, are released.

    Raises `StoreUnavailable` if it is not known whether one was handed over, unless the caller has
    a permit: what is given up by its token must not be asked for with that token again.
    """
    first = silent = None
    for queue in queues:
        if silent is None:
            try:
                found = queue.leave_or_release(keep=first is None and not release)
                first = found or first
                continue
            except StoreUnavailable as error:
                silent = error
        queue.abandon()
    if silent is not None and first is None and not release:
        raise silent
    return first
