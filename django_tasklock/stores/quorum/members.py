"""The part of `QuorumStore` that calls its members: all at once, and for a limited time."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

from ..._values.arguments import LONGEST_TTL_SECONDS
from ...conf import StoreSettings
from ...exceptions import InvalidLockConfig, StoreUnavailable
from ..base import BaseStore
from ..lease_notes import NAME_PREFIX
from .answers import Answers, Enough
from .counting import majority_of
from .member import Member
from .options import OPTIONS, checked_options
from .polling import poll
from .quorum_lease import QuorumLease

__all__ = ["QuorumMembers"]

T = TypeVar("T")

SHORTEST_DRIFT_SECONDS = 0.002
"""a server counts in milliseconds, and rounds"""

_making = threading.local()


class QuorumMembers(BaseStore):
    """Options, members, and polls.

    Raises `InvalidLockConfig` for wrong options, and for members that cannot be: unknown aliases,
    stores that do not release in one step, the store itself, also by way of others.
    """

    known_options: ClassVar[frozenset[str]] = OPTIONS

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        self.options = checked_options(settings)
        self.members = tuple(
            Member(number, alias, self.options) for number, alias in enumerate(self.options.aliases)
        )
        self.size = len(self.members)
        self.majority = majority_of(self.size)
        self._leases: weakref.WeakValueDictionary[tuple[str, str], QuorumLease] = (
            weakref.WeakValueDictionary()
        )
        self._assert_possible()
        weakref.finalize(self, _end, self.members).atexit = False

    def close_idle(self) -> None:
        # The stores for locks are closed by their own aliases.
        for member in self.members:
            member.close_notes()

    def _assert_possible(self) -> None:
        """Make the members, which asks no server, and look at them."""
        making: list[str] = vars(_making).setdefault("aliases", [])
        if self.alias in making:
            circle = " -> ".join([*making[making.index(self.alias) :], self.alias])
            raise InvalidLockConfig(
                f"the lock store {self.alias!r} is a member of itself: STORES leads from {circle}"
            )
        making.append(self.alias)
        try:
            for member in self.members:
                store = member.store
                if not store.atomic_release:
                    raise InvalidLockConfig(
                        f"the lock store {self.alias!r} cannot have the member {member.alias!r}: "
                        f"a {type(store).__name__} does not release in one step, so it may remove "
                        "the vote for another lease"
                    )
                # Its KEY_PREFIX is longer, and may be too long.
                _ = member.notes
        finally:
            making.remove(self.alias)

    def poll(
        self,
        ask: Callable[[Member], T],
        enough: Enough[T],
        *,
        members: Sequence[Member] | None = None,
        not_asked: Callable[[Member], None] | None = None,
        native: bool = False,
        wait: bool = True,
        longest: float | None = None,
    ) -> Answers[T]:
        """Ask the members; see `poll`. Raises what they raise, but not `StoreUnavailable`."""
        return poll(
            self.members if members is None else members,
            ask,
            enough,
            self.options.member_timeout,
            longest=longest,
            at_least=self.majority,
            not_asked=not_asked,
            native=native,
            wait=wait,
        )

    def unavailable(self, answers: Answers[Any], waited: int = 0) -> StoreUnavailable:
        """The error when fewer than a majority have answered.

        Args:
            answers: what there is.
            waited: how many members do not count, because they lost their data.
        """
        words = (
            f"{len(answers.given)} of its {self.size} members answered in time, and "
            f"{self.majority} must"
        )
        if waited:
            words += (
                f"; {waited} of them do not count before they have kept their data for "
                f"{self.options.longest_ttl:g} s (LONGEST_TTL)"
            )
        reasons = [
            f"{member.alias}: {answers.failed.get(member.number, 'no answer')}"
            for member in self.members
            if member.number not in answers.given
        ]
        return StoreUnavailable(self.alias, "; ".join([words, *reasons]))

    def assert_answered(self, answers: Answers[Any]) -> None:
        """Raise `StoreUnavailable` unless a majority has answered."""
        if len(answers.given) < self.majority:
            raise self.unavailable(answers)

    def hopeless(self, answers: Answers[Any]) -> bool:
        """Whether so many members have failed that no majority can answer."""
        return len(answers.failed) > self.size - self.majority

    def at_members(self, ttl: float) -> float:
        """How long a lease of ``ttl`` lasts at the members: their clocks may be too fast."""
        longer = ttl + ttl * self.options.drift + SHORTEST_DRIFT_SECONDS
        return min(longer, max(ttl, LONGEST_TTL_SECONDS))

    @property
    def longest_ttl(self) -> float | None:
        """`Rewriting.longest_ttl`: the option LONGEST_TTL."""
        return self.options.longest_ttl

    def assert_ttl(self, name: str, ttl: float) -> None:
        """Raise `ValueError` for a lease that lasts longer than a member waits after a restart."""
        longest = self.longest_ttl
        if longest is not None and ttl > longest and not name.startswith(NAME_PREFIX):
            raise ValueError(
                f"the lock store {self.alias!r} grants leases of {longest:g} s at most "
                f"(LONGEST_TTL), not of {ttl:g} s"
            )

    def lease_of(self, name: str, token: str) -> QuorumLease:
        """What this process knows of a lease; a new one if that is nothing."""
        lease = self._leases.get((name, token))
        if lease is None:
            lease = self._leases.setdefault((name, token), QuorumLease(name, token))
        return lease


def _end(members: Sequence[Member]) -> None:
    for member in members:
        member.end()
