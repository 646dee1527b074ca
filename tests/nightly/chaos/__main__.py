"""``python -m tests.nightly.chaos --seconds 60 [--seed SEED] [--folder FOLDER]``.

Exits with 0 if no rule was broken, 1 if one was, 3 if the run broke off and says nothing.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from tests.nightly.chaos.conductor import run
from tests.nightly.chaos.history import Event, read
from tests.nightly.chaos.rules import Violation, violations
from tests.nightly.chaos.story import Story
from tests.seeds import drawn_seed

SHOWN, LINES = 5, 40
"""violations of one rule that are printed, and lines of the history for each; the last ones"""
AROUND_SECONDS = 0.5
"""of the history before and after"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.nightly.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", default="", help="that of another run; by default a new one")
    parser.add_argument("--folder", type=Path, help="a new one, for the history")
    parser.add_argument("--again", type=Path, metavar="FOLDER", help="check that history again")
    options = parser.parse_args()
    if options.again:
        return judged(options.again)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="tasklock-chaos-"))
    try:
        run(folder, options.seconds, options.seed or str(drawn_seed()))
        status = judged(folder)
    except Exception:
        traceback.print_exc()
        status = 3
    if status:
        print(f"the history is in {folder}")
    elif not options.folder:
        shutil.rmtree(folder)
    return status


def judged(folder: Path) -> int:
    """Print what happened, and each violation with the history around it; 1 if there is one."""
    story = Story(read(folder))
    outcomes = Counter(call.outcome for call in story.calls.values())
    faults = Counter(event.says["fault"] for event in story.events if event.kind == "fault")
    totals = [("calls", outcomes), ("faults", faults)]
    return told(violations(story), totals, partial(around, story=story))


def told(
    found: Iterable[Violation],
    totals: Iterable[tuple[str, Counter[str]]],
    piece: Callable[[Violation], Sequence[Event]],
) -> int:
    """Print each violation with its piece of the history, and the totals; 1 if there is one."""
    counts: Counter[str] = Counter()
    for violation in found:
        counts[violation.rule] += 1
        if counts[violation.rule] <= SHOWN:
            print(f"VIOLATION {violation.rule}: {violation.text}")
            print(*(f"    {event}" for event in piece(violation)[-LINES:]), sep="\n")
    for what, of in [*totals, ("violations", counts)]:
        print(f"{what}: {', '.join(f'{n} {each}' for each, n in sorted(of.items())) or 'none'}")
    return 1 if counts else 0


def around(violation: Violation, story: Story) -> list[Event]:
    """The events of the lock, and the faults, around a violation."""
    names = {call.name for call in violation.calls}
    calls = {call.id for call in story.calls.values() if call.name in names}
    since, until = violation.since - AROUND_SECONDS, violation.at + AROUND_SECONDS
    return [
        event for event in story.events
        if since <= event.at <= until and (event.call in calls or event.kind in ("fault", "died"))
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
