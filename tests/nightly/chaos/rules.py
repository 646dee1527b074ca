"""What must not happen: each rule is a function of a story."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tests.nightly.chaos import LATE_SECONDS
from tests.nightly.chaos.story import Call, Seen, Story

__all__ = ["Violation", "violations"]

HELD_UP = frozenset({"stopped", "hiccup", "killed"})


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
            story.judged["two holders"] += 1
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
            story.judged["fences"] += 1
            other = by_fence.setdefault(lease.fence, lease)
            if highest is not None and highest.fence >= lease.fence:
                text = f"{lease} was asked for at {lease.asked:.6f}, after {highest} was granted"
                both = (highest, lease)
                yield Violation("falling fences", text, highest.start, lease.start, both)
            elif other is not lease:
                text = f"{other} and {lease}"
                yield Violation("equal fences", text, other.start, lease.start, (other, lease))


def overtaken(story: Story) -> Iterator[Violation]:
    """B was granted the lock though A, undisturbed, was in the queue before B."""
    for name, leases in story.leases.items():
        seen = story.seen[name]
        for lease in leases:
            # The last look at the queue before the grant; none of those whom it showed in front
            # of B may still be there after it.
            number = _last_before(seen, lease.start)
            while number > 0 and lease.id == seen[number].holder:
                number -= 1
            if number < 0 or seen[number].holder == lease.id:
                continue
            look = seen[number]
            for first in map(story.calls.__getitem__, _in_front_of(look, lease)):
                if not _waits_beyond(first, lease.start):
                    continue
                if story.disturbed(first.process, look.since, lease.start):
                    continue
                story.judged["overtaken"] += 1
                if first.token and first.fence < lease.fence:
                    continue  # Before B, and its call returned later.
                if not first.token and not _queued_after(seen[number + 1 :], first, lease.start):
                    continue  # It may have been handed the lock, and left.
                text = f"{lease} was granted before {first.id}, in front of it at {look.at:.6f}"
                yield Violation("overtaken", text, look.since, lease.start, (first, lease))


def position_lost(story: Story) -> Iterator[Violation]:
    """A was in front of B in the queue, and later behind it, though never held up."""
    for seen in story.seen.values():
        front: dict[tuple[str, str], Seen] = {}
        for look in seen:
            for position, first in enumerate(look.queue):
                for second in look.queue[position + 1 :]:
                    story.judged["position lost"] += 1
                    before = front.pop((second, first), None)
                    if before is not None and not _held_up(story, second, seen, before, look):
                        text = f"{second} was in front of {first} at {before.at:.6f}, and is behind"
                        calls = (story.calls[second], story.calls[first])
                        yield Violation("position lost", text, before.since, look.at, calls)
                    front[first, second] = look


def late(story: Story) -> Iterator[Violation]:
    """A call that returned, or did not, long after its own deadline; with ``wait=None``, one that
    still waited when the run was over."""
    for call in story.calls.values():
        if call.over is None and call.process in story.killed:
            continue
        story.judged["late"] += 1
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
    for rule in (two_holders, fences, overtaken, position_lost, late, said):
        yield from rule(story)


def _last_before(seen: Sequence[Seen], moment: float) -> int:
    """The number of the last look that was over by then; -1 if none was."""
    return bisect_left(seen, moment, key=lambda look: look.at) - 1


def _in_front_of(look: Seen, call: Call) -> Sequence[str]:
    if call.id in look.queue:
        return look.queue[: look.queue.index(call.id)]
    return look.queue if look.at < call.asked else ()


def _waits_beyond(call: Call, moment: float) -> bool:
    if call.over is not None and call.over < moment:
        return bool(call.token)
    return call.wait is None or call.asked + call.wait > moment


def _queued_after(looks: Sequence[Seen], call: Call, moment: float) -> bool:
    """Whether the queue showed the call after that moment, and never as the holder until then."""
    for look in looks:
        if look.holder == call.id:
            return False
        if look.since > moment:
            return call.id in look.queue
    return False


def _held_up(story: Story, waiter: str, seen: Sequence[Seen], before: Seen, after: Seen) -> bool:
    """Whether a waiter was held up between two looks, or was handed the lock and slept."""
    found = story.disturbed(waiter.partition("/")[0], before.since, after.at)
    if any(fault.kind in HELD_UP for fault in found):
        return True
    first, last = _last_before(seen, before.at), _last_before(seen, after.at)
    return any(look.holder == waiter for look in seen[max(first, 0) : last + 1])
