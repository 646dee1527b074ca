"""What everyone may know of a lock: its state, what happened to it, and its physical keys."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal, get_args

from .arguments import LARGEST_SLOTS, base_of, slot_of
from .owner import COOLING, Owner
from .words import age

Kind = Literal[
    "refused", "skipped", "waited", "lost", "cleared", "taken over", "given up", "adopted", "held"
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)
# Of these there are few, and a flood of the others pushes none of them out of the history.
RARE: frozenset[Kind] = frozenset({"lost", "cleared", "taken over", "held"})


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
        renewing: whether the holder extends the lease by itself. None: not known, or it has a
            ``max_hold``.
        digest: identifies a value that other code set, as ``token`` identifies a lease.
        waiting_since: when the next waiter first asked, by the clock of its host. None: nobody
            waits, or it is not known.

    For a key that other code set, ``token``, ``acquired_at``, ``fence`` and all of the owner's
    fields are None. The latter also if a later version of this package has set it, in another form.
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
    def unknown(self) -> bool:
        """Whether a later version took the lock, in a form that does not say to this one who holds
        it: a run, or an operator."""
        return self.token is not None and self.owner == Owner()

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
        names = "name", "ttl", "acquired_at", "owner", "token", "store", "key"
        return {name: getattr(self, name) for name in names} | {
            "acquired_at": self.acquired_at.isoformat() if self.acquired_at else None,
            "owner": self.owner.as_dict(),
        }


@dataclass(frozen=True, slots=True)
class Event:
    """An entry of the history of a lock.

    ``kind`` says what happened, ``owner`` to whom:

    * "refused": the owner asked for the lock, and waited ``seconds``; ``holder`` held it. Of a
      message that comes back to its queue, the first such look is an event, the 2nd, the 4th, the
      8th and so on.
    * "skipped": the owner is a task whose call did not run. ``reason`` is as in its marker.
      ``holder`` had the lock, or is the task that does the work instead. Its refusal, after
      ``seconds``, is no event of its own.
    * "waited": the owner got the lock after more than a second: ``seconds``.
    * "lost": the owner's lease was over before its release; ``reason``: how that was noticed.
    * "cleared": the owner held the lock, and ``by`` removed its lease.
    * "taken over": the owner held the lock, and is gone; ``by`` is the process that noticed.
    * "given up": the owner is a message that has failed and does not run again; ``reason``: as of
      the outcome "given_up" of ``task_not_run``. Its refusal is no event of its own.
    * "adopted": the owner goes on under a lease that another one has detached.
    * "held": an operator, ``by``, holds the lock for ``seconds``; ``reason``: why.

    ``name`` of a permit is ``NAME#K``. ``at`` is by the clock of the store's server, where it has
    one. The owners have the fields for people; those that identify a process for ever (``boot``,
    ``pidns``, ``timens``, ``start``, ``group``) are None. Fields that do not apply are None.

    Refusals of the same process and task id are one event for about a second. ``count`` is how many
    they were. ``at``, ``owner`` and ``holder`` are of the last of them, ``since`` is the moment of
    the first, and ``seconds`` is the longest wait. Of a single event ``count`` is 1, and ``since``
    is None.
    """

    kind: Kind
    name: str
    store: str
    at: datetime
    owner: Owner
    holder: Owner | None = None
    seconds: float | None = None
    by: str | None = None
    reason: str | None = None
    count: int = 1
    since: datetime | None = None

    def as_json(self) -> dict[str, Any]:
        """The fields as JSON-able values."""
        return asdict(self) | {
            "at": self.at.isoformat(),
            "owner": self.owner.as_dict(),
            "holder": None if self.holder is None else self.holder.as_dict(),
            "since": None if self.since is None else self.since.isoformat(),
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
