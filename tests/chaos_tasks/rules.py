"""What must not happen: functions of a story."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tests.chaos.history import Event
from tests.chaos_tasks.story import Start, Story

__all__ = ["RULES", "Violation"]

ATTEMPTS = {"once": 1, "poison": 3}
USUAL_ATTEMPTS = 5
LEASE_SECONDS = 5.0
CLOCK_SECONDS = 2.0
"""by which the database's moments may differ from the others'"""


@dataclass(frozen=True)
class Violation:
    """Something that must not have happened, to a job or to a message of it."""

    rule: str
    text: str
    job: str = ""
    call: str = ""


Rule = Callable[[Story], Iterator[Violation]]


def _changes(entries: Sequence[Event]) -> list[Event]:
    return [entry for entry in entries if entry.says["what"] == "status"]


def done_twice(story: Story) -> Iterator[Violation]:
    for job, entries in story.rows.items():
        number = sum(entry.says["after"] == "done" for entry in _changes(entries))
        if number > 1:
            yield Violation("done twice", f"finished {number} times", job)


def changed_after_the_end(story: Story) -> Iterator[Violation]:
    for job, entries in story.rows.items():
        for entry in _changes(entries):
            if entry.says["before"] in ("done", "failed"):
                text = f"{entry.says['before']}, and then {entry.says['after']}"
                yield Violation("changed after the end", text, job)


def finished_by_another(story: Story) -> Iterator[Violation]:
    """A row has the fence of its last claim; only a body with that fence may finish it."""
    for job, entries in story.rows.items():
        effects: set[object] = set()
        for entry in entries:
            if entry.says["what"] == "effect":
                effects.add(entry.says["fence"])
            elif entry.says["after"] == "done" and not effects & {entry.says["fence"], None}:
                text = f"done with the fence {entry.says['fence']}, whose body was not at its end"
                yield Violation("finished by another", text, job)


def falling_fences(story: Story) -> Iterator[Violation]:
    for job, entries in story.rows.items():
        last = 0
        for entry in _changes(entries):
            if entry.says["after"] != "running":
                continue
            fence = int(entry.says["fence"] or 0)
            if fence <= last:
                yield Violation("falling fences", f"claimed with {fence} after {last}", job)
            last = max(last, fence)


def not_over(story: Story) -> Iterator[Violation]:
    """What was sent is done, or has failed for a reason that is known."""
    for job, sent in story.sent.items():
        status = story.left[job].says["status"] if job in story.left else "gone"
        if status == "running":
            yield Violation("stuck", "in the working status at the end", job, sent.call)
        elif status == "done":
            if story.ends[job] != "return":
                yield Violation("done though no body returned", "", job, sent.call)
        elif status == "failed":
            failures = [e for e in story.of_job[job] if e.kind == "failed"]
            # Whose child died with the report of it has told nobody.
            broke = any(run.how == "broke" for run in story.runs[job])
            if not failures and not (story.ends[job] == "raise" and broke):
                yield Violation("failed, and nobody knows why", "", job, sent.call)
        else:
            yield Violation("lost", f"{status} at the end", job, sent.call)


def unexpected_failures(story: Story) -> Iterator[Violation]:
    for event in story.events:
        if event.kind != "failed":
            continue
        error = event.says["error"]
        expected = error in ("TooManyAttempts", "LeaseLost")
        # Celery's own `Task.retry` gives a message up that it cannot send.
        expected |= error == "Reject" and story.broker_disturbed(event.at)
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
            died = sum(not _orderly(start, story) for start in starts)
            if died < _attempts(story, event.call):
                text = f"after {died} deaths in {len(starts)} starts"
                yield Violation("given up early", text, event.name, event.call)


def _orderly(start: Start, story: Story) -> bool:
    """Whether neither the process nor the lease was lost between start and end.

    The last start is the one that gives up.
    """
    if start.ended is None:
        return False
    pid, since, until = start.began.process, start.began.at, start.ended.at
    return not any(
        since <= event.at <= until and event.process == pid
        and (event.kind == "lost" or (event.kind == "over" and event.says["held"] is False))
        for event in story.of_call[start.began.call]
    )  # fmt: skip


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
    """Two bodies of a job at once, and neither has lost its lease."""
    for job, runs in story.runs.items():
        for index, first in enumerate(runs):
            if first.over is None or not first.over.says["held"]:
                continue
            for second in runs[index + 1 :]:
                at_once = second.started.at < first.over.at and second.fence is not None
                if at_once and not story.emptied(first.started.at, second.started.at):
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
    for entry in _changes(story.rows[skip.name]):
        if abs(entry.at - skip.at) < CLOCK_SECONDS:
            return ""  # Which came first is not known.
        if entry.at < skip.at:
            status = str(entry.says["after"])
    return "though its row was new" if status == "new" else ""


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
    return cold and "on_cold_shutdown" in stack and "django_tasklock" not in stack


RULES: Sequence[Rule] = (
    done_twice, changed_after_the_end, finished_by_another, falling_fences, not_over,
    unexpected_failures, given_up_early, too_many_runs, two_at_once, skipped_wrongly, leftovers,
    workers_ended,
)  # fmt: skip
