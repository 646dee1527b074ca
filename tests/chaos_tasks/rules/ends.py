"""What must not be left at the end, or end before."""

from __future__ import annotations

from collections.abc import Iterator

from tests.chaos.history import Event
from tests.chaos_tasks.rules.violation import Violation
from tests.chaos_tasks.story import Story

__all__ = ["leftovers", "workers_ended"]


def leftovers(story: Story) -> Iterator[Violation]:
    rest = [event for event in story.events if event.kind == "at rest"]
    if not rest:
        yield Violation("never at rest", "the run did not come to its end")
    for event in rest:
        for what in ("locks", "queues", "reservations", "messages"):
            if event.says[what]:
                yield Violation(f"{what} left", str(event.says[what]))


def workers_ended(story: Story) -> Iterator[Violation]:
    for event in story.events:
        if event.kind == "worker ended":
            # Kombu's Redis transport raises some other error than that of the lost connection at
            # times, which ends Celery's worker.
            excused = story.broker_disturbed(event.at)
        elif event.kind == "worker stuck":
            excused = _hangs_in_celery(story, event)
        else:
            continue
        if not excused:
            yield Violation(event.kind, f"{event.says['whom']}: {event.says['log']}")


def _hangs_in_celery(story: Story, stuck: Event) -> bool:
    """Celery's handler of a cold shutdown reads the results of the pool, and hangs if it came in
    the middle of reading one. ``log`` ends with what the threads are at."""
    cold = any(
        fault.says["fault"] == "cold shutdown" and fault.says["whom"] == stuck.says["whom"]
        for fault in story.faults
    )
    stack = str(stuck.says["log"]).rpartition("Current thread")[2]
    # The newest frame comes first. What the handler has interrupted may well be ours.
    called, handler, _ = stack.partition("on_cold_shutdown")
    return cold and bool(handler) and "django_tasklock" not in called
