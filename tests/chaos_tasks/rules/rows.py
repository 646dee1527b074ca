"""What must not happen to a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.chaos.history import Event
from tests.chaos_tasks.rules.violation import Violation
from tests.chaos_tasks.story import Story

__all__ = [
    "changed_after_the_end", "changes", "done_twice", "falling_fences", "finished_by_another",
    "not_over",
]  # fmt: skip


def changes(entries: Sequence[Event]) -> list[Event]:
    return [entry for entry in entries if entry.says["what"] == "status"]


def done_twice(story: Story) -> Iterator[Violation]:
    for job, entries in story.rows.items():
        number = sum(entry.says["after"] == "done" for entry in changes(entries))
        if number > 1:
            yield Violation("done twice", f"finished {number} times", job)


def changed_after_the_end(story: Story) -> Iterator[Violation]:
    for job, entries in story.rows.items():
        for entry in changes(entries):
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
        for entry in changes(entries):
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
