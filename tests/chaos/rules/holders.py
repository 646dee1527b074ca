"""Nobody holds a lock beside another one, and fences rise."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tests.chaos.acts import Tenure
from tests.chaos.bounds import DEAD_SECONDS
from tests.chaos.rules import Violation
from tests.chaos.story import Story

__all__ = ["equal_fences", "falling_fences", "given_to_the_dead", "two_holders"]


def two_holders(story: Story) -> Iterator[Violation]:
    """Two leases of one lock, in both of which their holders could believe at once."""
    for name, tenures in story.by_name().items():
        current: list[Tenure] = []
        for tenure in tenures:
            current = [other for other in current if other.end > tenure.start]
            story.checked["two holders"] += 1
            if tenure.end <= tenure.start:
                continue
            for other in current:
                until = min(other.end, tenure.end)
                yield Violation(
                    "two holders",
                    f"{_lease(other)} and {_lease(tenure)} held {name} at once, for "
                    f"{until - tenure.start:.6f} s from {tenure.start:.6f}",
                    other.start, until, name, (other.call.id, tenure.call.id),
                )  # fmt: skip
            current.append(tenure)


def falling_fences(story: Story) -> Iterator[Violation]:
    """A grant that was asked for after another one had returned, and has no higher fence."""
    for name, tenures in story.by_name().items():
        highest: Tenure | None = None
        ended = iter(tenures)  # by the moment at which each call had returned
        following = next(ended, None)
        for tenure in sorted(tenures, key=lambda x: x.call.asked):
            while following is not None and following.start < tenure.call.asked:
                if highest is None or following.fence > highest.fence:
                    highest = following
                following = next(ended, None)
            if highest is None:
                continue
            story.checked["falling fences"] += 1
            if highest.fence >= tenure.fence:
                yield Violation(
                    "falling fences",
                    f"{_lease(tenure)} of {name} was asked for at {tenure.call.asked:.6f}, after "
                    f"{_lease(highest)} had been granted at {highest.start:.6f}",
                    highest.start, tenure.start, name, (highest.call.id, tenure.call.id),
                )  # fmt: skip


def equal_fences(story: Story) -> Iterator[Violation]:
    """Two leases of a lock with one fence."""
    for name, tenures in story.by_name().items():
        for one, other in pairwise(sorted(tenures, key=lambda x: x.fence)):
            if one.fence == other.fence:
                yield Violation(
                    "equal fences", f"{_lease(one)} and {_lease(other)} of {name}",
                    one.start, other.start, name, (one.call.id, other.call.id),
                )  # fmt: skip


def given_to_the_dead(story: Story) -> Iterator[Violation]:
    """A waiter whose process had been dead for a while, and that is seen to hold the lock since."""
    for name, looks in story.seen.items():
        for before, look in pairwise(looks):
            process = look.holder.partition("/")[0]
            dead = story.disturbances.killed.get(process)
            if dead is None or look.since < dead or look.token == before.token:
                continue
            story.checked["given to the dead"] += 1
            known = dead + DEAD_SECONDS
            # While the server cannot be reached it cannot learn of a death either.
            if before.since > known and not story.disturbances.unreachable("", dead, look.at):
                yield Violation(
                    "given to the dead",
                    f"{look.holder} was seen to hold {name} at {look.at:.6f}, and not yet at "
                    f"{before.at:.6f}; its process was dead by {dead:.6f}",
                    dead, look.at, name, (look.holder,),
                )  # fmt: skip


def _lease(tenure: Tenure) -> str:
    return (
        f"the lease of {tenure.call.id} (token {tenure.token}, fence {tenure.fence}, "
        f"{tenure.start:.6f} to {tenure.end:.6f})"
    )
