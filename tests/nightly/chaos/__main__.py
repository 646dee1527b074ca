"""``python -m tests.nightly.chaos --seconds 60 [--seed SEED] [--folder FOLDER]``.

Exits with 0 if nothing was violated, 1 if something was, 3 if the run broke off and says nothing.
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

from tests.nightly.chaos.conductor import run
from tests.nightly.chaos.history import Event, read
from tests.nightly.chaos.rules import Violation, violations
from tests.nightly.chaos.story import Story

COMMAND = "python -m tests.nightly.chaos"
SHOWN = 5
"""violations of one rule, with their history; the others are counted"""
AROUND_SECONDS, LINES = 0.5, 40
"""of the history before and after"""


def main() -> int:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", default="", help="that of another run; by default a new one")
    parser.add_argument("--folder", type=Path, help="for the history, which is kept there")
    parser.add_argument("--again", type=Path, metavar="FOLDER", help="check that history again")
    options = parser.parse_args()
    if options.again:
        return judged(options.again)
    seconds, seed = options.seconds, options.seed or secrets.token_hex(4)
    print(f"SEED={seed} SECONDS={seconds:g}", flush=True)
    folder: Path = options.folder or Path(tempfile.mkdtemp(prefix="tasklock-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.glob("*.jsonl")):
        parser.error(f"{folder} has the history of another run")
    try:
        run(folder, seconds, seed)
        status = judged(folder)
    except Exception:
        traceback.print_exc()
        status = 3
    if status:
        print(f"SEED={seed}; the history is in {folder}")
        print(f"to make the same choices:     {COMMAND} --seconds {seconds:g} --seed {seed}")
        print(f"to check this history again:  {COMMAND} --again {folder}")
    elif not options.folder:
        shutil.rmtree(folder)
    return status


def judged(folder: Path) -> int:
    """Print what was judged, and each violation with the history around it; 1 if there is one."""
    story = Story(read(folder))
    counts: Counter[str] = Counter()
    for violation in violations(story):
        counts[violation.rule] += 1
        if counts[violation.rule] <= SHOWN:
            print(f"VIOLATION {violation.rule}: {violation.text}")
            print(*(f"    {event}" for event in _around(violation, story)), sep="\n")
    outcomes = Counter(call.outcome for call in story.calls.values())
    faults = Counter(str(e.says["fault"]) for e in story.events if e.kind == "fault")
    of_what = {"calls": outcomes, "faults": faults, "judged": story.judged, "violations": counts}
    for what, of in of_what.items():
        print(f"{what}: {', '.join(f'{n} {each}' for each, n in sorted(of.items())) or 'none'}")
    return 1 if counts else 0


def _around(violation: Violation, story: Story) -> list[Event]:
    """The events of the lock and of its calls, and the faults, around a violation."""
    ids = {call.id for call in violation.calls}
    names = {call.name for call in violation.calls}
    whom = {call.process for call in violation.calls} | {""}
    since, until = violation.since - AROUND_SECONDS, violation.at + AROUND_SECONDS
    found: list[Event] = []
    told = None
    for event in story.events:
        concerns = event.call in ids or event.says.get("whom") in whom or event.name in names
        if not concerns or not since <= event.at <= until:
            continue
        before, told = told, event.says.get("queue", told)
        if event.kind != "seen" or before != told:
            found.append(event)
    # What happened to the calls themselves comes first, then what came last.
    found.sort(key=lambda event: (event.call not in ids, -event.at))
    return sorted(found[:LINES], key=lambda event: event.at)


if __name__ == "__main__":
    sys.exit(main())
