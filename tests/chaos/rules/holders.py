"""Nobody holds a lock beside another one, and fences rise."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tests.chaos.acts import Tenure
from tests.chaos.rules import Violation
from tests.chaos.story import Story

__all__ = ["equal_fences", "falling_fences", "two_holders"]


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


def _lease(tenure: Tenure) -> str:
    return (
        f"the lease of {tenure.call.id} (token {tenure.token}, fence {tenure.fence}, "
        f"{tenure.start:.6f} to {tenure.end:.6f})"
    )
