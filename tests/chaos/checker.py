"""
Reads a history and says what must not have happened.

``python -m tests.chaos.checker FOLDER`` checks a run again.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.history import Event, read
from tests.chaos.rules import Rule, Violation
from tests.chaos.rules.answers import (
    cleared_but_extended,
    cleared_but_released,
    foreign_answers,
    lost_early,
    unavailable,
    unexpected,
)
from tests.chaos.rules.holders import (
    equal_fences,
    falling_fences,
    given_to_the_dead,
    two_holders,
)
from tests.chaos.rules.leftovers import afterlife, at_rest, in_redis
from tests.chaos.rules.queue import outside, overtaken, position_lost
from tests.chaos.rules.waiting import idle, late, never_served
from tests.chaos.story import Story

__all__ = ["RULES", "check", "report"]

RULES: Sequence[Rule] = (
    two_holders, falling_fences, equal_fences, overtaken, position_lost, outside, late,
    never_served, idle, unexpected, unavailable, foreign_answers, cleared_but_released,
    cleared_but_extended, lost_early, given_to_the_dead, afterlife, at_rest, in_redis,
)  # fmt: skip

SHOWN = 5
"""violations of one rule, with their history; the others are counted"""
AROUND_SECONDS = 0.5
"""seconds of the history before and after"""
LINES = 40


def check(events: Sequence[Event]) -> tuple[list[Violation], Story]:
    """All violations, in the order of the rules, and the story they were found in."""
    story = Story(events)
    return [violation for rule in RULES for violation in rule(story)], story


def report(violations: Sequence[Violation], story: Story) -> str:
    """For people: what was judged, and each violation with the history around it."""
    lines = [_summary(story)]
    counts = Counter(violation.rule for violation in violations)
    shown: Counter[str] = Counter()
    for violation in violations:
        shown[violation.rule] += 1
        if shown[violation.rule] <= SHOWN:
            lines += ["", f"VIOLATION {violation.rule}: {violation.text}"]
            lines += [f"    {event}" for event in _around(violation, story.events)]
    lines.append("")
    lines += [f"{count:6} x {rule}" for rule, count in counts.most_common()]
    lines.append("No violation." if not violations else f"{len(violations)} violations.")
    return "\n".join(lines)


def _summary(story: Story) -> str:
    outcomes = Counter(call.outcome or "never over" for call in story.calls.values())
    faults = Counter(str(e.says["fault"]) for e in story.events if e.kind == "fault")
    return "\n".join(
        f"{title}: " + ", ".join(f"{number} {what}" for what, number in sorted(of.items()))
        for title, of in (("calls", outcomes), ("faults", faults), ("judged", story.checked))
    )


def _around(violation: Violation, events: Sequence[Event]) -> list[Event]:
    """The events of the lock and of its calls, and the faults, around a violation."""
    processes = {call.partition("/")[0] for call in violation.calls}
    since, until = violation.since - AROUND_SECONDS, violation.at + AROUND_SECONDS
    found: list[Event] = []
    last: dict[tuple[str, str], Event] = {}
    for event in events:
        if not (since <= event.at <= until and _concerns(event, violation, processes)):
            continue
        before = last.get((event.kind, event.call))
        if event.kind == "held" and before is not None and before in found:
            found.remove(before)  # The last of them says the most.
        last[event.kind, event.call] = event
        if event.kind != "seen" or before is None or _tells(event) != _tells(before):
            found.append(event)
    if len(found) > LINES:
        # What happened to the calls themselves comes first, then what came last.
        found.sort(key=lambda event: (event.call not in violation.calls, -event.at))
        found = sorted(found[:LINES], key=lambda event: event.at)
    return found


def _tells(event: Event) -> tuple[object, ...]:
    return tuple(event.says.get(key) for key in ("holder", "token", "queue"))


def _concerns(event: Event, violation: Violation, processes: set[str]) -> bool:
    if event.call in violation.calls:
        return True
    if event.kind in ("fault", "died", "stuck"):
        return str(event.says.get("whom", "")) in processes | {""}
    if event.kind == "interrupted" and event.process in processes:
        return True
    return bool(violation.name) and event.name == violation.name and event.kind != "held"


def main(folder: Path) -> int:
    violations, story = check(read(folder))
    print(report(violations, story))
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
