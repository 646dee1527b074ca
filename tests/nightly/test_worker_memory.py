"""A worker that runs for weeks: locked tasks leave no more behind in it, and in Redis, than plain
ones."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.stage.fixtures import MakeStage
from tests.stage.stage import Stage
from tests.stage.workers import Worker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

MIXED = "tests.nightly.mixed_tasks"
"""It is not imported here: its tasks would be those of each app of this process."""
ROWS = 20
"""guarded rows, 1 and up"""
WARM, CALLS, AT_ONCE = 4_000, 14_500, 1_500
"""calls before the first look, those between both, and how many are in the queue together"""
MOST_BYTES = 3_000_000
"""that locked tasks may leave in the children, and in the main process, beyond what plain ones
leave: 200 a call"""
SHARED_BYTES = 20_000
"""of the keys that all locks share: an index, and the last fences"""


class Used(NamedTuple):
    """What the main process and the children of a worker have, each as the kernel counts it."""

    memory: int
    """bytes that are not those of a file"""
    descriptors: int
    threads: int


def used_by(pid: int) -> Used:
    status = Path(f"/proc/{pid}/status").read_text()
    kibibytes = re.findall(r"^(?:RssAnon|VmSwap):\s+(\d+) kB", status, re.MULTILINE)
    return Used(
        sum(map(int, kibibytes)) * 1024,
        len(list(Path(f"/proc/{pid}/fd").iterdir())),
        len(list(Path(f"/proc/{pid}/task").iterdir())),
    )


def look(worker: Worker) -> dict[int, Used]:
    """By pid: the main process first, then its children."""
    return {pid: used_by(pid) for pid in [worker.pid, *worker.children]}


def run_calls(stage: Stage, kind: str, first: int, calls: int) -> None:
    """Have a worker run so many calls, and wait until nothing of them is left to do."""
    for at in range(first, first + calls, AT_ONCE):
        send = f"mixed.send(mixed.{kind}, {ROWS}, {at}, {min(AT_ONCE, first + calls - at)})"
        stage.script(f"import {MIXED} as mixed; {send}")
        stage.assert_settled(120)


def lasting_keys(stage: Stage) -> dict[str, int]:
    """The keys of the locks' Redis that do not end by themselves, each with its bytes."""
    keys = [key for key in stage.redis.scan_iter() if stage.redis.ttl(key) == -1]
    return {key.decode(): stage.redis.memory_usage(key, samples=0) or 0 for key in keys}


def grown(stage: Stage, kind: str) -> tuple[Used, Used]:
    """How much more the main process, and its children together, have after the calls."""
    worker = stage.worker(concurrency=2, conf={"imports": [MIXED]})
    run_calls(stage, kind, 0, WARM)
    before = look(worker)
    run_calls(stage, kind, WARM, CALLS)
    after = look(worker)
    assert after.keys() == before.keys(), "a child was replaced"
    main, *children = [
        Used(*(now - then for now, then in zip(after[pid], before[pid], strict=True)))
        for pid in after
    ]
    worker.stop(signal.SIGTERM)
    return main, Used(*map(sum, zip(*children, strict=True)))


def test_locked_tasks_leave_nothing_behind(make_stage: MakeStage) -> None:
    stage = make_stage()
    for _ in range(ROWS):
        stage.job()

    # Given what a worker has more after many calls of a plain task
    plain_main, plain_children = grown(stage, "PLAIN")

    # When another one has run as many calls of tasks with locks of all kinds
    main, children = grown(stage, "LOCKED")

    said = f"{main=} {children=} {plain_main=} {plain_children=}"
    print(said)

    # I expect no more memory to be kept than by the plain task, but for what varies
    assert main.memory <= plain_main.memory + MOST_BYTES, said
    assert children.memory <= plain_children.memory + MOST_BYTES, said

    # And no descriptor and no thread more
    assert max(main.descriptors, children.descriptors, main.threads, children.threads) <= 0, said

    # And nothing in Redis that does not end by itself, but the two keys that all locks share
    lasting = lasting_keys(stage)
    assert {key.rpartition(":")[2] for key in lasting} <= {"lock index", "lock fences"}
    assert sum(lasting.values()) <= SHARED_BYTES, lasting
