"""Listing the locks that a majority holds."""

from __future__ import annotations

import builtins
import heapq
import math
from collections.abc import Iterator

from ..._values.lock_info import LockInfo
from ...exceptions import StoreUnavailable
from .answers import Answers
from .counting import Identity, identity, merged
from .members import QuorumMembers

__all__ = ["QuorumListing"]

LONGEST_PAGE = 1000
"""locks that a member is asked for at once, at most"""
PAGE_MARGIN = 20
"""locks beyond those that the caller wants: the members' lists differ a little"""
LIST_SECONDS = 10.0
"""how long a member may take for a page"""
ATTEMPTS = 3
"""how often a list is begun anew because a member did not answer any more"""

Page = list[LockInfo]
Found = list[LockInfo]


class _MemberGone(Exception):
    pass


class QuorumListing(QuorumMembers):
    """The part of `QuorumStore` that lists and counts.

    Each member lists its locks, the soonest to expire first. These lists are merged page by page,
    and a lock is listed when a majority has shown it; members that do not answer count for it.
    """

    @property
    def supports_listing(self) -> bool:  # type: ignore[override]
        """Whether each member lists its locks."""
        return all(member.store.supports_listing for member in self.members)

    def list(self, prefix: str = "", limit: int | None = None, offset: int = 0) -> Found:
        numbers = frozenset(member.number for member in self.members)
        for _ in range(ATTEMPTS):
            lists = _Lists(self, prefix, limit, offset, numbers)
            try:
                found: Found = []
                for at, info in enumerate(lists.locks()):
                    if limit is not None and at >= offset + limit:
                        break
                    if at >= offset:
                        found.append(info)
                return found
            except _MemberGone:
                numbers = lists.numbers
        raise StoreUnavailable(self.alias, "its members stopped to answer while they listed")

    def count(self, prefix: str = "") -> int:
        answers: Answers[int] = self.poll(
            lambda member: member.store.count(prefix), self.hopeless, longest=LIST_SECONDS
        )
        self.assert_answered(answers)
        # The greatest number that a majority has: those that do not answer count for each lock.
        counts = sorted(answers.given.values(), reverse=True)
        return counts[max(0, self.majority - answers.unknown - 1)]


class _Lists:
    """The lists of the members, page by page."""

    def __init__(
        self,
        quorum: QuorumListing,
        prefix: str,
        limit: int | None,
        offset: int,
        numbers: frozenset[int],
    ) -> None:
        self._quorum, self._prefix = quorum, prefix
        wanted = LONGEST_PAGE if limit is None else offset + limit + PAGE_MARGIN
        self._size = min(LONGEST_PAGE, wanted)
        self._pages: builtins.list[dict[int, Page]] = []
        self.numbers = numbers
        """of the members that have answered until now"""

    def locks(self) -> Iterator[LockInfo]:
        """All of them, in the order in which they cease to have a majority."""
        first = self._page(0)
        seen: dict[str, dict[Identity, Page]] = {}
        listed: set[str] = set()
        needed = max(1, self._quorum.majority - (self._quorum.size - len(first)))
        streams = [self._stream(number) for number in first]
        for info in heapq.merge(*streams, key=_left):
            if info.name in listed:
                continue
            holders = seen.setdefault(info.name, {})
            mine = holders.setdefault(identity(info), [])
            mine.append(info)
            if len(mine) >= needed:
                listed.add(info.name)
                del seen[info.name]
                # The others, which come later in the lists, are unknown yet.
                size = self._quorum.size
                yield merged(identity(info), mine, size, size, self._quorum.alias)

    def _stream(self, number: int) -> Iterator[LockInfo]:
        at = 0
        while True:
            page = self._page(at)[number]
            yield from page
            if len(page) < self._size:
                return
            at += 1

    def _page(self, at: int) -> dict[int, Page]:
        """The next page of all members. Raises `_MemberGone` if one of them fell silent."""
        if at < len(self._pages):
            return self._pages[at]
        quorum, size = self._quorum, self._size
        last = self._pages[-1] if self._pages else {}
        more = [
            member
            for member in quorum.members
            if member.number in self.numbers and (not at or len(last[member.number]) == size)
        ]
        answers: Answers[Page] = quorum.poll(
            lambda member: member.store.list(self._prefix, size, at * size),
            lambda answers: len(answers.failed) > quorum.size - quorum.majority,
            members=more,
            longest=LIST_SECONDS,
        )
        silent = {member.number for member in more} - set(answers.given)
        self.numbers -= silent
        if len(self.numbers) < quorum.majority:
            quorum.assert_answered(Answers({}, answers.failed, quorum.size))
        if at and silent:
            raise _MemberGone
        page = {number: answers.given.get(number, []) for number in self.numbers}
        self._pages.append(page)
        return page


def _left(info: LockInfo) -> float:
    return math.inf if info.ttl is None else info.ttl
