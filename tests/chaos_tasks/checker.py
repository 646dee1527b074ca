"""
Reads a history and says what must not have happened.

``python -m tests.chaos_tasks.checker FOLDER`` checks a run again.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.history import Event, read
from tests.chaos_tasks.rules import RULES, Violation
from tests.chaos_tasks.story import Story

__all__ = ["check", "report"]

SHOWN = 5
"""violations of one rule, with their history; the others are counted"""
LINES = 60


def check(events: Sequence[Event]) -> tuple[list[Violation], Story]:
    """All violations, in the order of the rules, and the story they were found in."""
    story = Story(events)
    return [violation for rule in RULES for violation in rule(story)], story


def report(violations: Sequence[Violation], story: Story) -> str:
    """For people: what was judged, and each violation with the history of its job."""
    took = next((event for event in story.events if event.kind == "took"), None)
    lines = [story.summary()]
    if took is not None:
        seconds, messages = took.says["seconds"], took.says["messages"]
        lines.append(f"{messages} messages in {seconds:.0f} s")
    shown: Counter[str] = Counter()
    for violation in violations:
        shown[violation.rule] += 1
        if shown[violation.rule] <= SHOWN:
            words = (violation.job and f"job {violation.job}", violation.call, violation.text)
            lines += ["", f"VIOLATION {violation.rule}: {' '.join(filter(None, words))}"]
            lines += [f"    {event}" for event in _history(violation, story)]
    lines += ["", *(f"{count:6} x {rule}" for rule, count in shown.most_common())]
    lines.append("No violation." if not violations else f"{len(violations)} violations.")
    return "\n".join(lines)


def _history(violation: Violation, story: Story) -> list[Event]:
    """What happened to the job and its messages, with the faults meanwhile."""
    calls = {event.call for event in story.of_job.get(violation.job, ())} | {violation.call}
    found = [*story.of_job.get(violation.job, ())]
    found += [e for call in calls - {""} for e in story.of_call[call] if e.name != violation.job]
    if not found:
        return []
    since, until = min(event.at for event in found) - 1, max(event.at for event in found)
    processes = {event.process for event in found}
    found += [
        fault for fault in story.faults
        if since <= fault.at and float(fault.says["since"]) <= until
        and (not fault.says["whom"] or str(fault.says["whom"]) in processes)
    ]  # fmt: skip
    return sorted(found, key=lambda event: event.at)[:LINES]


def main(folder: Path) -> int:
    violations, story = check(read(folder))
    print(report(violations, story))
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
