"""Leases that a majority of several stores has granted (Redlock)."""

from __future__ import annotations

import builtins
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from ..._values.lock_info import LockInfo
from ..base import Finding
from .answers import Answers, never
from .counting import fence_votes, leading, merged, verdict
from .findings import findings
from .listing import QuorumListing
from .member import Member
from .quorum_lease import QuorumLease
from .rewriting import QuorumRewriting

__all__ = ["QuorumStore"]


class QuorumStore(QuorumListing, QuorumRewriting):
    """A lock is held if a majority of the members, which are stores of other aliases, holds it.

    All members are asked at the same time. Of five, any two may be dead, cut off, paused or
    emptied; if a third is, no lock is granted, and calls raise `StoreUnavailable` within seconds.

    What it promises depends on the clocks of the members and of the hosts: docs/howto/quorum.md.
    Waiters poll, and get the lock in no order.
    """

    atomic_release = True

    @property
    def supports_fence(self) -> bool:  # type: ignore[override]
        """Whether each member has fences that can be raised."""
        stores = [member.store for member in self.members]
        return all(store.supports_fence and store.raises_fences for store in stores)

    @property
    def raises_fences(self) -> bool:  # type: ignore[override]
        """As a member of another quorum it does not."""
        return False

    def release(self, name: str, token: str, proof: Any = None) -> bool:
        lease = proof if isinstance(proof, QuorumLease) else self.lease_of(name, token)
        lease.over = True

        def enough(answers: Answers[bool]) -> bool:
            return self.hopeless(answers) or self._said(answers) is not None

        answers = self.poll(
            partial(self.release_at, lease),
            enough,
            not_asked=partial(self.owe, lease),
        )
        said = self.finished(lease, self._said(answers))
        if said is None:
            raise self.unavailable(answers)
        return said

    def clear(self, name: str, token: str | None = None) -> bool:
        return self._cleared(lambda member: member.store_of(name).clear(name, token))

    def clear_foreign(self, name: str, digest: str) -> bool:
        return self._cleared(lambda member: member.store_of(name).clear_foreign(name, digest))

    def _cleared(self, ask: Callable[[Member], bool]) -> bool:
        """Remove what holds a lock at all members that answer."""
        answers = self.poll(ask, never)
        self.assert_answered(answers)
        cleared = list(answers.given.values()).count(True)
        return cleared > 0 and cleared + answers.unknown >= self.majority

    def get(self, name: str) -> LockInfo | None:
        def enough(answers: Answers[LockInfo | None]) -> bool:
            if self.hopeless(answers):
                return True
            held = answers.given.values()
            first = leading(held)
            most = 0 if first is None else first[1]
            # If they do not agree on the fence, the others are waited for.
            agreed = fence_votes(held) >= self.majority or not self.supports_fence
            return (most >= self.majority and agreed) or most + answers.unknown < self.majority

        answers = self.poll(lambda member: member.store_of(name).get(name), enough)
        self.assert_answered(answers)
        held = answers.given.values()
        first = leading(held)
        if first is None or first[1] + answers.unknown < self.majority:
            return None
        return merged(first[0], held, answers.unknown, self.size, self.alias)

    def held(self, names: Sequence[str]) -> set[str]:
        if not names:
            return set()
        answers = self.poll(
            lambda member: member.store.held(names), self.hopeless, longest=LONG_SECONDS
        )
        self.assert_answered(answers)
        found = list(answers.given.values())
        least = self.majority - answers.unknown
        return {name for name in names if sum(name in each for each in found) >= max(1, least)}

    def next_fence(self) -> int | None:
        if not self.supports_fence:
            return None
        answers = self.poll(
            lambda member: member.store.next_fence(),
            lambda answers: len(answers.given) >= self.majority or self.hopeless(answers),
        )
        self.assert_answered(answers)
        now = time.time_ns() // 1000
        return max(now, self._last_floor + 1, *(each or 0 for each in answers.given.values()))

    def get_many(self, names: Sequence[str]) -> builtins.list[LockInfo | None]:
        if not names:
            return []  # Nothing to ask the members for.
        found = {info.name: info for info in self._all_of(lambda x: x.store.get_many(names))}
        return [found.get(name) for name in names]

    def scan(self, prefix: str = "") -> Iterator[LockInfo]:
        yield from self._all_of(lambda member: list(member.store.scan(prefix)))

    def _all_of(self, ask: Callable[[Member], Sequence[LockInfo | None]]) -> Iterator[LockInfo]:
        """Those locks, of what each member answers, that a majority has."""
        answers = self.poll(ask, self.hopeless, longest=LONG_SECONDS)
        self.assert_answered(answers)
        by_name: dict[str, builtins.list[LockInfo]] = {}
        for infos in answers.given.values():
            for info in infos:
                if info is not None:
                    by_name.setdefault(info.name, []).append(info)
        for held in by_name.values():
            first = leading(held)
            if first is not None and first[1] + answers.unknown >= self.majority:
                yield merged(first[0], held, answers.unknown, self.size, self.alias)

    def check(self) -> Iterable[Finding]:
        answers = self.poll(
            lambda member: (list(member.store.check()), member.store.memory()),
            never,
            longest=LONG_SECONDS,
        )
        yield from findings(self.members, self.options, answers)
        self.assert_answered(answers)

    def _said(self, answers: Answers[bool]) -> bool | None:
        said = list(answers.given.values())
        return verdict(said.count(True), said.count(False), self.size)


LONG_SECONDS = 30.0
"""how long a majority may take to read all of their keys, or to be looked at"""
