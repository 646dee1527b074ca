"""The contract that every store keeps.

* `RequiredMethods` (required.py): five methods that a store must implement.
* `LeaseNotes` (lease_notes.py): notes and reservations, with a default made of those five.
* `AnyOf` (any_of.py): taking any one of several locks, with a default made of those five.
* `MemberMethods` (membership.py): what a store of several stores calls on its members.
* `ManyLocks` (many_locks.py): listing and looking at many locks, and clearing them.
* `Rewriting` (rewriting.py): a lease goes on without its process, or in another one.
* `Trail` (trail.py): a history of what happened to the locks.
* `BaseStore`: the rest is optional too, and has a default.

`django_tasklock.testing.StoreContract` tests the five methods, `list`, `count` and `waiter`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from .._values.owner import Owner
from ..conf import StoreSettings
from ..exceptions import InvalidLockConfig
from .any_of import AnyOf
from .many_locks import ManyLocks
from .membership import MemberMethods
from .rewriting import Rewriting
from .trail import Trail
from .values import (
    LISTED_KEY_PREFIX,
    AllHeld,
    Extension,
    Finding,
    Grant,
    Memory,
    Note,
    OneOf,
    Refusal,
    Reserved,
)
from .waiter_protocol import CannotSubscribe, Waiter

__all__ = [
    "LISTED",
    "LISTED_KEY_PREFIX",
    "AllHeld",
    "BaseStore",
    "CannotSubscribe",
    "Extension",
    "Finding",
    "Grant",
    "Memory",
    "Note",
    "OneOf",
    "Owner",
    "Refusal",
    "Reserved",
    "Waiter",
]

LISTED = LISTED_KEY_PREFIX
"""the old name"""


class BaseStore(AnyOf, ManyLocks, MemberMethods, Rewriting, Trail):
    """Where leases live. All threads of a process share one store.

    A subclass implements `acquire`, `extend`, `release`, `clear` and `get`, sets the flags that
    are true of it, and may implement any of the other methods better than their defaults do.

    A store only stores: waiting, signals, logs and renewal belong to the service. Every method
    raises `StoreUnavailable` when the server does not answer, and nothing else for whatever its
    server or client did. Names, tokens, ttls (seconds) and owners were checked before.
    """

    supports_listing: ClassVar[bool] = False
    """`list` and `count` work."""
    atomic_release: ClassVar[bool] = False
    """extend and release compare the token and act in one step on the server."""
    supports_fence: ClassVar[bool] = False
    """Every lease has a number, greater than that of every earlier lease."""
    supports_waiting: ClassVar[bool] = False
    """`waiter` returns a `Waiter`, which is handed the lock without polling."""
    uses_cache: ClassVar[bool] = False
    """The locks are keys of the cache that CACHE names; the system checks look at that cache."""
    known_options: ClassVar[frozenset[str]] = frozenset({"TAKEOVER"})
    """The keys that OPTIONS may have, beside those of the base classes."""

    def __init__(self, settings: StoreSettings) -> None:
        """Make the store of one alias.

        Args:
            settings: of the alias, from the setting TASKLOCK.

        Raises `InvalidLockConfig` for an unknown option or one of a wrong type.
        """
        self.settings = settings
        self.alias = settings.alias
        known = {option for base in type(self).__mro__ for option in _own_options(base)}
        unknown = sorted(set(settings.options) - known)
        if unknown:
            raise InvalidLockConfig(
                f"the lock store {self.alias!r} has no option {', '.join(unknown)}; there are "
                f"{', '.join(sorted(known))}"
            )
        takeover = settings.options.get("TAKEOVER", True)
        if not isinstance(takeover, bool):
            raise InvalidLockConfig(
                f"the option TAKEOVER of the lock store {self.alias!r} is a bool, not {takeover!r}"
            )
        self.takeover = takeover
        """Whether a lock whose owner is known to be dead is taken at once. Off for work that
        leaves subprocesses behind."""

    def extend_many(self, batch: Sequence[Extension]) -> Sequence[bool | None]:
        """`extend` for each lease of a batch, in as few round trips as the store can.

        Called from the store's renewal threads only.

        Args:
            batch: the leases, each with its ttl in seconds.

        Returns:
            For each lease what `extend` returns, in the same order; None for one of which nothing
            is known, because too much of the store did not answer.
        """
        return [self.extend(*extension) for extension in batch]

    def shard(self, name: str) -> str:
        """Which part of the store has a lock now, where its parts can be silent independently.

        The leases of each part are renewed by a thread of their own.

        Args:
            name: the lock.

        Returns:
            Any short text, of as few as there are parts; empty where the store has no parts, or it
            is not known yet. Asks no server, and raises nothing.
        """
        return ""

    def keyed(self, name: str) -> str:
        """The name, with whatever this thread must say so that all others find the same lock.

        The service calls it once for a lease, in the thread that asks for it, and gives the result
        to every later call about it. It is for stores whose physical keys depend on the thread, as
        with a KEY_FUNCTION for tenants.

        Args:
            name: of a lock; or what this method has returned, which is returned as it is.

        Returns:
            A `str` that is equal to ``name``. Asks no server.
        """
        return name

    def keyed_note(self, key: str) -> str:
        """`keyed`, for the key of a note or a reservation."""
        return key

    def clear_foreign(self, name: str, digest: str) -> bool:
        """Remove the value that somebody else set, if it is still the one that `get` has shown.

        In a store that cannot compare and remove in one step, a new value that is set between the
        two is removed.

        Args:
            name: the lock.
            digest: ``LockInfo.digest`` of the value.

        Returns:
            False if nothing was removed.
        """
        holder = self.get(name)
        if holder is None or holder.token is not None or holder.digest != digest:
            return False
        return self.clear(name)

    def abandon(self, name: str, token: str) -> bool | None:
        """`release`, for a lease that may never have been granted.

        Called from the store's renewal threads only.

        Args:
            name: the lock.
            token: the lease.

        Returns:
            Whether the lease held the lock; None if that is not known.
        """
        return self.release(name, token)

    def next_fence(self) -> int | None:
        """The fence that a lease would have if it were granted now; for operators.

        Returns:
            None if it is not known, or leases have no fences.
        """
        return None

    def waiter(self, name: str, token: str, ttl: float, owner: Mapping[str, Any]) -> Waiter | None:
        """A waiter for a lock. It is not in the wait queue before it asks.

        Args:
            name, token, ttl, owner: as for `acquire`; ``ttl`` in seconds.

        Returns:
            None if this store has no wait queues.
        """
        return None

    def waiters(self, name: str, limit: int = 100) -> list[Owner]:
        """Who is in a lock's wait queue, the next holder first.

        Args:
            name: the lock.
            limit: how many to return at most.

        Returns:
            The owners, each with ``waiting_since`` where the store knows it; none where the store
            has no wait queues.
        """
        return []

    def close_idle(self) -> None:
        """Close the connections that no call uses now.

        Called when the settings have changed, as in tests: soon nobody refers to this store. Later
        calls connect again.
        """

    def check(self) -> Iterable[Finding]:
        """What is wrong with the live server, for ``check --deploy`` and the doctor.

        Returns:
            A `Finding` for each thing; nothing if all is well. It may ask the server while they
            are read.
        """
        return ()


def _own_options(store: type) -> frozenset[str]:
    options: frozenset[str] = vars(store).get("known_options", frozenset())
    return options
