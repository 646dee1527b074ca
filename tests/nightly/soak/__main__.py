"""``python -m tests.nightly.soak --minutes 60 [--seed SEED] [--broker redis|rabbitmq]``.

Exits with 0 if no rule was broken, 1 if one was, 3 if the run broke off and says nothing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from benchmarks.tables import SOAK
from tests.nightly.chaos.__main__ import around, told
from tests.nightly.chaos.history import Event, read
from tests.nightly.chaos.rules import Violation
from tests.nightly.chaos.story import Story
from tests.nightly.soak import figures
from tests.nightly.soak.conductor import run
from tests.nightly.soak.rules import violations
from tests.seeds import drawn_seed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.nightly.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", default="", help="that of another run; by default a new one")
    parser.add_argument("--broker", choices=["redis", "rabbitmq"], default="redis")
    parser.add_argument("--folder", type=Path, help="a new one, for the history and the logs")
    parser.add_argument("--again", type=Path, metavar="FOLDER", help="check that history again")
    parser.add_argument(
        "--plant", choices=["ignore", "lose"], help="a fault that the rules have to notice"
    )
    parser.add_argument("--page", type=Path, metavar="PATH", help="put the figures there")
    options = parser.parse_args()
    if options.again:
        return judged(options.again, options.page)
    os.environ |= {"SOAK_PLANT": options.plant} if options.plant else {}
    folder = options.folder or Path(tempfile.mkdtemp(prefix="tasklock-soak-"))
    seed = options.seed or str(drawn_seed())
    try:
        run(folder, options.minutes, seed, options.broker)
        status = judged(folder, options.page)
    except KeyboardInterrupt:
        print("stopped; nothing is left running")
        status = 3
    except Exception:
        traceback.print_exc()
        status = 3
    if status:
        print(f"the seed is {seed}; the history and the logs are in {folder}")
    elif not options.folder:
        shutil.rmtree(folder)
    return status


def judged(folder: Path, page: Path | None) -> int:
    """Print what happened, and each violation with its piece of the history; 1 if there is one. A
    page gets the figures if there is none."""
    before, after = figures.kept(folder)
    print(*figures.table(before, after), sep="\n")
    story = Story(read(folder))
    counts = dict(counted(story))
    status = told(violations(story), counts.items(), partial(piece, story=story))
    if page and not status:
        about = story.events[-1].at - story.events[0].at, counts
        lines = [SOAK, in_words(*about), "", *figures.listed(before, after)]
        before_it = page.read_text().partition(SOAK)[0].rstrip()
        page.write_text("\n".join([before_it, "", *lines, ""]))
    return status


def in_words(seconds: float, counts: Mapping[str, Counter[str]]) -> str:
    """What the figures are of."""
    deeds = counts["deeds"]
    killed, stopped = (
        sum(times for deed, times in deeds.items() if word in deed) for word in ("kill", "stop")
    )
    return (
        f"`make soak`, on {datetime.now(tz=timezone.utc):%Y-%m-%d}, {seconds / 60:.0f} minutes on "
        f"Redis: {counts['runs'].total():,} runs, {counts['rows']['done']:,} rows done, "
        f"{counts['views'].total():,} requests, {killed} kills, {stopped} stops, "
        f"{deeds['pause_server'] + deeds['restart_server']} outages, {deeds['deploy']} deploys. "
        "No rule was broken. In another run, a worker without the package grew as much when its "
        "connections were cut. Before and after:"
    )


def piece(violation: Violation, story: Story) -> list[Event]:
    """Of the history: what concerns the row, or the lock, and the faults around it."""
    if violation.calls:
        return [event for event in around(violation, story) if event.kind != "held"]
    if violation.rule in ("unexpected error", "message lost"):
        near = violation.since - 20, violation.at
        return [e for e in story.events if e.kind == "fault" and near[0] <= e.at <= near[1]][-10:]
    rows = {
        e.says["row"] for e in story.events
        if e.kind == "row" and violation.text.startswith(f"row {e.says['row']} ")
    }  # fmt: skip
    calls = {e.call for e in story.events if e.says.get("row") in rows} - {""}
    return [
        e for e in story.events
        if e.says.get("row") in rows or (e.call in calls and e.kind != "held")
    ]  # fmt: skip


def counted(story: Story) -> Iterator[tuple[str, Counter[str]]]:
    """What happened, and how often."""
    events = story.events
    granted = [e for e in events if e.kind == "granted"]
    yield "runs", Counter(e.says["task"] for e in granted if "task" in e.says)
    yield "of version", Counter(e.says["version"] for e in granted if "version" in e.says)
    yield "plain calls", Counter(c.outcome for c in story.calls.values() if c.wait is not None)
    yield "skipped", Counter(e.says["reason"] for e in events if e.kind == "skipped")
    received = [e for e in events if e.kind == "received"]
    again = len(received) - len({e.says["task_id"] for e in received})
    redelivered = sum(e.says["again"] for e in received)
    messages = {"received": len(received), "that came back": again, "redelivered": redelivered}
    messages |= {kind: sum(e.kind == kind for e in events) for kind in ("asked again", "not sent")}
    yield "messages", Counter(messages)
    yield "rows", Counter(e.says["status"] for e in events if e.kind == "row")
    answers = [e.says["answers"] for e in events if e.kind == "answers"]
    yield "views", Counter(answers[-1] if answers else {})
    yield (
        "leases lost",
        Counter(lease.name.partition(":")[0] for lease in story.calls.values() if lease.lost),
    )
    yield "deeds", Counter(e.says["deed"] for e in events if e.kind == "deed")
    yield "errors in logs", Counter("all" for e in events if e.kind == "error")


if __name__ == "__main__":
    sys.exit(main())
