"""What a store implements so that a lease may go on without its process, or in another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from .required import RequiredMethods
from .values import Grant

__all__ = ["Rewriting"]


class Rewriting(RequiredMethods):
    """An optional method, for cooling locks and for leases that are detached and adopted."""

    supports_rewrite: ClassVar[bool] = False
    """`rewrite` works."""

    @property
    def longest_ttl(self) -> float | None:
        """The longest ttl of a lease in seconds, or None if there is no limit."""
        return None

    def rewrite(
        self,
        name: str,
        token: str,
        ttl: float,
        owner: Mapping[str, Any],
        mark: str | None = None,
        proof: Any = None,
    ) -> Grant | None:
        """Replace the owner of a lease, and make it end ``ttl`` seconds from now, in one step.

        The token, the fence and the time of the acquire stay as they are. The next waiters of the
        lock learn who holds it now, and until when, as they do when the lock is handed over.

        Idempotent: a client that asks again after a lost reply, with the same arguments, gets the
        same answer.

        Args:
            name: the lock.
            token: the lease. It must be enough without the proof.
            ttl: seconds.
            owner: as for `acquire`: what `get` returns from now on.
            mark: only if the lease has this mark (``Owner.mark``) now, or was adopted less often
                (``Owner.adoptions``) than ``owner`` says, and is not cooling: the mark did not
                reach this store then.
                None: unless the lease was adopted more often than ``owner`` says, which makes this
                call a late one.
            proof: ``Grant.proof``, or None where the caller does not have it.

        Returns:
            A grant with the lease's fence and the new proof. None if this lease no longer holds the
            lock, or has another mark; nothing was changed then.
        """
        raise NotImplementedError(f"the store {type(self).__name__} does not implement rewrite()")

    def abandon_to(self, name: str, token: str, ttl: float, owner: Mapping[str, Any]) -> bool:
        """`rewrite`, for a lease whose release was interrupted.

        Called from the store's renewal threads only.

        Args:
            name, token, ttl, owner: as for `rewrite`.

        Returns:
            Whether the lease held the lock.
        """
        return self.rewrite(name, token, ttl, owner) is not None
