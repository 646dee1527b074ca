"""What must not happen to a message, or in a start of it."""

from __future__ import annotations

from collections.abc import Iterator

from tests.chaos.history import Event
from tests.chaos_tasks.rules.full_disk import refused
from tests.chaos_tasks.rules.rows import changes
from tests.chaos_tasks.rules.violation import Violation
from tests.chaos_tasks.story import Start, Story

__all__ = [
    "given_up_early", "lock_of_the_dead", "skipped_wrongly", "too_many_runs", "two_at_once",
    "unexpected_failures",
]  # fmt: skip

ATTEMPTS = {"once": 1, "poison": 3}
USUAL_ATTEMPTS = 5
LEASE_SECONDS = 5.0
CLEARED_SECONDS = 3.0
"""after a death in which its lock is cleared; without the worker it would be there until the lease
ends, or the message comes again"""
CLOCK_SECONDS = 2.0
"""by which the database's moments may differ from the others'"""


def unexpected_failures(story: Story) -> Iterator[Violation]:
    for event in story.events:
        if event.kind != "failed":
            continue
        error = event.says["error"]
        expected = error in ("TooManyAttempts", "LeaseLost")
        # Celery's own `Task.retry` gives a message up that it cannot send.
        expected |= error == "Reject" and story.broker_disturbed(event.at)
        expected |= refused(story, event)
        if error == "StatusConflict":
            # The store forgot the lease, which the run cannot know before it asks.
            starts = [start.began.at for start in story.starts[event.call]]
            own = max((at for at in starts if at < event.at), default=0.0)
            expected |= bool(story.emptied(own - LEASE_SECONDS, event.at))
        if not expected and not (error == "Broken" and story.ends.get(event.name) == "raise"):
            text = f"{error}: {event.says['text']}"
            yield Violation("unexpected failure", text, event.name, event.call)


def _attempts(story: Story, call: str) -> int:
    return ATTEMPTS.get(story.tasks.get(call, ""), USUAL_ATTEMPTS)


def given_up_early(story: Story) -> Iterator[Violation]:
    """A message is given up after so many deaths or lost leases; an orderly end is none."""
    for event in story.events:
        if event.kind == "failed" and event.says["error"] == "TooManyAttempts":
            starts = [start for start in story.starts[event.call] if start.began.at < event.at]
            died = sum(_over_before(start, event, story) for start in starts)
            if died < _attempts(story, event.call):
                text = f"after {died} deaths in {len(starts)} starts"
                yield Violation("given up early", text, event.name, event.call)


def _over_before(start: Start, failure: Event, story: Story) -> bool:
    """Whether a start had died, or lost its lease, before another one gave the message up."""
    pid = start.began.process
    if pid == failure.process and (start.ended is None or start.ended.at >= failure.at):
        return False
    if story.stopped(pid, start.began.at, failure.at) > LEASE_SECONDS:
        return True
    return not (_orderly(start, story) or story.killed(pid, since=failure.at))


def _orderly(start: Start, story: Story) -> bool:
    """Whether neither the process nor the lease was lost between start and end."""
    if start.ended is None:
        return False
    pid, since, until = start.began.process, start.began.at, start.ended.at
    return not any(
        since <= event.at <= until and event.process == pid
        and (event.kind == "lost" or (event.kind == "over" and event.says["held"] is False))
        for event in story.of_call[start.began.call]
    )  # fmt: skip


def lock_of_the_dead(story: Story) -> Iterator[Violation]:
    """The worker clears the lock of a body whose process has died, at once."""
    for job, runs in story.runs.items():
        for run in runs:
            died = story.died_in(run)
            if died is None or run.fence is None:
                continue
            until = died + CLEARED_SECONDS
            if story.lock_undisturbed(run, until) and not any(
                event.kind == "cleared" and died <= event.at <= until for event in story.of_job[job]
            ):
                text = f"kept for {CLEARED_SECONDS:g} s after the death of {run.started.process}"
                yield Violation("lock of the dead", text, job, run.started.call)


def too_many_runs(story: Story) -> Iterator[Violation]:
    for job, runs in story.runs.items():
        tries: dict[tuple[str, object], list[float]] = {}
        for run in runs:
            if run.fence is None:
                continue  # Nobody counts while the store is away.
            died = tries.setdefault((run.started.call, run.started.says["retries"]), [])
            most = _attempts(story, run.started.call)
            if died:
                # With its data the store loses its counts.
                most *= 1 + story.emptied(died[0], run.started.at)
            if len(died) >= most:
                text = f"started after {len(died)} deaths"
                yield Violation("too many runs", text, job, run.started.call)
            if run.over is None:
                died.append(run.started.at)


def two_at_once(story: Story) -> Iterator[Violation]:
    """Two bodies of a job at once, and the one with the older lease has not lost it."""
    for job, runs in story.runs.items():
        for index, first in enumerate(runs):
            for second in runs[index + 1 :]:
                if first.over is None or second.started.at > first.over.at:
                    continue
                if first.fence is None or second.fence is None:
                    continue
                older = min(first, second, key=lambda run: run.fence or 0)
                held = older.over is not None and older.over.says["held"]
                if held and not story.emptied(first.started.at, second.started.at):
                    text = f"with the fences {first.fence} and {second.fence}"
                    yield Violation("two at once", text, job, second.started.call)


def skipped_wrongly(story: Story) -> Iterator[Violation]:
    for call, starts in story.starts.items():
        for start in starts:
            if start.ended is None or start.ended.says["skipped"] is None:
                continue
            text = _wrong_skip(story, start.ended)
            if text:
                yield Violation("skipped wrongly", text, start.ended.name, call)


def _wrong_skip(story: Story, skip: Event) -> str:
    reason, holder = skip.says["skipped"], skip.says["holder"]
    if reason == "already_processing":
        if holder == skip.call:
            return "for a run of the same message"
        begun = [start.began for start in story.starts.get(holder, [])]
        if not any(each.at <= skip.at and each.name == skip.name for each in begun):
            return f"for {holder}, which has not begun to work on this"
        return ""
    if reason != "invalid_state":
        return f"with the reason {reason}"
    status = "new"
    for entry in changes(story.rows[skip.name]):
        if abs(entry.at - skip.at) < CLOCK_SECONDS:
            return ""  # Which came first is not known.
        if entry.at < skip.at:
            status = str(entry.says["after"])
    return "though its row was new" if status == "new" else ""
