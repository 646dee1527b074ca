"""One member of a quorum."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from ..._values import clock
from .. import stores
from ..base import BaseStore, Memory
from ..lease_notes import NAME_PREFIX
from .crew import Crew
from .options import QuorumOptions
from .owed import Owed
from .quorum_lease import QuorumLease

__all__ = ["Member"]

RENEWERS = 2
"""native threads of each member, for the renewal thread"""


class Member:
    """A store of another alias, and the threads in which it is called.

    Args:
        number: its index among the members.
        alias: in TASKLOCK.
        options: of the quorum.
    """

    def __init__(self, number: int, alias: str, options: QuorumOptions) -> None:
        self.number = number
        self.alias = alias
        self.forgets = alias not in options.persistent
        """whether its server may have no leases after a restart"""
        patience = options.member_timeout
        self.owed = Owed(number, self._release_owed)
        self.callers = Crew(options.threads, patience, native=False, owed=self.owed)
        self.renewers = Crew(RENEWERS, patience, native=True)

    @cached_property
    def store(self) -> BaseStore:
        """The store for locks. Raises `InvalidLockConfig`.

        It stays the same: when the settings change, the quorum is made anew as well, and what is
        owed to the servers of the old one is not asked of others.
        """
        return stores[self.alias]

    @cached_property
    def notes(self) -> BaseStore:
        """The store for notes and reservations of `LeaseNotes`.

        They have keys of their own, so that the member lists and counts locks only.
        """
        prefix = self.store.settings.key_prefix
        own = f"{prefix}.notes" if prefix else NAME_PREFIX.rstrip(":")
        return type(self.store)(replace(self.store.settings, key_prefix=own))

    def close_notes(self) -> None:
        """Close the idle connections of the store for notes, if it was made."""
        notes = vars(self).get("notes")
        if notes is not None:
            notes.close_idle()

    def store_of(self, name: str) -> BaseStore:
        """The store for a lock, or for a note."""
        return self.notes if name.startswith(NAME_PREFIX) else self.store

    def votes(self, memory: Memory | None, oldest: float, longest_ttl: float | None) -> bool:
        """Whether a lease that it grants counts.

        A server that has lost its leases may grant a lock that is held. It does not count before
        all leases that it may have had are over.

        Args:
            memory: how long it has kept its leases.
            oldest: the longest `Memory.unbroken` of the members.
            longest_ttl: seconds.
        """
        if memory is None or longest_ttl is None:
            return True
        if self.forgets and memory.up is not None and memory.up < longest_ttl:
            return False
        unbroken = memory.unbroken
        # When a quorum is new, all members have no data at first.
        return unbroken is None or unbroken >= longest_ttl or oldest - unbroken < NEW_SECONDS

    def end(self) -> None:
        """End its threads."""
        self.callers.end()
        self.renewers.end()

    def owe(self, lease: QuorumLease, ttl: float) -> None:
        """Release a lease, which lasts ``ttl`` seconds at most, as soon as the member answers."""
        self.owed.add(lease, clock.now() + ttl)
        self.callers.nudge()

    def _release_owed(self, lease: QuorumLease) -> bool:
        # In this order: see `QuorumLease`.
        begun = lease.begin_release(self.number)
        if not lease.is_over():
            lease.end_release(self.number, begun)
            return True
        proof = lease.proofs.get(self.number)
        released = self.store_of(lease.name).release(lease.name, lease.token, proof)
        if released:
            lease.released.add(self.number)
        lease.end_release(self.number, begun)
        return released


NEW_SECONDS = 10.0
"""members whose data began within so many seconds of each other are new, and not emptied"""
