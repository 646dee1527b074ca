"""The contract that every store keeps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from ..conf import StoreSettings
from ..exceptions import InvalidLockConfig, ListingNotSupported
from ..lease import LockInfo
from ..owner import Owner

__all__ = [
    "LISTED",
    "BaseStore",
    "CannotListen",
    "Extension",
    "Finding",
    "Grant",
    "Line",
    "Note",
    "Refusal",
    "Reserved",
]

LISTED = "queued "
"""how the keys of the reservations begin that `BaseStore.reservations` lists"""


class Grant(NamedTuple):
    """The lock was granted.

    ``proof`` is whatever the store would like to be handed at extend and release, to save a
    question. ``started`` is the earliest moment, on `clock.now`, at which the lease can have
    begun, or None: just before the call. ``noted``: the note was written in the same step.
    """

    fence: int | None = None
    proof: Any = None
    started: float | None = None
    noted: bool = False


class Refusal(NamedTuple):
    """The lock is held; ``holder`` is what the store knew of it at that moment."""

    holder: LockInfo


class Extension(NamedTuple):
    """One lease of a batch to extend; ``ttl`` in seconds."""

    name: str
    token: str
    ttl: float
    proof: Any = None


class Note(NamedTuple):
    """A few words that a store keeps for ``ttl`` seconds, to recognise late copies by.

    An empty ``text`` is no note: what is there may as well be removed.
    """

    key: str
    text: str
    ttl: float


class Reserved(NamedTuple):
    """A key that is reserved for a text; ``ttl`` is what is left, in seconds, None: for ever."""

    key: str
    text: str
    ttl: float | None


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about the live server that an operator should know, from `BaseStore.check`."""

    id: str
    """such as "eviction", stable"""
    serious: bool
    """True: locks may be lost or shared"""
    message: str
    hint: str = ""


class CannotListen(Exception):
    """There is no connection to listen on at the moment: the caller polls."""


class Line(Protocol):
    """One caller's place in the line of a lock; of a store with ``supports_waiting``."""

    note: Note | None
    """what `ask` writes if it is granted the lock"""

    @property
    def ready(self) -> bool:
        """Whether `ask` can stand in line with no other question before it."""

    def ask(self) -> Grant | Refusal:
        """Ask for the lock; if it is held, stand in line (or keep the place there).

        Raises `CannotListen`.
        """

    def wait(self, seconds: float) -> Grant | Refusal | None:
        """Wait until the lock is handed over, at most ``seconds``.

        Returns a refusal when it was handed to somebody else, who is the holder now, and None
        when there is no news. It may return early; `cut` then says whether to ask again.
        """

    @property
    def cut(self) -> bool:
        """Whether a hand-over can no longer be heard."""

    def leave(self) -> Grant | None:
        """Leave the line. Returns the grant if the lock was handed over in that very moment."""

    def quit(self) -> None:
        """`leave` for a caller that has an exception to raise: says nothing, raises nothing."""


