"""Acquiring a lock: the members vote."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from ..._values.tokens import chance
from ...exceptions import StoreUnavailable
from ..base import Grant, Refusal
from .answers import Answers, never
from .counting import leading, merged
from .member import Member
from .quorum_lease import QuorumLease
from .releasing import QuorumReleasing

__all__ = ["QuorumElection"]

Votes = Answers[Any]
"""of `Grant` and `Refusal`"""
ATTEMPTS = 12
"""how often a caller asks when the members are split between callers of the same moment"""
LOOKS = 100
"""how often a member's thread looks whether the release of an earlier call is over"""
LEADER_PAUSE_SECONDS = 0.004
"""how long the leading one of them waits for the others to give way, on average"""
PAUSE_SECONDS = 0.02
"""how long the others wait for the leading one to be granted the lock, on average"""


class QuorumElection(QuorumReleasing):
    """The part of `QuorumStore` that acquires.

    A lease is granted if a majority of the members grants it, with the same token. If callers of
    the same moment have split the members among them, all but the one with the most members give
    theirs back, and each asks again after a random pause.
    """

    _last_floor = 0

    def acquire(
        self, name: str, token: str, ttl: float, owner: Mapping[str, Any]
    ) -> Grant | Refusal:
        self.assert_ttl(name, ttl)
        lease = self.lease_of(name, token)
        lease.begin(ttl, owner)
        try:
            answer = self._elect(lease)
        except BaseException as error:
            lease.over = True
            if isinstance(error, StoreUnavailable):
                self._give_back(lease)
            # After an interruption the caller abandons the token.
            raise
        if isinstance(answer, Refusal):
            lease.over = True
            self._give_back(lease)
        return answer

    def _elect(self, lease: QuorumLease) -> Grant | Refusal:
        attempt = 0
        while True:
            attempt += 1
            lease.question += 1
            floor = max(time.time_ns() // 1000, self._last_floor + 1)
            votes = self.poll(partial(self._ask, lease, floor), self._decided)
            grants = self._counting(votes)
            if len(grants) >= self.majority:
                return Grant(self._settle(lease, grants), lease)
            held = [vote.holder for vote in votes.given.values() if isinstance(vote, Refusal)]
            first = leading(held)
            if first is None or len(grants) + len(held) < self.majority:
                raise self.unavailable(votes, len(votes.given) - len(grants) - len(held))
            who, most = first
            if most >= self.majority or attempt == ATTEMPTS:
                return Refusal(
                    merged(who, held, self.size - len(votes.given), self.size, self.alias)
                )
            if (-len(grants), lease.token) < (-most, who[0] or ""):
                time.sleep(LEADER_PAUSE_SECONDS * chance.uniform(0.5, 1.5))
            else:
                self._give_back(lease, wait=True)
                time.sleep(PAUSE_SECONDS * chance.uniform(0.2, 1.8))

    def _ask(self, lease: QuorumLease, floor: int, member: Member) -> Grant | Refusal:
        """Ask one member, in one of its threads."""
        number, question = member.number, lease.question
        for _ in range(LOOKS):
            if not lease.is_releasing(number):
                break
            time.sleep(self.options.member_timeout / LOOKS)
        if lease.is_over() or lease.is_releasing(number):
            raise StoreUnavailable(member.alias, "a release is on its way")
        assert lease.owner is not None
        store, ttl = member.store_of(lease.name), self.at_members(lease.ttl)
        try:
            answer = store.acquire_above(lease.name, lease.token, ttl, lease.owner, floor)
        except StoreUnavailable:
            self._unsure(lease, member)
            raise
        if isinstance(answer, Grant):
            self._granted(lease, answer, member)
        elif lease.question == question:
            # An earlier refusal may be read only now, and the member have granted it since.
            lease.proofs.pop(number, None)
        return answer

    def _granted(self, lease: QuorumLease, grant: Grant, member: Member) -> None:
        """Keep a member's grant, with the fence that was agreed on; release it if it came late."""
        number = member.number
        lease.proofs[number] = grant.proof
        if lease.is_over():
            # Noted before the last look: a later question passes over a member that releases.
            begun = lease.begin_release(number)
            if lease.is_over():
                self.release_at(lease, member, begun=begun)
            else:
                lease.end_release(number, begun)
        elif lease.fence is not None and (grant.fence or 0) < lease.fence:
            self._raise(lease, lease.fence, member)

    def _unsure(self, lease: QuorumLease, member: Member) -> None:
        """Note that nobody knows whether a member has granted the lease."""
        lease.unsure[member.number] = None
        if lease.is_over():
            self.owe(lease, member)

    def _counting(self, votes: Votes) -> dict[int, Grant]:
        """The grants of members that count."""
        longest = self.options.longest_ttl
        grants = {n: vote for n, vote in votes.given.items() if isinstance(vote, Grant)}
        unbroken = [grant.memory.unbroken or 0.0 for grant in grants.values() if grant.memory]
        oldest = max(unbroken, default=0.0)
        return {
            number: grant
            for number, grant in grants.items()
            if self.members[number].votes(grant.memory, oldest, longest)
        }

    def _decided(self, votes: Votes) -> bool:
        """Whether the answers are enough: more cannot change what they come to."""
        if self.hopeless(votes) or len(self._counting(votes)) >= self.majority:
            return True
        refused = [vote.holder for vote in votes.given.values() if isinstance(vote, Refusal)]
        first = leading(refused)
        return first is not None and first[1] >= self.majority

    def _settle(self, lease: QuorumLease, grants: dict[int, Grant]) -> int | None:
        """The lease's fence: the greatest that was granted.

        The next majority has a member in common with every majority of today. So once a majority
        has this fence, each later lease gets a greater one, however much the clocks of the members
        differ. Mostly each member has granted the number that was proposed, and no second call is
        needed.
        """
        known = {n: grant.fence for n, grant in grants.items() if grant.fence is not None}
        if not self.supports_fence or len(known) < self.majority:
            return None
        fence = max(known.values())
        low = [self.members[number] for number in known if known[number] < fence]
        done = len(known) - len(low)
        if done < self.majority:
            answers = self.poll(
                partial(self._raise, lease, fence),
                lambda answers: done + sum(answers.given.values()) >= self.majority,
                members=low,
            )
            if done + sum(answers.given.values()) < self.majority:
                raise StoreUnavailable(
                    self.alias, f"a majority of its members has not taken the fence {fence}"
                )
        lease.fence = fence
        self._last_floor = max(self._last_floor, fence)
        return fence

    def _raise(self, lease: QuorumLease, fence: int, member: Member) -> bool:
        proof = lease.proofs.get(member.number)
        return member.store_of(lease.name).raise_fence(lease.name, lease.token, fence, proof)

    def _give_back(self, lease: QuorumLease, *, wait: bool = False) -> None:
        """Release the lease at the members that have granted it, and later at those that have not
        answered."""
        if lease.over:
            for number in list(lease.unsure):
                lease.unsure.pop(number, None)
                self.owe(lease, self.members[number])
        granted = [self.members[number] for number in list(lease.proofs)]
        if not granted:
            return
        begun = {member: lease.begin_release(member.number) for member in granted}

        def not_asked(member: Member) -> None:
            lease.end_release(member.number, begun[member])
            self.owe(lease, member)

        def release(member: Member) -> bool:
            return self.release_at(lease, member, begun=begun[member])

        self.poll(
            release,
            never,
            members=granted,
            not_asked=not_asked,
            wait=wait,
        )
