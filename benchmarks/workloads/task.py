"""A task that does nothing, sent and run by a real worker: what the lock around it adds, and what
its run leaves in Redis."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from django.core.management import call_command

from ..bench import Bench, until
from ..rounds import Spread, interleaved
from ..tables import Cell, Table
from ..worker import Worker, done, worker

__all__ = ["run"]

PLAIN = "a plain task"
# What the pool child's share is compared with, with a guard and without.
RECIPES = {
    "two updates in cache.add and delete": "two updates in cache.add and delete",
    "django-tasklock, guarded": "two updates in cache.add and delete",
}
RECIPE = "cache.add and delete"
# How often the tasks run for one figure of Redis's memory, which other things change too.
RUNS_OF_MEMORY = 5


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
        calls = {name: _calls(bench, task, tasks) for name, task in TASKS.items()}
        left = {name: _left(bench, work, tasks) for name, work in works.items()}
        measured = interleaved(works, PLAIN, rounds)
    rows: list[dict[str, Cell]] = []
    for name, (worker_cpu, child_cpu, sent) in measured.items():
        recipe = measured[RECIPES.get(name, RECIPE)][1].values
        beside = [own / its for own, its in zip(child_cpu.values, recipe, strict=True)]
        rows.append(
            {
                "": name,
                "worker's CPU": worker_cpu.ratio,
                "child's CPU": Spread.of(beside),
                "sender's CPU": sent.ratio,
                "calls": round(calls[name]),
                "memory, bytes": round(left[name]),
            }
        )
    note = (
        f"{rounds} rounds of {tasks} tasks. CPU is over a plain task; the pool child's over "
        "`cache.add` and `delete`, or these with two updates. Calls: of Python functions in the "
        "child. Memory: what Redis keeps."
    )
    return Table("A no-op Celery task", note, rows)


def _calls(bench: Bench, task: Any, tasks: int) -> float:
    """How many Python functions one task calls in the pool child."""
    from ..site.celery import count_calls, say_calls
    from ..site.models import Job

    Job.objects.update(status="ready")
    path = bench.folder / f"calls-{time.monotonic_ns()}"
    count_calls.delay()
    for number in range(tasks):
        task.delay(number)
    say_calls.delay(str(path))
    until(lambda: path.exists() and path.read_text(), 300)
    return int(path.read_text()) / tasks


def _left(bench: Bench, work: Callable[[], object], tasks: int) -> float:
    """How many bytes of Redis one run has taken and not given back."""
    before = bench.redis.info("memory")["used_memory"]
    for _ in range(RUNS_OF_MEMORY):
        work()
    return float(bench.redis.info("memory")["used_memory"] - before) / (RUNS_OF_MEMORY * tasks)


def _batch(bench: Bench, started: Worker, task: Any, tasks: int) -> tuple[float, ...]:
    """Of one task: processor seconds of the worker, of its child, and of the sender."""
    from ..site.models import Job

    Job.objects.update(status="ready")
    done(bench, 60)
    used, began = started.cpu(), time.process_time()
    for number in range(tasks):
        task.delay(number)
    sent = time.process_time() - began
    done(bench, 300)
    worker_cpu, child_cpu = map(operator.sub, started.cpu(), used)
    return worker_cpu / tasks, child_cpu / tasks, sent / tasks
