"""The lock service: the operations on the locks of one store."""

from __future__ import annotations

from .._values.arguments import MOST_LISTED, checked_name, checked_number, checked_prefix
from .._values.lock_info import LockInfo
from .._values.owner import Owner
from ..conf import DEFAULT_ALIAS
from ..stores import stores
from ..stores.base import BaseStore
from .aio.verbs import AsyncVerbs
from .gate import waiters_for_permit
from .history import Remembering, note_event
from .hold import Holding

__all__ = ["LockService", "locks"]


class LockService(AsyncVerbs, Holding, Remembering):
    """The operations on the locks of one store.

    Every method may raise `StoreUnavailable`, if the store does not answer. That means neither
    "held" nor "not held". Arguments are checked before anything is sent: a wrong one raises
    `TypeError` or `ValueError`.
    """

    def __init__(self, alias: str = DEFAULT_ALIAS) -> None:
        self.alias = alias

    def __repr__(self) -> str:
        return f"<LockService {self.alias!r}>"

    @property
    def store(self) -> BaseStore:
        """The store behind the alias. Raises `InvalidLockConfig` if the settings are wrong."""
        return stores[self.alias]

    def using(self, alias: str) -> LockService:
        """Return the service of another store. Raises `InvalidLockConfig` for an unknown alias."""
        service = LockService(alias)
        _ = service.store
        return service

    def is_locked(self, name: str) -> bool:
        """Return whether anything holds the lock, also a key that other code set."""
        return self.get(name) is not None

    def get(self, name: str) -> LockInfo | None:
        """Return what holds the lock; None if nothing does."""
        return self.store.get(checked_name(name))

    def waiters(self, name: str) -> list[Owner]:
        """Return the owners in the lock's wait queue, the next one first: at most 100. Those who
        wait for a permit of ``name`` are among them.

        On a store that polls the list is empty. A waiter that died stays in the queue until the
        lock would be handed to it, and is removed then.
        """
        return [*self.store.waiters(checked_name(name)), *waiters_for_permit(self.store, name)]

    def list(self, prefix: str = "", limit: int | None = None, offset: int = 0) -> list[LockInfo]:
        """Return the live locks whose names begin with ``prefix``, the soonest to expire first.

        ``limit``: how many at most; None, all. ``offset``: how many to leave out at the start.
        Raises `ListingNotSupported` on a store that cannot list.
        """
        if limit is not None:
            limit = min(checked_number("limit", limit), MOST_LISTED)
        offset = min(checked_number("offset", offset), MOST_LISTED)
        return self.store.list(checked_prefix(prefix), limit, offset)

    def count(self, prefix: str = "") -> int:
        """Return how many live locks have names that begin with ``prefix``.

        Raises `ListingNotSupported` on a store that cannot list.
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
        """Remove whatever holds the lock, because an operator decided so.

        ``token``: only if this lease still holds it. ``digest``, of a `LockInfo` without a token:
        only if the key still has this value. ``by``: who cleared it, for the log. Returns False if
        nothing was removed.
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
        owner = Owner() if holder is None else holder.owner
        note_event(store.alias, "cleared", name, owner, by=by)
        self._cleared(store, name, token, holder, by)
        return True


locks = LockService()
