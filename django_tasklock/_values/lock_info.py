"""A lock's state, for everyone who does not hold it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from .deferred import Deferred
from .owner import Owner
from .owner_record import COOLING
from .slots import slot_of

__all__ = ["LockInfo"]


@dataclass(frozen=True, slots=True)
class LockInfo(Deferred):
    """What a store knows of a lock that is held.

    ``name`` is the lock's, ``store`` the alias of its store, and ``key`` what the store calls it.
    ``ttl`` is what is left of the lease in seconds, None for a key that never expires.
    ``acquired_at`` is an aware datetime. ``token`` identifies the lease, ``fence`` is its number,
    and ``owner`` says who holds it. For a key that somebody else set, ``token``, ``acquired_at``,
    ``fence`` and all of the owner's fields are None; ``fence`` is None also on a store without
    fences.
    ``waiters`` is the length of the wait queue, None where it was not counted, and
    ``waiting_since`` when the next of them first asked, by the clock of its host; None where nobody
    waits, or that is not known. ``granted`` is the ttl, in seconds, that the lease was granted
    with, and ``renewing`` whether its holder extends it by itself; both are None where the record
    does not say. ``digest`` identifies a value that other code set, as ``token`` identifies a
    lease.
    """

    name: str
    ttl: float | None
    acquired_at: datetime | None
    token: str | None
    owner: Owner
    store: str
    key: str
    fence: int | None = None
    waiters: int | None = None
    granted: float | None = None
    renewing: bool | None = None
    digest: str | None = None
    waiting_since: datetime | None = None

    @classmethod
    def deferred(
        cls,
        name: str,
        ttl: float | None,
        store: str,
        waiters: int | None,
        rest: Callable[..., Mapping[str, Any]],
        *of: Any,
    ) -> LockInfo:
        """Return one that calls ``rest(*of)`` for its other fields, by name, when the first of them
        is read."""
        new, fill = cls.__new__(cls), object.__setattr__
        fill(new, "name", name)
        fill(new, "ttl", ttl)
        fill(new, "store", store)
        fill(new, "waiters", waiters)
        fill(new, "_rest", rest)
        fill(new, "_of", of)
        return new

    @property
    def held_by(self) -> str | None:
        """The operator's name, "" for one without a name; None unless an operator holds the lock
        (``locks.hold``)."""
        return self.owner.held_by

    @property
    def reason(self) -> str | None:
        """Why the operator holds the lock, "" if that was not said; None unless an operator holds
        it."""
        return self.owner.reason

    @property
    def longest_wait(self) -> float | None:
        """For how many seconds the next waiter waits by now, which is normally the longest wait.

        None where nobody waits, or that is not known.
        """
        if self.waiting_since is None:
            return None
        # The clocks of two machines differ.
        return max(0.0, (datetime.now(timezone.utc) - self.waiting_since).total_seconds())

    @property
    def cooling(self) -> bool:
        """Whether the holder has released the lock, which stays taken for ``ttl`` seconds more."""
        return self.owner.mark == COOLING

    @property
    def detached(self) -> bool:
        """Whether the lease was detached and not adopted yet: its handle continues it."""
        return self.owner.detached

    @property
    def slot(self) -> int | None:
        """The number of the permit, from 1, if the lock is held with ``slots=N``; else None."""
        return slot_of(self.name, self.owner.slots)

    def is_same_lease(self, other: LockInfo | None) -> bool:
        """Whether both are of one lease. False for None, and for keys that other code set."""
        if other is None or self.token is None:
            return False
        # What was read in the same bytes need not be decoded; of a long list that is most.
        return self.is_like(other) or self.token == other.token

    def as_json(self) -> dict[str, Any]:
        """The fields that are known of any lock, as JSON-able values."""
        return {
            "name": self.name,
            "ttl": self.ttl,
            "acquired_at": self.acquired_at.isoformat() if self.acquired_at else None,
            "owner": self.owner.as_dict(),
            "token": self.token,
            "store": self.store,
            "key": self.key,
        }
