"""A lock's state, for everyone who does not hold it; and its name with its physical key."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .owner import COOLING, Owner
from .slots import slot_of
from .words import age


@dataclass(frozen=True, slots=True)
class LockInfo:
    """What a store knows of a lock that is held.

    Attributes:
        name: the lock's name; of a permit ``NAME#K``.
        ttl: seconds that are left of the lease. None: the key never expires.
        acquired_at: an aware datetime.
        token: identifies the lease.
        owner: who holds the lock.
        store: the alias of the store.
        key: what the store calls the lock.
        fence: the number of the lease. None on a store without fences.
        waiters: the length of the wait queue. None: it was not counted.
        granted: the ttl, in seconds, that the lease was granted with. None: not known.
        renewing: whether the holder extends the lease by itself. None: not known.
        digest: identifies a value that other code set, as ``token`` identifies a lease.
        waiting_since: when the next waiter first asked, by the clock of its host. None: nobody
            waits, or it is not known.

    For a key that other code set, ``token``, ``acquired_at``, ``fence`` and all of the owner's
    fields are None.
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
        return max(0.0, age(self.waiting_since))  # The clocks of two machines differ.

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
        return other is not None and self.token is not None and self.token == other.token

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


class Keyed(str):
    """A name that brings its physical key along, so that whoever gets it finds the same one.

    A cache's KEY_FUNCTION may look at the thread, for its tenant. So the key is made once, in the
    caller's thread, and a lease, a note or a `LockInfo` keeps it. Everybody else takes this for the
    plain name: it is equal to it.
    """

    __slots__ = ("alias", "key")

    alias: str
    """of the store; any other store makes a key of its own"""
    key: str

    @classmethod
    def of(cls, name: str, key: str, alias: str) -> Keyed:
        """The name with the ``key`` that the store ``alias`` has made of it."""
        new = cls(name)
        new.key, new.alias = key, alias
        return new

    def __reduce__(self) -> tuple[Any, ...]:
        return Keyed.of, (str(self), self.key, self.alias)


def key_of(name: str) -> str:
    """What tells a lock from those with the same name under other keys."""
    return name.key if isinstance(name, Keyed) else name
