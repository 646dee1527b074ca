"""What goes into a store and comes out of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from .._values.lock_info import LockInfo

__all__ = [
    "LISTED_KEY_PREFIX",
    "SCAN",
    "AllHeld",
    "Extension",
    "Finding",
    "Grant",
    "Memory",
    "Note",
    "OneOf",
    "Refusal",
    "Reserved",
]

LISTED_KEY_PREFIX = "queued "
"""the prefix of the reservations' keys that `BaseStore.reservations` lists"""


SCAN = "search for keys that other code set"
"""what a store without `BaseStore.scan` cannot do, for `ListingNotSupported`"""


class Memory(NamedTuple):
    """For how long a server has kept every lease that it has granted."""

    up: float | None = None
    """seconds since it was started, after which it may have had no leases; None: not known"""
    unbroken: float | None = None
    """seconds since its data was last empty; None: not known"""


class Grant(NamedTuple):
    """The lock was granted."""

    fence: int | None = None
    """the number of the lease, greater than that of every earlier lease of the store; None where
    the store has no fences"""
    proof: Any = None
    """what the store wants to be given at extend and release, to save itself a read; the service
    keeps it and does not look into it"""
    started: float | None = None
    """the earliest moment, on `clock.now`, at which the lease can have begun; None: the moment
    just before the call"""
    noted: bool = False
    """whether the note was written in the same step, or was there already"""
    left: Callable[[], float] | None = None
    """returns the seconds that are left of the lease by a clock of the store's own, which this
    process can read: the lease is over as soon as either clock says so. None: only `clock.now`
    counts"""
    memory: Memory | None = None
    """how long the server has kept its leases, where `acquire_above` was asked and knows it"""


class Refusal(NamedTuple):
    """The lock is held."""

    holder: LockInfo
    """what the store knew of the holder at that moment"""


class OneOf(NamedTuple):
    """One of several locks was granted."""

    name: str
    """which one"""
    grant: Grant
    others: tuple[LockInfo, ...] | None
    """what holds the other locks, where the store has looked at all of them in the same step; else
    None"""


class AllHeld(NamedTuple):
    """None of several locks was granted. At least one of the fields is not empty."""

    holders: tuple[LockInfo, ...]
    """what holds the locks; empty where they were not looked at"""
    gate: LockInfo | None
    """who waits for one of them before all others"""


class Extension(NamedTuple):
    """One lease of a batch to extend."""

    name: str
    token: str
    ttl: float
    """seconds from now"""
    proof: Any = None
    """`Grant.proof`"""


class Note(NamedTuple):
    """A text that a store keeps under a key for some time, for example to recognise redeliveries.

    The key is any text; it never meets a lock's name.
    """

    key: str
    text: str
    """an empty text means that there is no note: the store removes the one that is there"""
    ttl: float
    """seconds for which the note is kept"""


class Reserved(NamedTuple):
    """A reservation: the key is reserved for the text."""

    key: str
    text: str
    ttl: float | None
    """seconds left; None: it never ends"""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about the live server that an operator should know, from `BaseStore.check`."""

    id: str
    """a stable word, such as "eviction\""""
    serious: bool
    """whether locks may be lost, or held by two at once"""
    message: str
    """what is wrong, as the rest of a sentence that begins with the store; without a full stop"""
    hint: str = ""
    """what to do, in sentences; may be empty"""
