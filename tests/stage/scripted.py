"""A task body that follows a script: what to do at the first run of a message, at the second, …

A script is a list of steps, one a run; the last one serves for all later runs. A step is a dict:

* ``kind`` and ``seconds``: what to be busy with: "sleep", "child", "compute" or "stuck";
* ``gate``: a file to wait for instead;
* ``times``: how often to be busy so;
* ``check``: assert the lease each time when the busy part is over;
* ``then``: "return" (default), "retry", "retry on" (and go on to the end), "raise", "reject" (back
  to the queue), "exit" (`sys.exit`), "kill" (SIGKILL to this process) or "kill main" (SIGKILL to
  the worker's main process).
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from celery.exceptions import Reject

from tests.stage import ledger
from tests.stage.workers import gone
from tests.waiting import until

Step = dict[str, Any]
PROCESSES = os.readlink("/proc/self/ns/pid")
"""within which a number means one process"""
GATE_SECONDS = 120.0  # seconds after which a body stops waiting for its gate


def sleep(seconds: float) -> None:
    """Wait, with the interpreter's lock given away."""
    time.sleep(seconds)


def child(seconds: float) -> None:
    subprocess.run(
        [sys.executable, "-S", "-E", "-c", f"import time; time.sleep({seconds})"], check=True
    )


def compute(seconds: float) -> None:
    """Keep the interpreter busy; other threads get their turns."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(10_000))


def stuck(seconds: float) -> None:
    """A C call that keeps the interpreter's lock: no other thread runs, and signals wait until it
    is over, as they do for C code that goes on after an interruption."""
    library = ctypes.PyDLL(None)
    request = (ctypes.c_long * 2)(int(seconds), int(seconds % 1 * 1e9))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        library.nanosleep(request, None)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


KINDS: tuple[Callable[[float], None], ...] = (sleep, child, compute, stuck)
BODIES = {kind.__name__: kind for kind in KINDS}


class Boom(Exception):
    """What a script's "raise" raises."""


def perform(task: Any, job: int, script: list[Step] | None = None) -> str:
    """Run one step of the script; returns ``"done:<job>"``."""
    request = task.request
    book = ledger.here()
    before = book.entries("start", job=job, task_id=request.id)
    step = script[min(len(before), len(script) - 1)] if script else {}
    run = uuid.uuid4().hex
    lease = getattr(task, "lease", None)
    ledger.write(
        "start", run=run, job=job, task=task.name, task_id=request.id, retries=request.retries,
        fence=getattr(lease, "fence", None), slot=getattr(lease, "slot", None),
        planned=step.get("seconds"),
        mark=getattr(request, "trace_mark", None), worker=request.hostname, processes=PROCESSES,
        beside=[run.start.run for run in book.runs(job=job) if lives(run)],
    )  # fmt: skip
    over = "broke"
    try:
        for _ in range(step.get("times", 1)):
            work(step)
            if step.get("check"):
                task.lease.assert_held()
        follow(task, step.get("then", "return"))
        over = "end"
    finally:
        ledger.write(over, run=run, job=job, task_id=request.id, held=getattr(lease, "held", None))
    return f"done:{job}"


def lives(run: ledger.Run) -> bool:
    """Whether it may still do something, as far as this process can tell."""
    said_nothing = run.end == float("inf") and run.start.processes == PROCESSES
    return said_nothing and not gone(run.start.pid)


def work(step: Step) -> None:
    if "gate" in step:
        until(Path(step["gate"]).exists, f"the gate {step['gate']}", GATE_SECONDS)
    else:
        BODIES[step.get("kind", "sleep")](step.get("seconds", 0.05))


def follow(task: Any, then: str) -> None:
    match then:
        case "retry":
            raise task.retry(countdown=0)
        case "retry on":
            task.retry(countdown=0, throw=False)
        case "raise":
            raise Boom("as the script says")
        case "reject":
            raise Reject("as the script says", requeue=True)
        case "exit":
            sys.exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "kill main":
            os.kill(os.getppid(), signal.SIGKILL)
            signal.pause()
