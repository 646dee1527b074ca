"""The lock service: policy over a store. Waiting, takeover, renewal and signals are here."""

from __future__ import annotations

from . import clock
from .arguments import (
    checked_flag,
    checked_name,
    checked_number,
    checked_prefix,
    checked_token,
    checked_ttl,
    checked_wait,
)
from .conf import DEFAULT_ALIAS
from .keeper import Keeper
from .lease import Lease, LockInfo, new_token
from .owner import Owner, owner_record
from .renewal import renewal
from .signals import lock_acquired, lock_cleared, lock_contended
from .stores import stores
from .stores.base import BaseStore, Note, Refusal
from .use import Use
from .waiting import Attempt

__all__ = ["LockService", "locks"]


class LockService(Keeper):
    """All that can be asked of the locks of one store.

    Every verb may raise `StoreUnavailable` when the store does not answer: that is neither
    "held" nor "not held". What is passed is checked before anything is sent: `TypeError` or
    `ValueError`.
    """

    def __init__(self, alias: str = DEFAULT_ALIAS) -> None:
        self.alias = alias

    def __repr__(self) -> str:
        return f"<LockService {self.alias!r}>"

    @property
    def store(self) -> BaseStore:
        """The store behind the alias. Raises `InvalidLockConfig`."""
        return stores[self.alias]

    def using(self, alias: str) -> LockService:
        """The service of another store alias. Raises `InvalidLockConfig` if there is none."""
        service = LockService(alias)
        _ = service.store
        return service

    def acquire(
        self,
        name: str,
        *,
        ttl: float | None = None,
        wait: float | None = 0,
        renew: bool = False,
    ) -> Lease | None:
        """Take the lock ``name``; None if somebody else holds it and ``wait`` is over.

        ``ttl`` is in seconds (by default the store's TTL); ``wait`` in seconds, 0: do not
        wait, None: for ever; with ``renew`` the lease is extended in time for as long as it
        is referred to and this process lives.
        """
        use = Use(None)
        self.contend(name, ttl=ttl, wait=wait, renew=renew, use=use)
        lease, use.lease = use.lease, None
        return lease

    def contend(
        self,
        name: str,
        *,
        ttl: float | None = None,
        wait: float | None = 0,
        renew: bool = False,
        task: str | None = None,
        task_id: str | None = None,
        token: str | None = None,
        note: Note | None = None,
        use: Use | None = None,
        group: int | None = None,
    ) -> Lease | LockInfo:
        """`acquire`, with the lease in the way as the answer when it was not to be had.

        ``task``, ``task_id`` and ``group`` are recorded in the owner; ``token`` is one that was
        drawn before (`new_token`), for a process that will release what another one acquires;
        anything else is a `TypeError` or `ValueError`. With the lease the store has ``note`` as
        well, mostly by the same round trip. ``use`` gets the lease as soon as there is one: an
        exception from a signal handler may come before it is returned.
        """
        store = self.store
        checked_name(name)
        ttl = store.settings.ttl if ttl is None else checked_ttl(ttl)
        wait = checked_wait(wait)
        checked_flag("renew", renew)
        token = new_token() if token is None else checked_token(token)
        record = owner_record(task, task_id)
        record["ttl"], record["renew"] = ttl, renew
        if group is not None:
            record["group"] = group
        if renew:
            renewal.start(store)
        asked = clock.now()
        deadline = None if wait is None else asked + wait
        attempt = waited = lease = None
        try:
            if wait != 0:
                attempt = Attempt(store, name, token, ttl, record, deadline, self._take_over, note)
                waited = attempt.queue_at_once()
            if waited is not None:
                answer, started = waited
            elif note is None:
                answer, started = store.acquire(name, token, ttl, record), asked
            else:
                answer, started = store.acquire_noted(name, token, ttl, record, note), asked
            if isinstance(answer, Refusal) or clock.now() >= started + ttl:
                if attempt is None:
                    attempt = Attempt(
                        store, name, token, ttl, record, deadline, self._take_over, note
                    )
                answer, started = attempt.insist(answer, started)
            if isinstance(answer, Refusal):
                if lock_contended.receivers:
                    lock_contended.send_robust(
                        LockService,
                        name=name,
                        store=store.alias,
                        holder=answer.holder,
                        owner=Owner.from_record(record),
                        waited=clock.now() - asked,
                    )
                return answer.holder
            if note is not None and not answer.noted:
                store.remember(note)
            lease = Lease(
                self, self.alias, name, token, answer.fence, ttl, started + ttl, record,
                answer.proof, renew,
            )  # fmt: skip
            if use is not None:
                use.lease = lease
            if renew:
                renewal.add(lease, store)
            if lock_acquired.receivers:
                lock_acquired.send_robust(LockService, lease=lease)
            return lease
        except BaseException:
            # The lock may be ours without our knowing.
            if lease is None:
                renewal.abandon(name, token, ttl, store)
            else:
                self.give_up(lease)
            raise

    def _take_over(self, store: BaseStore, holder: LockInfo) -> bool:
        """Clear the lock if its owner is known to be dead. True if it is worth asking again."""
        if not store.takeover or holder.token is None or holder.owner.alive() is not False:
            return False
        if store.clear(holder.name, holder.token):
            self._cleared(
                store, holder.name, holder.token, holder, "takeover, its owner being gone"
            )
        return True

    def is_locked(self, name: str) -> bool:
        """Whether anything holds the lock, a key that somebody else set included."""
        return self.get(name) is not None

    def get(self, name: str) -> LockInfo | None:
        """What holds the lock; None if nothing does."""
        return self.store.get(checked_name(name))

    def waiters(self, name: str) -> list[Owner]:
        """Who stands in the lock's line, the next first; at most 100, none on a store that polls.

        One that died while it waited stays until its turn, when it is passed over.
        """
        return self.store.waiters(checked_name(name))

    def list(self, prefix: str = "", limit: int | None = None, offset: int = 0) -> list[LockInfo]:
        """Live locks whose names begin with ``prefix``, the soonest to expire first.

        At most ``limit`` (None: all), after the first ``offset``. Raises
        `ListingNotSupported` on a store that knows single locks only.
        """
        if limit is not None:
            checked_number("limit", limit)
        checked_number("offset", offset)
        return self.store.list(checked_prefix(prefix), limit, offset)

    def count(self, prefix: str = "") -> int:
        """How many live locks have names that begin with ``prefix``.

        Raises `ListingNotSupported` on a store that knows single locks only.
        """
        return self.store.count(checked_prefix(prefix))

    def clear(
        self,
        name: str,
        token: str | None = None,
        *,
        by: str | None = None,
        digest: str | None = None,
    ) -> bool:
        """Remove whatever holds the lock, by an operator's decision.

        With ``token`` only if that very lease still holds it; with ``digest``, of a `LockInfo`
        without a token, only if that very value does. ``by`` says for the log who cleared it.
        Returns False if nothing was removed.
        """
        store = self.store
        checked_name(name)
        for what, proof in (("token", token), ("digest", digest)):
            if proof is not None and not isinstance(proof, str):
                raise TypeError(f"a {what} is a str, not {type(proof).__name__}")
        holder = store.get(name)
        if token is None and digest is not None:
            cleared = store.clear_foreign(name, digest)
        else:
            cleared = store.clear(name, token)
        if not cleared:
            return False
        self._cleared(store, name, token, holder, by)
        return True

    def _cleared(
        self,
        store: BaseStore,
        name: str,
        token: str | None,
        holder: LockInfo | None,
        by: str | None,
    ) -> None:
        lock_cleared.send_robust(
            LockService, name=name, store=store.alias, token=token, holder=holder, by=by
        )


locks = LockService()
