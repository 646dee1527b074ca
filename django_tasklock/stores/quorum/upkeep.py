"""Extending leases, and giving them again to members that have lost them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ...exceptions import StoreUnavailable
from ..base import Extension, Grant
from .answers import Answers, never
from .counting import verdict
from .election import QuorumElection
from .member import Member
from .quorum_lease import QuorumLease

__all__ = ["QuorumUpkeep"]


class QuorumUpkeep(QuorumElection):
    """The part of `QuorumStore` that extends leases.

    A lease is extended if a majority extends it, and lost if so many say that they do not have it
    that the rest is no majority. Otherwise nothing is known.

    After a majority has extended it, the lease is acquired at the members that do not have it: they
    were restarted, emptied or cut off. So a lease outlives the loss of all members, if a majority
    has it at each renewal. That is safe. A member grants it only if nobody else holds the lock
    there, and the lease has a majority without it.
    """

    def extend(self, name: str, token: str, ttl: float, proof: Any = None) -> bool:
        self.assert_ttl(name, ttl)
        lease = self._lease(name, token, ttl, proof)

        def ask(member: Member) -> bool:
            own = lease.proofs.get(member.number)
            return member.store_of(name).extend(name, token, self.at_members(ttl), own)

        def enough(answers: Answers[bool]) -> bool:
            return self.hopeless(answers) or self._verdict(answers.given.values()) is not None

        answers = self.poll(ask, enough)
        said = self._verdict(answers.given.values())
        if said is None:
            raise self.unavailable(answers)
        without = [n for n, held in answers.given.items() if not held]
        if said:
            self._heal(lease, without)
        else:
            self._lose(lease, without)
        return said

    def extend_many(self, batch: Sequence[Extension]) -> Sequence[bool | None]:
        if not batch:
            return []
        leases = [self._lease(each.name, each.token, each.ttl, each.proof) for each in batch]

        def ask(member: Member) -> Sequence[bool | None]:
            return member.store.extend_many(
                [
                    Extension(
                        each.name,
                        each.token,
                        self.at_members(each.ttl),
                        lease.proofs.get(member.number),
                    )
                    for each, lease in zip(batch, leases, strict=True)
                ]
            )

        def verdicts(answers: Answers[Sequence[bool | None]]) -> list[bool | None]:
            if not answers.given:
                return [None] * len(batch)
            return [self._verdict(said) for said in zip(*answers.given.values(), strict=True)]

        def enough(answers: Answers[Sequence[bool | None]]) -> bool:
            return self.hopeless(answers) or None not in verdicts(answers)

        answers = self.poll(ask, enough, native=True)
        self.assert_answered(answers)
        found = verdicts(answers)
        for at, (lease, said) in enumerate(zip(leases, found, strict=True)):
            without = [n for n, held in answers.given.items() if held[at] is False]
            if said:
                self._heal(lease, without)
            elif said is False:
                self._lose(lease, without)
        return found

    def abandon(self, name: str, token: str) -> bool | None:
        lease = self.lease_of(name, token)
        lease.over = True
        answers = self.poll(
            partial(self.release_at, lease, native=True),
            never,
            not_asked=partial(self.owe, lease),
            native=True,
        )
        said = self.finished(lease, self._verdict(answers.given.values()))
        self.assert_answered(answers)
        return said

    def _lease(self, name: str, token: str, ttl: float, proof: Any) -> QuorumLease:
        lease = proof if isinstance(proof, QuorumLease) else self.lease_of(name, token)
        lease.ttl = ttl
        return lease

    def _verdict(self, said: Any) -> bool | None:
        answers = list(said)
        return verdict(answers.count(True), answers.count(False), self.size)

    def _heal(self, lease: QuorumLease, without: Sequence[int]) -> None:
        """Acquire the lease at members that do not have it, without waiting for that."""
        if lease.owner is None or lease.is_over():
            return  # Another process has acquired it, and knows the owner.
        for number in without:
            member = self.members[number]
            if not member.callers.stuck():
                member.callers.post(partial(self._acquire_again, lease, member))

    def _lose(self, lease: QuorumLease, without: Sequence[int]) -> None:
        """Release what a minority still has of a lease that is lost, or grants only later."""
        lease.over = True
        for member in self.members:
            if member.number not in without or member.number in lease.unsure:
                self.owe(lease, member)

    def _acquire_again(self, lease: QuorumLease, member: Member) -> None:
        if lease.is_over() or lease.owner is None or lease.is_releasing(member.number):
            return
        store, ttl = member.store_of(lease.name), self.at_members(lease.ttl)
        try:
            answer = store.acquire_above(
                lease.name, lease.token, ttl, lease.owner, lease.fence or 1
            )
            if isinstance(answer, Grant):
                self._granted(lease, answer, member)
        except StoreUnavailable:
            self._unsure(lease, member)
