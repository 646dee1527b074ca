"""What a full disk of the rows' database excuses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.chaos.history import Event
from tests.chaos_tasks.rules.violation import Violation
from tests.chaos_tasks.story import Story

__all__ = ["NO_ROOM", "left_behind", "refused"]

NO_ROOM = "No space left on device"
"""what the database says of a full disk"""


def left_behind(story: Story) -> Iterator[Violation]:
    """What the guard could not write on a full disk is left to people, and nothing else is."""
    for again in story.events:
        if again.kind != "sent again":
            continue
        failures = [
            event for call in again.says["after"] for event in _failures(story, again, call)
        ]
        if again.says["status"] == "running":
            # A body that raises leaves such a row too, which the guard could not mark as failed.
            excused = any(_disk_was_full(story, e) for e in failures if e.name == again.name)
        else:
            # Its own claim, or a chain has ended before it.
            excused = any(refused(story, event) for event in failures)
        if not excused:
            text = f"{again.says['status']}, after {', '.join(again.says['after'])}"
            yield Violation("left behind", text, again.name, again.call)


def _failures(story: Story, again: Event, call: str) -> list[Event]:
    """The failures of a message before it was sent again."""
    told = [each for each in story.of_call[call] if each.kind == "failed" and each.at < again.at]
    text = again.says["after"][call]
    if told or NO_ROOM not in text:
        return told
    # Its process has stored the failure, and was stopped or ended before it could tell.
    begun = [start.began for start in story.starts[call] if start.began.at < again.at]
    says = {"error": "OperationalError", "text": text}
    return [replace(each, kind="failed", at=again.at, says=says) for each in begun]


def refused(story: Story, failure: Event) -> bool:
    """Whether the guard could not claim or finish: the body's own statements are retried."""
    said = failure.says["error"] == "OperationalError" and NO_ROOM in failure.says["text"]
    return said and _disk_was_full(story, failure)


def _disk_was_full(story: Story, failure: Event) -> bool:
    """Whether the disk was full at some time of the start that failed."""
    # Of another process: a redelivery may have begun since, while this one was stopped.
    starts = [start.began for start in story.starts[failure.call]]
    own = [each.at for each in starts if each.process == failure.process]
    began = max((at for at in own if at <= failure.at), default=failure.at)
    return story.disk_full(began, failure.at)
