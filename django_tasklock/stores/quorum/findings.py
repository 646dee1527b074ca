"""What an operator should know of a quorum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..base import Finding, Memory
from .answers import Answers
from .member import Member
from .options import QuorumOptions

__all__ = ["findings"]


def findings(
    members: Sequence[Member],
    options: QuorumOptions,
    answers: Answers[tuple[list[Finding], Memory | None]],
) -> Iterator[Finding]:
    """Findings about the members, and what they found themselves."""
    oldest = max(
        (memory.unbroken or 0.0 for _, memory in answers.given.values() if memory), default=0.0
    )
    for member in members:
        if member.number not in answers.given:
            reason = answers.failed.get(member.number, "no answer")
            yield Finding(
                "member_down",
                True,
                f"its member {member.alias!r} does not answer: {reason}",
                "Locks are granted as long as a majority of the members answers.",
            )
            continue
        found, memory = answers.given[member.number]
        for each in found:
            message = f"its member {member.alias!r}: {each.message}"
            yield Finding(each.id, each.serious, message, each.hint)
        if not member.votes(memory, oldest, options.longest_ttl):
            yield Finding(
                "member_waits",
                True,
                f"its member {member.alias!r} has lost its data, and does not count before all "
                f"leases that it may have had are over, after {options.longest_ttl:g} s",
                "Wait. If its restarts lose no leases, name it in the option PERSISTENT.",
            )
    if options.longest_ttl is None:
        yield Finding(
            "restarts",
            True,
            "a member that has lost its data counts at once (LONGEST_TTL is None): a lock that is "
            "held may be granted again",
            "Set LONGEST_TTL to the longest ttl of a lease, in seconds.",
        )
