"""A task that does nothing, sent and run by a real worker: what the lock around it adds."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from django.core.management import call_command

from ..bench import Bench
from ..rounds import Paired, interleaved
from ..tables import Cell, Table
from ..worker import Worker, done, worker

__all__ = ["run"]

PLAIN = "a plain task"


def run(bench: Bench) -> Table:
    from ..site.celery import TASKS
    from ..site.models import Job

    tasks, rounds = bench.pick((20, 1), (300, 7))
    call_command("migrate", run_syncdb=True, verbosity=0)
    Job.objects.bulk_create([Job(pk=number) for number in range(tasks)])
    with worker(bench) as started:
        works = {name: partial(_batch, bench, started, task, tasks) for name, task in TASKS.items()}
        for work in works.values():
            work()
        trips = {name: work()[2] for name, work in works.items()}
        measured = interleaved(works, PLAIN, rounds)
    rows = [_row(name, trips[name] - trips[PLAIN], *paired) for name, paired in measured.items()]
    note = (
        f"{rounds} rounds of {tasks} tasks on a Redis broker. The worker's CPU includes its pool "
        "child's; both are over a plain task. The last two also change a row's status."
    )
    return Table("A no-op Celery task", note, rows)


def _row(
    name: str, more_trips: float, run: Paired, sent: Paired, _trips: Paired
) -> dict[str, Cell]:
    return {
        "": name,
        "round trips more": more_trips,
        "worker's CPU": run.ratio,
        "sender's CPU": sent.ratio,
    }


def _batch(bench: Bench, started: Worker, task: Any, tasks: int) -> tuple[float, float, float]:
    """Of one task: processor seconds of the worker and of the sender, and all round trips."""
    from ..site.models import Job

    Job.objects.update(status="ready")
    done(bench, 60)
    used, before, began = started.cpu(), bench.counts(), time.process_time()
    for number in range(tasks):
        task.delay(number)
    sent = time.process_time() - began
    done(bench, 300)
    trips = bench.counts().since(before).trips
    return (started.cpu() - used) / tasks, sent / tasks, trips / tasks
