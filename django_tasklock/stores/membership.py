"""What a store may implement to be a better member of a store that is made of several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from .required import RequiredMethods
from .values import Grant, Memory, Refusal

__all__ = ["MemberMethods"]


class MemberMethods(RequiredMethods):
    """Optional methods, which `QuorumStore` calls on its members.

    Fences of several servers come from several clocks. So the quorum's fence is the greatest of
    those that its members grant, and a majority of them must never grant a smaller one again.
    """

    raises_fences: ClassVar[bool] = False
    """`raise_fence` works."""

    def acquire_above(
        self, name: str, token: str, ttl: float, owner: Mapping[str, Any], floor: int
    ) -> Grant | Refusal:
        """`acquire`, with a proposal for the fence.

        Args:
            name, token, ttl, owner: as for `acquire`.
            floor: the fence should be this number if every earlier one is smaller. The store may
                ignore it.

        Returns:
            As `acquire`; `Grant.memory` is set where the store knows it. Raises `StoreUnavailable`.
        """
        return self.acquire(name, token, ttl, owner)

    def raise_fence(self, name: str, token: str, fence: int, proof: Any = None) -> bool:
        """Make the lease's fence at least ``fence``. Every later lease of the lock then has a
        greater one.

        Args:
            name, token, proof: as for `extend`.
            fence: the number.

        Returns:
            False if this lease no longer holds the lock; nothing was changed then. Raises
            `StoreUnavailable`.
        """
        raise NotImplementedError(
            f"the store {type(self).__name__} does not implement raise_fence()"
        )

    def memory(self) -> Memory | None:
        """For how long the server has kept every lease.

        Returns:
            None if it is not known, or the server never forgets one. Raises `StoreUnavailable`.
        """
        return None
