"""What a locked task adds to ``delay()``: the processor time of the sender."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from ..bench import Bench
from ..rounds import interleaved
from ..tables import Cell, Table

__all__ = ["run"]

PLAIN = "plain task"
OF_THESE = (PLAIN, "django-tasklock", "django-tasklock, guarded")


def run(bench: Bench) -> list[Table]:
    from ..site.celery import PEERS, TASKS, app

    sent, rounds = bench.pick((20, 1), (500, 21))
    tasks = {name: TASKS[name] for name in (*OF_THESE, *PEERS)}
    send = partial(_send, bench, app.conf.task_default_queue)
    for task in tasks.values():
        send(task, 20)
    measured = interleaved(
        partial(send, tasks[PLAIN], sent),
        {name: partial(send, task, sent) for name, task in tasks.items()},
        rounds,
    )
    rows: list[dict[str, Cell]] = [
        {"column": name, "us a message": of.seconds.times(1e6), "over the plain task": of.ratio}
        for name, of in measured.items()
    ]
    note = f"{rounds} rounds of {sent} messages; those of peers reserve what the worker would lock"
    return [Table("sending", "Sending a task", rows, "over the plain task", [note])]


def _send(bench: Bench, queue: str, task: Any, number: int) -> float:
    bench.redis.flushall()
    began = time.process_time()
    for each in range(number):
        task.delay(each)
    seconds = (time.process_time() - began) / number
    bench.redis.delete(queue)
    return max(seconds, 1e-9)
