"""Listing and looking at many locks, and clearing them: defaults where there can be any."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Sequence

from .._values.lock_info import LockInfo
from .._values.owner import Owner
from ..exceptions import ListingNotSupported
from .required import RequiredMethods
from .values import SCAN, Reserved

__all__ = ["ManyLocks"]


class ManyLocks(RequiredMethods):
    """Optional methods about many locks at once.

    A store whose server can answer for hundreds of locks in one round trip implements them so.
    These defaults cost a round trip or two for each lock; those that list raise.
    """

    def clear_foreign(self, name: str, digest: str) -> bool:
        """See `BaseStore.clear_foreign`."""
        raise NotImplementedError

    def waiters(self, name: str, limit: int = 100) -> builtins.list[Owner]:
        """See `BaseStore.waiters`."""
        raise NotImplementedError

    def held(self, names: Sequence[str]) -> set[str]:
        """Which of some locks are held, in as few round trips as the store can.

        Args:
            names: the locks.

        Returns:
            The names that are held, keys that somebody else set included.
        """
        return {name for name in names if self.get(name) is not None}

    def get_many(self, names: Sequence[str]) -> builtins.list[LockInfo | None]:
        """`get` for each of some locks.

        Args:
            names: the locks.

        Returns:
            What holds each of them, in the same order; None for one that nothing holds.
        """
        return [self.get(name) for name in names]

    def reservations(self, prefix: str = "", limit: int | None = None) -> builtins.list[Reserved]:
        """Live reservations of the queue (``unique_while``), the soonest to end first.

        Args:
            prefix: only those whose keys begin with `LISTED_KEY_PREFIX` and then this.
            limit: how many to return at most; None: all.

        Raises `ListingNotSupported`.
        """
        raise ListingNotSupported(self.alias, "list its reservations")

    def list(
        self, prefix: str = "", limit: int | None = None, offset: int = 0
    ) -> builtins.list[LockInfo]:
        """Live locks, the soonest to expire first.

        Args:
            prefix: only those whose names begin with it.
            limit: how many to return at most; None: all.
            offset: how many to leave out at the beginning.

        Raises `ListingNotSupported`.
        """
        raise ListingNotSupported(self.alias)

    def count(self, prefix: str = "") -> int:
        """How many live locks have names that begin with ``prefix``.

        Raises `ListingNotSupported`.
        """
        raise ListingNotSupported(self.alias)

    def scan(self, prefix: str = "") -> Iterator[LockInfo]:
        """Every lock, keys that somebody else set included, in no order.

        Reads the keys of the whole store, those that are no locks as well.

        Args:
            prefix: only locks whose names begin with it.

        Raises `ListingNotSupported`.
        """
        raise ListingNotSupported(self.alias, SCAN)

    def walk(self, prefix: str = "") -> Iterator[LockInfo]:
        """All live locks, the soonest to expire first; read piece by piece where the store can.

        Args:
            prefix: only those whose names begin with it.

        Raises `ListingNotSupported`.
        """
        return iter(self.list(prefix))

    def endless(self, prefix: str = "") -> Iterator[LockInfo]:
        """Every key that is a lock and never expires, in no order: `scan`, without the others.

        Raises `ListingNotSupported`.
        """
        return (info for info in self.scan(prefix) if info.ttl is None)

    def clear_many(self, holders: Sequence[LockInfo]) -> builtins.list[bool]:
        """`clear` for each of some locks, if it is still held by what was shown.

        For a lease that is the lease with its token, for a key that somebody else set it is
        ``LockInfo.digest`` of its value; without either, nothing is cleared. A lease whose record
        was rewritten meanwhile may be left alone.

        Args:
            holders: as this store has returned them, each lock at most once.

        Returns:
            For each of them whether it was removed, in the same order.
        """
        return [self._clear_shown(holder) for holder in holders]

    def _clear_shown(self, holder: LockInfo) -> bool:
        if holder.token is not None:
            return self.clear(holder.name, holder.token)
        return holder.digest is not None and self.clear_foreign(holder.name, holder.digest)
