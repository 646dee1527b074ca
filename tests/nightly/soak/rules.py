"""What must not have happened in a soak: the rules of chaos, and those of rows and logs.

What a soak writes beside the events of `tests.nightly.chaos.story`:

* of a row: ``asked for`` (row, task, times), ``asked again`` (row, since), ``row`` at the end (row,
  task, status, changes: status before, after, fence);
* of a message: ``received`` (task_id, again), ``skipped`` (reason), ``not sent``;
* of a log: ``error`` (logger, text); of a view: ``silent view``;
* of the conductor: ``deed`` (deed, what), ``left`` (what), ``raised`` (error).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from tests.nightly.chaos import rules as of_chaos
from tests.nightly.chaos.history import Event
from tests.nightly.chaos.rules import Violation
from tests.nightly.chaos.story import Story

__all__ = ["violations"]


class Excuse(NamedTuple):
    """Errors that follow from a fault."""

    pattern: re.Pattern[str]
    faults: frozenset[str]
    seconds: float
    """after the end of a fault, in which it is said"""


OUTAGES = frozenset({"server paused", "server restarted", "cut"})
STOPS = OUTAGES | {"stopped", "killed"}
EXCUSES = (
    Excuse(
        re.compile(
            r"StoreUnavailable|ConnectionError|TimeoutError|OperationalError|BusyLoading"
            r"|BrokenPipe|Connection (refused|reset|closed)|[Cc]annot connect to|ConnectionReset"
            r"|Error 111|no lock for a view|Service Unavailable"
            r"|has no attribute '(hostname|client)'"
        ),
        OUTAGES, 40,
    ),
    Excuse(re.compile(r"LeaseLost|StatusConflict|[Ll]ost|Internal Server Error"), STOPS, 20),
    Excuse(
        re.compile(r"WorkerLostError|exited with|SIGKILL|Worker \(pid:\d+\)|Timed out waiting"),
        frozenset({"killed", "stopped"}), 20,
    ),
    # Chaos plays with these: operators clear them, and some lapse.
    Excuse(re.compile(r"\block (of )?seat:\d|\bseat:\d"), frozenset(), 0),
)  # fmt: skip
LOSING = OUTAGES | {"killed"}
"""faults by which Celery's transport for Redis may lose a message on its way"""


def rows(story: Story) -> Iterator[Violation]:
    """Each row that was asked for is done, once, after a body that came to its end, and its fence
    only grew."""
    finished = {e.says["row"] for e in story.events if e.kind == "releasing" and e.says.get("row")}
    asked = {e.says["row"]: e for e in story.events if e.kind == "asked for" and e.says["row"]}
    found = {e.says["row"]: e for e in story.events if e.kind == "row"}
    for row, ask in asked.items():
        at, until = ask.at, story.end
        if row not in found:
            yield Violation("row gone", str(ask), at, until)
            continue
        says = found[row].says
        text = f"row {row} of {says['task']}: {says['status']}, {says['changes']}"
        times = [became for _, became, _ in says["changes"]].count("done")
        if says["status"] != "done":
            rule = "row stuck in processing" if says["status"] == "processing" else "row not done"
            yield Violation(rule, text, at, until)
        elif times != 1:
            yield Violation("row done more than once", text, at, until)
        elif row not in finished:
            yield Violation("row done without its body", text, at, until)
        fences = [fence for _, _, fence in says["changes"] if fence is not None]
        if fences != sorted(fences):
            yield Violation("falling fences of a row", text, at, until)


def lost_messages(story: Story) -> Iterator[Violation]:
    """A row that had to be asked for again, though nothing had happened to its message."""
    faults = _faults(story)
    for event in story.events:
        if event.kind != "asked again":
            continue
        if not _any_of(LOSING, faults, event.says["since"], event.at):
            yield Violation("message lost", str(event), event.says["since"], event.at)


def errors(story: Story) -> Iterator[Violation]:
    """An error in a log that does not follow from a fault; a view that never answered."""
    faults = _faults(story)
    for event in story.events:
        if event.kind == "error" and not _excused(faults, event):
            yield Violation("unexpected error", str(event), event.at, event.at)
        elif event.kind == "silent view":
            yield Violation("view without an answer", str(event), event.at, event.at)


def _faults(story: Story) -> list[Event]:
    return [event for event in story.events if event.kind == "fault"]


def _excused(faults: list[Event], event: Event) -> bool:
    return any(
        excuse.pattern.search(event.says["text"])
        and (
            not excuse.faults or _any_of(excuse.faults, faults, event.at - excuse.seconds, event.at)
        )
        for excuse in EXCUSES
    )


def _any_of(kinds: frozenset[str], faults: list[Event], since: float, until: float) -> bool:
    """Whether one of these happened in a stretch, or lasted into it."""
    return any(
        fault.says["fault"] in kinds and fault.says["since"] <= until and fault.at >= since
        for fault in faults
    )


def violations(story: Story) -> Iterator[Violation]:
    """All violations, rule by rule."""
    yield from of_chaos.violations(story)
    for rule in (rows, lost_messages, errors):
        yield from rule(story)
