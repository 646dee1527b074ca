"""What must not happen: each rule is a function of a story."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tests.nightly.chaos import LATE_SECONDS
from tests.nightly.chaos.story import Call, Story

__all__ = ["Violation", "violations"]

ROUNDING_SECONDS = 0.5
"""before its end, in which a lease may be lost"""


class Violation(NamedTuple):
    """Something that must not have happened, and the stretch of the history in which it shows."""

    rule: str
    text: str
    since: float
    at: float
    calls: Sequence[Call] = ()
    """those that had a part in it"""


def two_holders(story: Story) -> Iterator[Violation]:
    """Two leases of one lock, in both of which their holders could believe at once."""
    for leases in story.leases.values():
        current: list[Call] = []
        for lease in leases:
            current = [other for other in current if other.end > lease.start]
            if lease.end <= lease.start:
                continue
            for other in current:
                text = f"{other} and {lease} were held at once from {lease.start:.6f}"
                until = min(other.end, lease.end)
                yield Violation("two holders", text, other.start, until, (other, lease))
            current.append(lease)


def fences(story: Story) -> Iterator[Violation]:
    """A grant that was asked for after another one had returned, and has no higher fence; or two
    with one fence."""
    for leases in story.leases.values():
        highest: Call | None = None
        returned, by_fence = 0, dict[int, Call]()
        for lease in sorted(leases, key=lambda x: x.asked):
            while leases[returned].start < lease.asked:
                if highest is None or leases[returned].fence > highest.fence:
                    highest = leases[returned]
                returned += 1
            other = by_fence.setdefault(lease.fence, lease)
            if highest is not None and highest.fence >= lease.fence:
                text = f"{lease} was asked for at {lease.asked:.6f}, after {highest} was granted"
                both = (highest, lease)
                yield Violation("falling fences", text, highest.start, lease.start, both)
            elif other is not lease:
                text = f"{other} and {lease}"
                yield Violation("equal fences", text, other.start, lease.start, (other, lease))


def lost(story: Story) -> Iterator[Violation]:
    """A lease that its holder was told is lost, before its end, though nobody had cleared it and
    the server had kept it."""
    for call in story.calls.values():
        if call.lost is None or call.own_end - call.lost <= ROUNDING_SECONDS:
            continue
        if all(x.since > call.lost or x.until < call.asked for x in story.forgotten(call)):
            yield Violation("lost", str(call), call.start, call.lost, (call,))


def late(story: Story) -> Iterator[Violation]:
    """A call that returned, or did not, long after its own deadline; with ``wait=None``, one that
    still waited when the run was over."""
    for call in story.calls.values():
        if call.over is None and call.process in story.killed:
            continue
        over = story.end if call.over is None else call.over
        if call.wait is None:
            if call.over is None:
                text = f"{call.id} waits for {call.name} since {call.asked:.6f}"
                yield Violation("never served", text, call.asked, over, (call,))
            continue
        latest = call.asked + call.wait + LATE_SECONDS
        faults = story.disturbed(call.process, call.asked, over) if over > latest else ()
        if over > latest + sum(x.felt_until - x.since for x in faults):
            how = "never returned" if call.over is None else f"returned at {over:.6f}"
            text = f"{call.id} asked at {call.asked:.6f} with wait={call.wait:.3f} and {how}"
            yield Violation("late", text, call.asked, over, (call,))


def said(story: Story) -> Iterator[Violation]:
    """Something is left in Redis; an exception that no verb may raise; a player that died."""
    rules = {"left": "left in Redis", "raised": "player raised", "died": "player died"}
    for event in story.events:
        if event.kind in rules:
            yield Violation(rules[event.kind], str(event), event.at, event.at)


def violations(story: Story) -> Iterator[Violation]:
    """All violations, rule by rule."""
    for rule in (two_holders, fences, lost, late, said):
        yield from rule(story)
