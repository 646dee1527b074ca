"""What a store may implement to be a better member of a store that is made of several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, TypeVar

from .required import RequiredMethods
from .values import Grant, Memory, Refusal

__all__ = ["Begun", "MemberMethods", "Unfinished"]

T_co = TypeVar("T_co", covariant=True)


class Unfinished(Exception):
    """`Begun.read` would have to wait, or to make another call."""


class Begun(Protocol[T_co]):
    """A call to a server that was sent, and whose reply was not read yet.

    One thread uses it at a time. It is finished with `finish` or `drop`, unless `read` has returned
    something. One that nobody finishes leaves nothing behind: its connection is closed.
    """

    def fileno(self) -> int:
        """The descriptor of the socket on which the reply comes. It says so by being readable."""

    def read(self) -> T_co:
        """What the call returns, if that is known without waiting for the server.

        Raises `Unfinished`, and nothing else for whatever the server did: `finish` says what.
        """

    def finish(self) -> T_co:
        """What the call returns. It takes as long as the call itself may take.

        Raises what the call raises.
        """

    def drop(self) -> None:
        """Forget the reply. The server may carry out the call, or have done so."""


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

    def begin_acquire_above(
        self, name: str, token: str, ttl: float, owner: Mapping[str, Any], floor: int
    ) -> Begun[Grant | Refusal] | None:
        """Begin `acquire_above`: send what is to be sent, without waiting for anything.

        So one thread asks several servers at the same time. A store that overrides `acquire` or
        `acquire_above` of one that has this method overrides this one as well.

        Args:
            name, token, ttl, owner, floor: as for `acquire_above`.

        Returns:
            None if nothing was sent, because that would have to wait, or the store can only make
            the whole call. Raises `StoreUnavailable`; nothing was sent then either.
        """
        return None

    def begin_release(self, name: str, token: str, proof: Any) -> Begun[bool] | None:
        """Begin `release`, as `begin_acquire_above` begins to acquire.

        Args:
            name, token, proof: as for `release`.

        Returns:
            As `begin_acquire_above`.
        """
        return None

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
