"""What a process keeps of a lease that it got from a quorum (`Grant.proof`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..._values import clock

__all__ = ["QuorumLease"]

DOUBT_SECONDS = 15.0
"""for so long after a release that a member did not answer, it may still carry that out"""


class QuorumLease:
    """A lease at the members.

    Threads of the members and the holder use it at the same time: each field is one that is changed
    in one step.

    A waiter acquires with one token again and again. So a release that belongs to an earlier call
    must not end what a later one was granted: a member does not count while a release is on its way
    to it, and a release that was not sent yet is dropped once the lease is wanted again.
    """

    __slots__ = (
        "__weakref__",
        "_claims",
        "fence",
        "name",
        "over",
        "owed",
        "owner",
        "proofs",
        "question",
        "released",
        "releasing",
        "token",
        "ttl",
        "unsure",
    )

    def __init__(self, name: str, token: str) -> None:
        self.name = name
        self.token = token
        self.ttl = 0.0
        """seconds, of the last call that acquired or extended it"""
        self.owner: Mapping[str, Any] | None = None
        """None in a process that did not acquire it"""
        self.proofs: dict[int, Any] = {}
        """the proofs of the members that have granted it, by their numbers"""
        self.unsure: dict[int, None] = {}
        """members that were asked for it and did not answer: they may have it"""
        self.owed: dict[int, float] = {}
        """when it ends at the members that are to release it later, on `clock.now`"""
        self.releasing: dict[int, float] = {}
        """until when, on `clock.now`, a release may still be on its way to a member"""
        self.released: set[int] = set()
        """members that have released it"""
        self.question = 0
        """how often the members were asked for it"""
        self._claims: list[None] = [None]
        """holds one item until somebody was told that it is released"""
        self.fence: int | None = None
        self.over = False
        """whether nobody wants it: a member that grants it only now is asked to release it"""

    def begin(self, ttl: float, owner: Mapping[str, Any]) -> None:
        """It is acquired, perhaps once more with the same token."""
        self.released.clear()
        self._claims[:] = (None,)
        self.ttl, self.owner, self.over = ttl, owner, False

    def claim_release(self) -> bool:
        """True for the one caller that is told that the lease was released."""
        try:
            self._claims.pop()
        except IndexError:
            return False
        return True

    def is_over(self) -> bool:
        """`over`, which another thread may have changed since it was read last."""
        return self.over

    def begin_release(self, number: int) -> tuple[float, float | None]:
        """Note that a release is on its way to a member. Returns what `end_release` needs."""
        before, until = self.releasing.get(number), clock.now() + DOUBT_SECONDS
        self.releasing[number] = until
        return until, before

    def end_release(self, number: int, begun: tuple[float, float | None]) -> None:
        """Note that a member has answered it, or that it was not sent.

        Another one, which the member has not answered, may still be on its way.
        """
        until, before = begun
        if self.releasing.get(number) != until:
            return
        if before is None:
            self.releasing.pop(number, None)
        else:
            self.releasing[number] = before

    def is_releasing(self, number: int) -> bool:
        """Whether a release may be on its way to a member."""
        return self.releasing.get(number, 0.0) > clock.now()
