"""A lease of a quorum goes on without its process, or in another one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ...exceptions import StoreUnavailable
from ..base import Grant
from .answers import Answers, never
from .member import Member
from .quorum_lease import QuorumLease
from .upkeep import QuorumUpkeep

__all__ = ["QuorumRewriting"]


class QuorumRewriting(QuorumUpkeep):
    """The part of `QuorumStore` that replaces the owner of a lease.

    The members that have rewritten the lease must be a majority. If they are fewer, and nothing is
    known of others, that is a `StoreUnavailable`: at no member is the lease given back then, and
    it excludes until it ends, where it was rewritten after the new ttl, elsewhere as before.

    A member may have missed that a lease was detached: it was cut off, or is slow. It has the lease
    without the mark then, and lets itself be rewritten, because the adopter's record says how often
    the lease was adopted (`Rewriting.rewrite`). At each member one adopter replaces what was there
    before, whether or not that had the mark, and no late `detach` replaces the adopter. Nobody is
    an adopter without a majority, so there is never more than one.
    """

    @property
    def supports_rewrite(self) -> bool:  # type: ignore[override]
        """Whether each member can replace the owner of a lease."""
        return all(member.store.supports_rewrite for member in self.members)

    def rewrite(
        self,
        name: str,
        token: str,
        ttl: float,
        owner: Mapping[str, Any],
        mark: str | None = None,
        proof: Any = None,
    ) -> Grant | None:
        self.assert_ttl(name, ttl)
        lease = proof if isinstance(proof, QuorumLease) else self.lease_of(name, token)
        at_members = self.at_members(ttl)

        def ask(member: Member) -> Grant | None:
            # The proof of another caller of this process, or that of before a late answer.
            own = lease.proofs.get(member.number) if mark is None else None
            store = member.store_of(name)
            answer = store.rewrite(name, token, at_members, owner, mark, own)
            if answer is not None:
                lease.proofs[member.number] = answer.proof
            return answer

        def said(answers: Answers[Grant | None]) -> bool | None:
            return self._verdict(answer is not None for answer in answers.given.values())

        def enough(answers: Answers[Grant | None]) -> bool:
            return self.hopeless(answers) or said(answers) is not None

        if mark is not None and not self._is_first(name, token, ask):
            return None
        answers = self.poll(ask, enough)
        verdict = said(answers)
        if verdict is None:
            raise self.unavailable(answers)
        if not verdict:
            return None
        lease.ttl, lease.owner, lease.over = ttl, owner, False
        lease.fence = lease.fence or self._fence(answers)
        self._heal(lease, [n for n, answer in answers.given.items() if answer is None])
        return Grant(lease.fence, lease)

    def _is_first(self, name: str, token: str, ask: Any) -> bool:
        """Whether nobody else has replaced the mark that is expected.

        The members are asked one after the other, by everybody in the same order, until one has
        the lease. All at the same time, several callers could get some members each, and none of
        them a majority.
        """

        def first(member: Member) -> bool | None:
            if ask(member) is not None:
                return True
            held = member.store_of(name).get(name)
            if held is None or held.token != token:
                return None
            # It may have got the lease only now, from the process that has detached it.
            return ask(member) is not None

        without = 0
        for member in self.members:
            said = self.poll(first, never, members=[member]).given.get(member.number, "")
            if said in (True, False):
                return bool(said)
            without += said is None
        if without >= self.majority:
            return False
        raise StoreUnavailable(self.alias, "too few of its members answered in time")

    def _fence(self, answers: Answers[Grant | None]) -> int | None:
        """What most of the members say."""
        fences = Counter(
            answer.fence for answer in answers.given.values() if answer is not None and answer.fence
        )
        if not self.supports_fence or not fences:
            return None
        return max(fences, key=lambda fence: (fences[fence], fence))
