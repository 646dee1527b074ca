"""Looking at many locks, and clearing them: defaults made of the methods about one lock."""

from __future__ import annotations

from collections.abc import Sequence

from .._values.lock_info import LockInfo
from .._values.owner import Owner
from .required import RequiredMethods

__all__ = ["ManyLocks"]


class ManyLocks(RequiredMethods):
    """Optional methods about many locks at once.

    A store whose server can answer for hundreds of locks in one round trip implements them so.
    These defaults cost a round trip or two for each lock.
    """

    def clear_foreign(self, name: str, digest: str) -> bool:
        """See `BaseStore.clear_foreign`."""
        raise NotImplementedError

    def waiters(self, name: str, limit: int = 100) -> list[Owner]:
        """See `BaseStore.waiters`."""
        raise NotImplementedError

    def get_many(self, names: Sequence[str]) -> list[LockInfo | None]:
        """`get` for each of some locks.

        Args:
            names: the locks.

        Returns:
            What holds each of them, in the same order; None for one that nothing holds.
        """
        return [self.get(name) for name in names]

    def next_waiters(self, names: Sequence[str]) -> list[Owner | None]:
        """Who is the first in the wait queue of each of some locks.

        Args:
            names: the locks.

        Returns:
            The first waiters, in the same order; None where nobody is in the queue.
        """
        return [next(iter(self.waiters(name, 1)), None) for name in names]

    def clear_many(self, holders: Sequence[LockInfo]) -> list[bool]:
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
