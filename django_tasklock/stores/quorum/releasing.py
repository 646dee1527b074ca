"""Releasing leases at the members, now or later."""

from __future__ import annotations

from collections import OrderedDict

from ...conf import StoreSettings
from ...exceptions import StoreUnavailable
from .member import Member
from .members import QuorumMembers
from .quorum_lease import QuorumLease

__all__ = ["QuorumReleasing"]

MOST_UNFINISHED = 10_000
"""of so many releases at most it is known which members have made them"""
OWED_SECONDS = 600.0
"""for so long a release is tried again, where nothing says when the lease ends"""


class QuorumReleasing(QuorumMembers):
    """The part of `QuorumStore` that releases a lease at one member."""

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        self._unfinished: OrderedDict[tuple[str, str], QuorumLease] = OrderedDict()
        """leases whose release is to be called again"""

    def finished(self, lease: QuorumLease, said: bool | None) -> bool | None:
        """What to answer to a release, after the members have.

        If nothing could be said, the next call counts the members that have released it until then.
        Of several calls at the same time one is told that the lease was released.
        """
        key = lease.name, lease.token
        if said is not None:
            self._unfinished.pop(key, None)
            return said and lease.claim_release()
        self._unfinished[key] = lease
        if len(self._unfinished) > MOST_UNFINISHED:
            self._unfinished.popitem(last=False)
        return None

    def release_at(
        self,
        lease: QuorumLease,
        member: Member,
        *,
        native: bool = False,
        begun: tuple[float, float | None] | None = None,
    ) -> bool:
        """Release a lease at one member; if it does not answer, later.

        ``begun``: what `QuorumLease.begin_release` returned, if it was called already.
        """
        store, number = member.store_of(lease.name), member.number
        begun, proof = begun or lease.begin_release(number), lease.proofs.get(number)
        try:
            if native:
                released = store.abandon(lease.name, lease.token) is not False
            else:
                released = store.release(lease.name, lease.token, proof)
        except StoreUnavailable:
            self.owe(lease, member)
            raise
        lease.proofs.pop(number, None)
        lease.end_release(number, begun)
        if not released and lease.unsure.pop(number, 0) is None:
            self.owe(lease, member)
        if released:
            lease.released.add(number)
        # It may have done so for another call.
        return number in lease.released

    def owe(self, lease: QuorumLease, member: Member) -> None:
        """Release a lease at a member as soon as it answers, before the lease's end."""
        member.owe(lease, self.at_members(lease.ttl or self.options.longest_ttl or OWED_SECONDS))
