"""A task that does nothing, on a Redis broker: what the lock around it adds."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.core.management import call_command

from ..bench import Bench
from ..counting import Counter
from ..rounds import Paired, Spread, interleaved
from ..tables import Cell, Table
from ..workers import Worker, done, worker

__all__ = ["run"]

PLAIN_TASK = "plain task"


def run(bench: Bench) -> list[Table]:
    from ..site.celery import TASKS
    from ..site.models import Job

    call_command("migrate", run_syncdb=True, verbosity=0)
    tasks, rounds = bench.pick((20, 1), (1000, 9))
    Job.objects.bulk_create([Job(pk=number) for number in range(tasks)], ignore_conflicts=True)
    trips: dict[str, Spread] = {}
    with worker(bench) as started:
        for name, task in TASKS.items():
            _batch(bench, started, task, 5)
            trips[name] = Spread.of([_trips(bench, task, tasks) for _ in range(bench.pick(1, 3))])
        measured = interleaved(
            partial(_batch, bench, started, TASKS[PLAIN_TASK], tasks),
            {name: partial(_batch, bench, started, task, tasks) for name, task in TASKS.items()},
            rounds,
        )
    rows = [_row(name, trips[name], trips[PLAIN_TASK], paired) for name, paired in measured.items()]
    note = f"{rounds} rounds of {tasks} tasks; CPU is that of the worker with its pool child"
    return [Table("celery-task", "A no-op Celery task", rows, "over the plain task", [note])]


def _row(name: str, trips: Spread, plain: Spread, measured: Paired) -> dict[str, Cell]:
    return {
        "column": name,
        "round trips, sent and run": trips.median,
        "more than plain": trips.median - plain.median,
        "CPU ms a task": measured.seconds.times(1000),
        "over the plain task": measured.ratio,
    }


def _trips(bench: Bench, task: Any, tasks: int) -> float:
    """Round trips a task, from sending it to its acknowledgement, locks at both ends included."""
    done(bench, 60)
    counter = Counter(bench.redis)
    _send(task, tasks)
    done(bench, 300)
    return counter.counts().trips / tasks


def _batch(bench: Bench, started: Worker, task: Any, tasks: int) -> float:
    """The worker's processor seconds a task."""
    done(bench, 60)
    before = started.cpu()
    _send(task, tasks)
    done(bench, 300)
    return max(started.cpu() - before, 1e-9) / tasks


def _send(task: Any, tasks: int) -> None:
    from ..site.models import Job

    Job.objects.update(status="ready")
    for number in range(tasks):
        task.delay(number)
