"""A no-op task on workers that were just started: what the first hundreds of runs cost.

`celery_task` measures one worker that has run thousands of tasks, of all kinds and in batches: what
a child does once is over by then, and what a lock leaves for later counts as another column's. Here
each round of each column has a worker of its own, which gets one message at a time.
"""

from __future__ import annotations

import time
from functools import partial
from typing import NamedTuple

from django.core.management import call_command

from ..bench import Bench
from ..rounds import Spread, turned
from ..tables import Cell, Table
from ..workers import new_worker, until

__all__ = ["run"]

PLAIN = "plain task"
PAIRS = {
    PLAIN: PLAIN,
    "cache.add + delete": PLAIN,
    "django-tasklock": PLAIN,
    "plain task, acks_late": "plain task, acks_late",
    "django-tasklock, acks_late": "plain task, acks_late",
    "two updates in cache.add + delete": PLAIN,
    "django-tasklock, guarded": PLAIN,
}
"""each column, and the plain task beside it"""


SETTLE_SECONDS = 0.3
LOCK_TTL = "2"
"""seconds: what is planned for the renewal of a lease, and is over by then, comes due in the run"""


class Kind(NamedTuple):
    """How the workers are started."""

    slug: str
    title: str
    results: bool
    loglevel: str
    concurrency: int
    tasks: int


KINDS = (
    Kind("quiet", "without results, no line a task", False, "WARNING", 1, 500),
    Kind("usual", "results in Redis, a line a task", True, "INFO", 2, 500),
    Kind("short", "results in Redis, a line a task, short", True, "INFO", 1, 50),
)


class Spent(NamedTuple):
    """Processor seconds a task."""

    main: float
    children: float

    @property
    def both(self) -> float:
        return self.main + self.children


def run(bench: Bench) -> list[Table]:
    call_command("migrate", run_syncdb=True, verbosity=0)
    return [_table(bench, kind) for kind in bench.pick(KINDS[:1], KINDS)]


def _table(bench: Bench, kind: Kind) -> Table:
    rounds = bench.pick(1, 5)
    spent: dict[str, list[Spent]] = {name: [] for name in PAIRS}
    for turn in range(rounds):
        for name in turned([*PAIRS], turn):
            spent[name].append(_measure(bench, name, kind))
    rows: list[dict[str, Cell]] = []
    for name, plain in PAIRS.items():
        pairs = zip(spent[name], spent[plain], strict=True)
        rows.append(
            {
                "column": name,
                "main ms a task": Spread.of([each.main * 1000 for each in spent[name]]),
                "child ms a task": Spread.of([each.children * 1000 for each in spent[name]]),
                "over the plain task": Spread.of([ours.both / floor.both for ours, floor in pairs]),
            }
        )
    tasks = bench.pick(5, kind.tasks)
    note = f"{rounds} rounds, each with a new worker for each column, of {tasks} tasks"
    return Table(
        f"fresh-{kind.slug}", f"New workers, {kind.title}", rows, "over the plain task", [note]
    )


def _measure(bench: Bench, name: str, kind: Kind) -> Spent:
    from ..site.celery import TASKS, app
    from ..site.models import Job

    tasks = bench.pick(5, kind.tasks)
    bench.redis.flushall()
    Job.objects.all().delete()
    Job.objects.bulk_create([Job(pk=number) for number in range(tasks)])
    more = {"BENCHMARK_LOCK_TTL": LOCK_TTL}
    if kind.results:
        more["BENCHMARK_RESULTS"] = bench.url
    with new_worker(bench, kind.loglevel, kind.concurrency, more) as started:
        time.sleep(SETTLE_SECONDS)
        main, children = started.main_cpu(), started.children_cpu()
        for number in range(tasks):
            TASKS[name].apply_async((number,), ignore_result=not kind.results)
            until(partial(_is_taken, bench, app.conf.task_default_queue), 60)
        time.sleep(SETTLE_SECONDS)  # What is acknowledged early may run still.
        if "guarded" in name:
            until(lambda: not Job.objects.exclude(status="done").exists(), 60)
        return Spent(
            (started.main_cpu() - main) / tasks, (started.children_cpu() - children) / tasks
        )


def _is_taken(bench: Bench, queue: str) -> bool:
    """Whether the broker has no message, and the worker has acknowledged all."""
    return not bench.redis.exists(queue, "unacked")
