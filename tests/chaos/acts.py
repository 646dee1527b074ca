"""What a story is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["Call", "Clear", "Look", "Seen", "Tenure"]


@dataclass(slots=True)
class Call:
    """A call that asks for a lock."""

    id: str
    process: str
    name: str
    asked: float
    wait: float | None
    ttl: float
    renew: bool
    over: float | None = None
    """when it returned or raised; None: never"""
    outcome: str = ""
    """"granted", "refused", "interrupted", "unavailable", "raised"; "": none"""
    token: str = ""
    fence: int = 0


@dataclass(slots=True)
class Tenure:
    """A lease, as its holder knew it."""

    call: Call
    token: str
    fence: int
    start: float
    """the call had returned"""
    end: float
    """the latest moment of which it is known that the holder could believe in the lease"""
    own_end: float
    """when, at the earliest, it is over by the holder's clock"""
    ttl: float
    asked: float
    """when the last grant or extension was asked for, which the lease cannot outlive by its ttl"""
    releasing: float | None = None
    released: float | None = None
    said: bool | None = None
    """what the release said"""
    lost: float | None = None
    given_up: float | None = None
    """an interruption, or the holder forgot it"""
    cleared: Clear | None = None
    """what may have ended it"""
    longest_ttl: float = 0.0
    """that it had, or was asked to have"""
    extended: float | None = None
    """when the last extension that said True was asked for"""
    announced: float = 0.0
    """until when waiters may take it to last: an extension may make it shorter, and tells nobody"""
    forgotten: bool = False
    """the server has forgotten all leases meanwhile"""
    cut_short: float | None = None
    """its release, or its block, was interrupted"""

    @property
    def name(self) -> str:
        return self.call.name


@dataclass(slots=True)
class Clear:
    """An operator's clear of one lease."""

    call: str
    name: str
    token: str
    fence: int
    """which the operator saw: a call that slept through its lease is granted another one, with
    the same token"""
    asked: float
    over: float
    said: bool | None
    """None: no answer came"""

    def may_have_ended(self, tenure: Tenure) -> bool:
        """Whether the lease may be the one that was cleared."""
        return (
            self.said is not False
            and self.token == tenure.token
            and (self.fence >= tenure.fence or self.over >= tenure.start)
        )


@dataclass(slots=True)
class Look:
    """A question about locks, and its answer."""

    call: str
    process: str
    verb: str
    name: str
    asked: float
    over: float
    token: str | None = None
    said: bool | None = None
    tokens: dict[str, str | None] = field(default_factory=dict)


@dataclass(slots=True)
class Seen:
    """What the conductor saw of a lock."""

    name: str
    since: float
    at: float
    token: str | None
    fence: int
    holder: str
    """the call of the lease that held it, "" if nobody did"""
    queue: Sequence[str]
    """the calls that waited, the next first"""
