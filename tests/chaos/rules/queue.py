"""Who waits is in the queue, keeps its position there, and is served in its turn."""

from __future__ import annotations

from collections.abc import Iterator

from tests.chaos.acts import Call, Seen
from tests.chaos.bounds import OUTSIDE_SECONDS
from tests.chaos.rules import Violation
from tests.chaos.story import Story

__all__ = ["outside", "overtaken", "position_lost"]

BEFORE_SECONDS = 0.2
"""seconds of history that show how a position was lost"""
HELD_UP = frozenset({"stopped", "hiccup", "killed"})


def overtaken(story: Story) -> Iterator[Violation]:
    """B was granted the lock though A, undisturbed, was in the queue before B."""
    for name, seen in story.seen.items():
        for tenure in story.tenures.values():
            later = tenure.call
            if later.name != name:
                continue
            look = _last_before(seen, tenure.start)
            # The last look at the queue before the grant; none of those whom it showed in front
            # of B may still be there after it.
            while look > 0 and later.id == seen[look].holder:
                look -= 1
            if look < 0 or seen[look].holder == later.id:
                continue
            for waiter in _in_front_of(seen[look], later):
                first = story.calls.get(waiter)
                if first is None or not _waits_beyond(first, tenure.start):
                    continue
                if story.disturbances.of(first.process, seen[look].since, tenure.start):
                    continue
                story.checked["overtaken"] += 1
                granted = story.tenures.get(first.id)
                if granted is not None and granted.fence < tenure.fence:
                    continue  # Before B, and its call returned later.
                if granted is None and not _queued_after(seen, look, first, tenure.start):
                    continue  # It may have been handed the lock, and left.
                yield Violation(
                    "overtaken",
                    f"{later.id}, asked at {later.asked:.6f}, was granted {name} (fence "
                    f"{tenure.fence}) by {tenure.start:.6f}, before {first.id}, asked at "
                    f"{first.asked:.6f}, in front of it in the queue at {seen[look].at:.6f}",
                    seen[look].since, tenure.start, name, (first.id, later.id),
                )  # fmt: skip


def position_lost(story: Story) -> Iterator[Violation]:
    """A was in front of B in the queue, and later behind it, though never held up."""
    for name, seen in story.seen.items():
        front: dict[tuple[str, str], Seen] = {}
        for look in seen:
            passed: dict[str, list[str]] = {}
            for position, first in enumerate(look.queue):
                for second in look.queue[position + 1 :]:
                    story.checked["position lost"] += 1
                    before = front.pop((second, first), None)
                    if before is not None and not _held_up(story, second, seen, before, look):
                        passed.setdefault(second, []).append(f"{first} (at {before.at:.6f})")
                    front[first, second] = look
            for waiter, others in passed.items():
                yield Violation(
                    "position lost",
                    f"{waiter} waits for {name}, and was in front of {', '.join(others)}; at "
                    f"{look.at:.6f} it is behind",
                    look.since - BEFORE_SECONDS, look.at, name, (waiter,),
                )  # fmt: skip


def outside(story: Story) -> Iterator[Violation]:
    """A call waits, undisturbed, and the queue does not show it."""
    for name, seen in story.seen.items():
        for call in story.calls.values():
            if call.name != name or call.wait == 0:
                continue
            over = story.end if call.over is None else call.over
            missing: float | None = None
            for look in seen[_last_before(seen, call.asked) + 1 :]:
                if look.at > over or _dead(story, call, look.at):
                    break
                if call.id in look.queue or call.id == look.holder:
                    missing = None
                    continue
                if missing is None or story.disturbances.hindered(
                    call.process, look.since, look.at
                ):
                    missing = look.since
                story.checked["outside"] += 1
                if look.since - missing > OUTSIDE_SECONDS:
                    yield Violation(
                        "outside of the queue",
                        f"{call.id} waits for {name} since {call.asked:.6f}, and was not in the "
                        f"queue from {missing:.6f} to {look.at:.6f}: it held {look.queue}",
                        missing, look.at, name, (call.id,),
                    )  # fmt: skip
                    break


def _last_before(seen: list[Seen], moment: float) -> int:
    """The number of the last look that was over by then; -1 if none was."""
    low, high = 0, len(seen)
    while low < high:
        middle = (low + high) // 2
        if seen[middle].at < moment:
            low = middle + 1
        else:
            high = middle
    return low - 1


def _in_front_of(look: Seen, call: Call) -> list[str]:
    if call.id in look.queue:
        return list(look.queue[: look.queue.index(call.id)])
    return list(look.queue) if look.at < call.asked else []


def _waits_beyond(call: Call, moment: float) -> bool:
    if call.over is not None and call.over < moment:
        return call.outcome == "granted"
    return call.wait is None or call.asked + call.wait > moment


def _queued_after(seen: list[Seen], look: int, call: Call, moment: float) -> bool:
    """Whether the queue showed the call after that moment, and never as the holder since."""
    for later in seen[look + 1 :]:
        if later.holder == call.id:
            return False
        if later.since > moment:
            return call.id in later.queue
    return False


def _held_up(story: Story, waiter: str, seen: list[Seen], before: Seen, after: Seen) -> bool:
    """Whether a waiter was held up between two looks, or was handed the lock and slept."""
    process = waiter.partition("/")[0]
    found = story.disturbances.of(process, before.since, after.at)
    if any(disturbance.kind in HELD_UP for disturbance in found):
        return True
    first, last = _last_before(seen, before.at), _last_before(seen, after.at)
    return any(look.holder == waiter for look in seen[max(first, 0) : last + 1])


def _dead(story: Story, call: Call, moment: float) -> bool:
    return story.disturbances.killed.get(call.process, moment) < moment
