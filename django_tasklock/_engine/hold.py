"""An operator's hold: a lock without a process."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timezone

from .._values import clock
from .._values.arguments import checked_name, checked_remark, checked_ttl, checked_wait
from .._values.lock_info import LockInfo
from .._values.owner import Owner
from .._values.owner_record import operator_record
from .._values.tokens import new_token
from ..exceptions import StoreUnavailable
from ..signals import lock_held
from ..stores.base import Refusal
from .acquiring import Acquiring
from .history import note_event
from .renewal import renewal
from .steps import blocking
from .waiting import Attempt

__all__ = ["Holding"]


class Holding(Acquiring):
    """The part of `LockService` that holds locks for operators."""

    def hold(
        self,
        name: str,
        ttl: float,
        by: str = "",
        reason: str = "",
        *,
        wait: float | None = 0,
    ) -> LockInfo | None:
        """Take the lock ``name`` for an operator, so that no job takes it. Returns what holds it
        now; None if somebody else still holds it after ``wait``, also another hold.

        ``ttl``: seconds that the hold lasts; nobody renews it, and it outlives this process.
        `clear` ends it earlier. ``by``: the operator's name, ``reason``: why; both are shown to
        whoever looks, have at most 255 bytes of UTF-8 each, without control characters, and may be
        empty. ``wait``: seconds to wait until the present holder has ended; 0 does not wait, None
        waits for ever.

        Raises `StoreUnavailable`; the lock is not held then, or not for long. Raises `TypeError` or
        `ValueError` for a wrong argument.
        """
        answer = self.try_hold(name, ttl, by, reason, wait=wait)
        return None if isinstance(answer, Refusal) else answer

    def try_hold(
        self,
        name: str,
        ttl: float,
        by: str = "",
        reason: str = "",
        *,
        wait: float | None = 0,
    ) -> LockInfo | Refusal:
        """As `hold`, but return a `Refusal` with the present holder where that returns None."""
        store = self.store
        name = store.keyed(checked_name(name))
        ttl = checked_ttl(ttl)
        record = operator_record(checked_remark("by", by), checked_remark("a reason", reason))
        record |= {"ttl": ttl, "renew": False}
        wait = checked_wait(wait)
        token, asked = new_token(), clock.now()
        deadline = None if wait is None else asked + wait
        attempt = Attempt(store, name, token, ttl, record, deadline, self._take_over)
        try:
            answer, _ = blocking(attempt.acquire_with_wait(*attempt._ask()))
            if isinstance(answer, Refusal):
                self._contended(store, name, answer.holder, record, asked, None, wait)
                return answer
            info = store.get(name)
            if info is None or info.token != token:  # It was cleared at once, or was that short.
                now, owner = datetime.now(timezone.utc), Owner.from_record(record)
                info = LockInfo(name, 0.0, now, token, owner, store.alias, "", answer.fence)
            note_event(
                store.alias, "held", name, info.owner,
                seconds=ttl, by=by or None, reason=reason or None,
            )  # fmt: skip
            lock_held.send_robust(type(self), name=name, store=store.alias, holder=info, ttl=ttl)
            return info
        except BaseException as error:
            # The store may have granted the lock, and nobody would know of it.
            try:
                if not isinstance(error, StoreUnavailable):
                    # An interrupted process may end now, and with it the thread that releases. Of
                    # an operator nobody takes over.
                    with suppress(StoreUnavailable):
                        store.release(name, token)
            finally:
                renewal.abandon(name, token, ttl, store)
            raise
