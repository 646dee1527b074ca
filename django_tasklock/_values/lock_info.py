"""A lock's state, for everyone who does not hold it; and its name with its physical keys."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .durations import age
from .owner import COOLING, Owner
from .slots import LARGEST_SLOTS, base_of, slot_of


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


class LockKeys(str):
    """A name with the keys that one store has for it, made once for a lease.

    A cache's KEY_FUNCTION may look at the thread, for its tenant. So the keys are made in the
    caller's thread, and a lease, a note or a `LockInfo` keeps them. Everybody else takes this for
    the plain name: it is equal to it.

    Attributes:
        alias: that of the store; any other store makes keys of its own.
        key: that of the lock, or of the note.
        queue: the wait queue of the lock.
        known_permits: `permits` where they do not follow from the key; empty: they do, or the store
            has to look.
        of_all: whether the name has the same keys in all threads.
        member: what indexes and fences have for the name: with its key, if other threads have
            another one.
    """

    __slots__ = ("alias", "key", "known_permits", "member", "of_all", "queue")

    alias: str
    key: bytes
    queue: bytes
    known_permits: bytes
    of_all: bool
    member: bytes

    def __new__(
        cls, name: str, alias: str, key: bytes, of_all: bool, known_permits: bytes = b""
    ) -> LockKeys:
        """The name, with the keys that follow from its ``key``."""
        new = str.__new__(cls, name)
        new.alias, new.key, new.of_all, new.known_permits = alias, key, of_all, known_permits
        new.queue = key + b" queue"
        new.member = name.encode() if of_all else b"%b\n%b" % (name.encode(), key)
        return new

    def __reduce__(self) -> tuple[Any, ...]:
        if self.of_all:
            return str, (str(self),)
        return LockKeys, (str(self), self.alias, self.key, self.of_all, self.known_permits)

    @property
    def permits(self) -> bytes:
        """The wait queue of the permits of which the lock may be one: its record says whether it
        is. It is ``queue`` where the name cannot be that of a permit."""
        if self.known_permits or "#" not in self:
            return self.known_permits or self.queue
        base = base_of(self, LARGEST_SLOTS)
        return b"%b%b queue" % (self.key.removesuffix(self.encode()), base.encode())

    @property
    def gate(self) -> bytes:
        """The key of the lock whose permit this lock may be, which has the queue `permits`."""
        return self.permits.removesuffix(b" queue")


def shown(name: str) -> str:
    """The name for other code: plain, unless another thread may have another key for it."""
    return str(name) if isinstance(name, LockKeys) and name.of_all else name


def kept_key(name: str) -> str | None:
    """The key that a name keeps because another thread may have another one; None: it need not."""
    return name.key.decode() if isinstance(name, LockKeys) and not name.of_all else None
