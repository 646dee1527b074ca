"""A call that is over leaves nothing behind: in the store, at the server, in the process."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tests.chaos.acts import Call
from tests.chaos.bounds import CONNECTIONS, LEFT_SECONDS
from tests.chaos.rules import Violation
from tests.chaos.story import Story

__all__ = ["afterlife", "at_rest", "in_redis"]

FILES = 16
"""that a process may have open beside those that it began with: connections, mostly"""
SPARE = 4
"""connections that a process at rest may keep at hand, of the 32 that its pool gives at most"""
THREADS_LEFT = 3
"""beside those that a process began with: the renewal's, and what a library may start"""


def afterlife(story: Story) -> Iterator[Violation]:
    """A call that is over, and is still seen to hold the lock or to wait for it."""
    reported = set()
    for looks in story.seen.values():
        for look in looks:
            for one in filter(None, (look.holder, *look.queue)):
                call = story.calls.get(one)
                if call is None or one in reported or call.over is None:
                    continue
                story.checked["afterlife"] += 1
                moment, how = _ended(story, call, waits=one != look.holder)
                if look.since <= moment:
                    continue
                if story.disturbances.unreachable(call.process, moment - LEFT_SECONDS, look.since):
                    continue
                reported.add(one)
                what = "still holds" if one == look.holder else "still waits for"
                yield Violation(
                    "left behind",
                    f"{one} {what} {look.name} at {look.since:.6f}, though it was {how} by "
                    f"{moment:.6f}",
                    call.asked, look.at, look.name, (one,),
                )  # fmt: skip


def _ended(story: Story, call: Call, *, waits: bool) -> tuple[float, str]:
    """By when the call's part was over, and how; infinite if it may go on."""
    tenure = story.tenures.get(call.id)
    if tenure is None:
        # Who was interrupted may stay in the queue, deaf, to be passed over; not hold the lock.
        outcomes = ("refused",) if waits else ("refused", "interrupted")
        if call.outcome in outcomes and call.over is not None:
            return call.over + LEFT_SECONDS, call.outcome
    elif waits:
        return tenure.start + LEFT_SECONDS, "granted"
    elif tenure.said and tenure.released is not None:
        return tenure.released, "released"
    elif tenure.cut_short is not None:
        return tenure.cut_short + LEFT_SECONDS, "interrupted"
    return math.inf, ""


def in_redis(story: Story) -> Iterator[Violation]:
    """Something but the last fence is left in the store, or a lock cannot be had at the end."""
    for event in story.events:
        if event.kind == "left":
            yield Violation(
                "left in Redis", str(event.says["what"]), event.at, event.at, event.name
            )


def at_rest(story: Story) -> Iterator[Violation]:
    """A process at rest that has too many connections, threads or files, or is not at rest."""
    began = {event.process: event for event in story.events if event.kind == "began"}
    for event in story.events:
        found: list[str] = []
        whom = str(event.says.get("whom", event.process))
        if event.kind == "stuck":
            found.append(f"is not at rest; its threads: {event.says['threads']}")
        elif event.kind == "connections" and event.says["number"] > CONNECTIONS:
            found.append(f"has {event.says['number']} connections at the server")
        elif event.kind == "rested":
            story.checked["at rest"] += 1
            spare, most = event.says["spare"]
            first = began[event.process].says
            if spare < most - SPARE and not story.disturbances.unreachable(
                event.process, event.at - 1, event.at
            ):
                found.append(f"can take {spare} of {most} connections from its pool")
            if event.says["threads"] > first["threads"] + THREADS_LEFT:
                found.append(f"has {event.says['threads']} threads, and began with 1")
            if event.says["files"] > first["files"] + FILES:
                found.append(f"has {event.says['files']} files open, and began with less")
        for what in found:
            yield Violation("not at rest", f"{whom} {what}", event.at, event.at, calls=(whom,))