class BaseStore:
    """Where leases live. A store is shared by all threads of a process.

    A store is mechanism only: waiting, signals, logs and renewal are the service's. It is
    handed names, ttls (seconds, float) and owners that were checked already. Contention is a
    value, never an exception; a store that cannot say raises `StoreUnavailable`, and nothing
    else, for whatever its server or client did.
    """

    supports_listing: ClassVar[bool] = False
    """`list` and `count` work."""
    atomic_release: ClassVar[bool] = False
    """extend and release compare the token and act in one step on the server."""
    supports_fence: ClassVar[bool] = False
    """Leases carry a number that grows with every lease."""
    supports_waiting: ClassVar[bool] = False
    """`line` hands the lock over without polling."""
    known_options: ClassVar[frozenset[str]] = frozenset({"TAKEOVER"})
    """The keys that OPTIONS may have."""

    def __init__(self, settings: StoreSettings) -> None:
        self.settings = settings
        self.alias = settings.alias
        unknown = sorted(set(settings.options) - self.known_options)
        if unknown:
            raise InvalidLockConfig(
                f"the lock store {self.alias!r} has no option {', '.join(unknown)}; there are "
                f"{', '.join(sorted(self.known_options))}"
            )
        takeover = settings.options.get("TAKEOVER", True)
        if not isinstance(takeover, bool):
            raise InvalidLockConfig(
                f"the option TAKEOVER of the lock store {self.alias!r} is a bool, not {takeover!r}"
            )
        self.takeover = takeover
        """Whether a lock whose owner is known to be dead is taken at once. Off for work that
        leaves subprocesses behind."""

    # What a store must implement.

    def acquire(
        self, name: str, token: str, ttl: float, owner: Mapping[str, Any]
    ) -> Grant | Refusal:
        """Grant the lock for ``ttl`` seconds if nobody holds it.

        Idempotent for one token: a client that asks again after a lost reply is not refused
        by its own lease.
        """
        raise NotImplementedError

    def extend(self, name: str, token: str, ttl: float, proof: Any = None) -> bool:
        """Make the lease last ``ttl`` seconds from now. False: it no longer holds the lock."""
        raise NotImplementedError

    def release(self, name: str, token: str, proof: Any = None, note: Note | None = None) -> bool:
        """End the lease, and write the note. False: the lease no longer held the lock, and
        nothing was changed."""
        raise NotImplementedError

    def clear(self, name: str, token: str | None = None) -> bool:
        """Remove whatever holds the lock; with a token, only that very lease.

        False: nothing was removed.
        """
        raise NotImplementedError

    def get(self, name: str) -> LockInfo | None:
        """What holds the lock, foreign keys included; None if nothing does."""
        raise NotImplementedError

    def recall(self, key: str) -> str | None:
        """The text of a note; None if there is none, or no longer."""
        raise NotImplementedError

    def remember(self, note: Note) -> None:
        """Write a note, over what may be there."""
        raise NotImplementedError

    def tally(self, key: str, ttl: float, by: int = 1) -> int:
        """Add to a count that begins at 0, and keep it for ``ttl`` seconds from now."""
        raise NotImplementedError

    def reserve(
        self,
        key: str,
        text: str,
        ttl: float,
        *,
        over: str = "",
        unless_held: str | None = None,
    ) -> str | LockInfo | None:
        """Reserve a key for a text, for ``ttl`` seconds from now. None: it is reserved.

        Otherwise what is in the way: the text it is reserved for, or what holds the lock named
        ``unless_held``. Reserving it again for the same text is granted, and over the text
        ``over``, which counts as none.
        """
        raise NotImplementedError

    def unreserve(self, key: str, text: str) -> bool:
        """End the reservation. False: the key is not, or no longer, reserved for the text."""
        raise NotImplementedError

    # What a store may implement.

    def acquire_noted(
        self, name: str, token: str, ttl: float, owner: Mapping[str, Any], note: Note
    ) -> Grant | Refusal:
        """`acquire`, and if it is granted write the note in the same step (`Grant.noted`)."""
        return self.acquire(name, token, ttl, owner)

    def held(self, names: Sequence[str]) -> set[str]:
        """Which of the names are held, in as few round trips as the store can."""
        return {name for name in names if self.get(name) is not None}

    def extend_many(self, batch: Sequence[Extension]) -> list[bool]:
        """`extend` for each of the batch, in as few round trips as the store can."""
        return [self.extend(*extension) for extension in batch]

    def clear_foreign(self, name: str, digest: str) -> bool:
        """Remove the value that somebody else set, if it is still the one that `get` gave this
        ``digest``. False: nothing was removed.

        Of a store that cannot compare and remove in one step, another value may come in between.
        """
        held = self.get(name)
        if held is None or held.token is not None or held.digest != digest:
            return False
        return self.clear(name)

    def abandon(self, name: str, token: str) -> bool | None:
        """`release`, for a lease that may never have been granted; called, like `extend_many`,
        from the store's renewal thread only. None: it is not known whether it held the lock."""
        return self.release(name, token)

    def line(self, name: str, token: str, ttl: float, owner: Mapping[str, Any]) -> Line | None:
        """A place in the lock's line, not yet taken; None if this store has no lines."""
        return None

    def waiters(self, name: str, limit: int = 100) -> list[Owner]:
        """Who stands in the lock's line, the next first; at most ``limit``."""
        return []

    def reservations(self, prefix: str = "", limit: int | None = None) -> list[Reserved]:
        """Live reservations whose keys begin with `LISTED` and then ``prefix``, the soonest to end
        first. Raises `ListingNotSupported`."""
        raise ListingNotSupported(self.alias)

    def list(self, prefix: str = "", limit: int | None = None, offset: int = 0) -> list[LockInfo]:
        """Live locks of this prefix, the soonest to expire first. Raises `ListingNotSupported`."""
        raise ListingNotSupported(self.alias)

    def count(self, prefix: str = "") -> int:
        """How many live locks have names that begin with ``prefix``.

        Raises `ListingNotSupported`.
        """
        raise ListingNotSupported(self.alias)

    def scan(self, prefix: str = "") -> Iterator[LockInfo]:
        """Every key that is a lock's, set by whomever, in no order; walks through the whole store.

        Raises `ListingNotSupported`.
        """
        raise ListingNotSupported(self.alias)

    def check(self) -> Iterable[Finding]:
        """What is wrong with the live server, for ``check --deploy`` and the doctor.

        Raises `StoreUnavailable`.
        """
        return ()
