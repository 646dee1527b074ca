"""Every call returns in time, and no lock is free for long while somebody waits for it."""

from __future__ import annotations

from collections.abc import Iterator

from tests.chaos.acts import Call
from tests.chaos.bounds import IDLE_SECONDS, LATE_SECONDS
from tests.chaos.rules import Violation
from tests.chaos.story import Story

__all__ = ["idle", "late", "never_served"]


def late(story: Story) -> Iterator[Violation]:
    """A call that returned, or did not, long after its own deadline."""
    disturbances = story.disturbances
    for call in story.calls.values():
        if call.wait is None or (call.over is None and call.process in disturbances.killed):
            continue
        over = story.end if call.over is None else call.over
        took = over - call.asked
        story.checked["late"] += 1
        if took <= call.wait + LATE_SECONDS:
            continue
        excused = disturbances.stopped(call.process, call.asked, over)
        excused += disturbances.outage(call.process, call.asked, over)
        if took > call.wait + LATE_SECONDS + excused:
            returned = f"returned after {took:.3f} s" if call.over else "never returned"
            yield Violation(
                "late", f"{call.id} asked for {call.name} with wait={call.wait:.3f} and {returned}",
                call.asked, over, call.name, (call.id,),
            )  # fmt: skip


def never_served(story: Story) -> Iterator[Violation]:
    """A call with ``wait=None`` that still waited when the run was over."""
    for call in story.calls.values():
        if call.wait is None and call.process not in story.disturbances.killed:
            story.checked["never served"] += 1
            if call.over is None:
                yield Violation(
                    "never served", f"{call.id} waits for {call.name} since {call.asked:.6f}",
                    call.asked, story.end, call.name, (call.id,),
                )  # fmt: skip


def idle(story: Story) -> Iterator[Violation]:
    """A lock that was free for long, look after look, while an undisturbed call waited for it."""
    tenures = story.by_name()
    for name, seen in story.seen.items():
        waiting = [x for x in story.calls.values() if x.name == name and x.wait != 0]
        since: float | None = None
        for look in seen:
            if look.holder or look.token is not None:
                since = None
                continue
            if since is None:
                ended = [x.announced for x in tenures.get(name, ()) if x.start < look.since]
                # They ask at the end of the lease that they know of.
                since = max(look.since, ended[-1] if ended else 0.0)
            if look.since - since <= IDLE_SECONDS:
                continue
            for call in waiting:
                if _waits(story, call, since, look.at):
                    yield Violation(
                        "idle", f"{name} was free from {since:.6f} to {look.at:.6f}, and "
                        f"{call.id} waited for it since {call.asked:.6f}",
                        since, look.at, name, (call.id,),
                    )  # fmt: skip
                    since = None
                    break
            if since is None:
                continue
            story.checked["idle"] += 1


def _waits(story: Story, call: Call, since: float, until: float) -> bool:
    over = story.end if call.over is None else call.over
    deadline = over if call.wait is None else min(over, call.asked + call.wait)
    if not (call.asked < since and until < deadline):
        return False
    if story.disturbances.killed.get(call.process, until) < until:
        return False
    return not story.disturbances.hindered(call.process, since, until)
