"""The gate before the permits of a name: the one wait queue for all of them.

It is an ordinary lock, which only those take who have to wait. Who holds it is the first of them.
Its lease is short, so that a waiter that died on another machine soon makes room for the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from .._values import clock
from .._values.lock_info import LockInfo
from .._values.owner import Owner
from .._values.owner_record import SINCE, recorded
from .._values.slots import gate_name
from .._values.tokens import new_token
from ..exceptions import StoreUnavailable
from ..stores.base import BaseStore, Grant
from .renewal import renewal
from .steps import Steps
from .store_renewal import RENEWAL_SHARE
from .waiting import Attempt

__all__ = ["Gate", "waiters_for_permit"]

SHORTEST_GATE_SECONDS = 2.0
LONGEST_GATE_SECONDS = 10.0
"""seconds that a lease of the gate lasts: as long as that of the permit, but between these two"""


class Gate:
    """One caller's turn at the gate of ``name``. ``owner`` is that of the permit, and ``ttl`` in
    seconds."""

    def __init__(
        self,
        store: BaseStore,
        name: str,
        ttl: float,
        owner: Mapping[str, Any],
        take_over: Callable[[BaseStore, LockInfo], bool],
    ) -> None:
        self.name = store.keyed(gate_name(name))
        self._store, self._take_over = store, take_over
        self._ttl = min(max(ttl, SHORTEST_GATE_SECONDS), LONGEST_GATE_SECONDS)
        self.since = time.time()
        """when this caller began to wait, in seconds since the epoch: it may enter several times"""
        waits = {SINCE: self.since, "waits_for": recorded(name)}
        record = {**owner, **waits, "ttl": self._ttl, "renew": True}
        del record["slots"]
        self._owner = record
        self._token = ""
        self._proof: Any = None
        self._extends_at = 0.0

    def enter(self, deadline: float | None) -> Steps[LockInfo | None]:
        """Wait until this caller is the first, at most until ``deadline`` on `clock.now` (None: for
        ever).

        Returns None then, or else who still is the first. Raises `StoreUnavailable`. After any
        exception the caller calls `give_up`.
        """
        # Not the token of the last turn: what is left of it may still be released.
        self._token = new_token()
        attempt = Attempt(
            self._store, self.name, self._token, self._ttl, self._owner, deadline, self._take_over
        )
        answer, began = (yield from attempt.queue_at_once()) or attempt._ask()
        if not isinstance(answer, Grant) or clock.now() >= began + self._ttl:
            answer, began = yield from attempt.acquire_with_wait(answer, began)
        if not isinstance(answer, Grant):
            self._token = ""
            return answer.holder
        self._proof = answer.proof
        self._extends_at = began + self._ttl * RENEWAL_SHARE
        return None

    def keep(self) -> bool:
        """Renew the lease if it is time. Returns False if it was lost, so that somebody else may be
        the first now. Raises `StoreUnavailable`."""
        now = clock.now()
        if now < self._extends_at:
            return True
        if not self._store.extend(self.name, self._token, self._ttl, self._proof):
            self._token = ""
            return False
        self._extends_at = now + self._ttl * RENEWAL_SHARE
        return True

    def left(self) -> float:
        """The seconds until `keep` has something to do."""
        return self._extends_at - clock.now()

    def leave(self) -> None:
        """Let the next one be the first."""
        if self._token:
            try:
                self._store.release(self.name, self._token, self._proof)
            except StoreUnavailable:
                self.give_up()
            self._token = ""

    def give_up(self) -> None:
        """`leave`, for a caller that is about to raise an exception: raises nothing."""
        if self._token:
            renewal.abandon(self.name, self._token, self._ttl, self._store)


def waiters_for_permit(store: BaseStore, name: str) -> list[Owner]:
    """Who waits for a permit of ``name``, the first one first."""
    gate = gate_name(name)
    first = store.get(gate)
    return [] if first is None else [first.owner, *store.waiters(gate)]
