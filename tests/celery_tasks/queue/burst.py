"""Many processes that send one job at the same time.

``python -m tests.celery_tasks.queue.burst PROCESSES CALLS JOB TASK...`` sends each of the tasks so
many times, in every way there is, and prints a JSON object: for each task the ids that came back.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from typing import Any

import django
from django.db import transaction

django.setup()

import tests.celery_tasks.queue.tasks  # noqa: E402, F401
from tests.hard_cases.app import app  # noqa: E402

WAYS = (
    lambda task, args: task.delay(*args),
    lambda task, args: task.apply_async(args),
    lambda task, args: task.s(*args).delay(),
    lambda task, args: task.s(*args).apply_async(countdown=0),
    lambda task, args: task.apply_async(args, expires=3600),
)
_together: Any = None


def send(work: tuple[list[str], list[Any], int]) -> dict[str, list[str]]:
    """What one of the processes does."""
    names, args, calls = work
    _together.wait(60)
    ids: dict[str, list[str]] = {name: [] for name in names}
    for number in range(calls):
        for name in names:
            task: Any = app.tasks[name]
            ids[name].append(WAYS[number % len(WAYS)](task, args).id)
            if number % 10 == 0:
                with transaction.atomic():
                    task.delay_on_commit(*args)
                    transaction.set_rollback(number % 20 == 0)
    return ids


def burst(processes: int, calls: int, args: list[Any], names: list[str]) -> dict[str, list[str]]:
    """All that the processes were given, as sorted lists of different ids."""
    global _together
    app.finalize()
    context = multiprocessing.get_context("fork")
    _together = context.Barrier(processes)
    share = -(-calls // processes)
    with context.Pool(processes) as pool:
        found = pool.map(send, [(names, args, share)] * processes, chunksize=1)
    return {name: sorted({one for ids in found for one in ids[name]}) for name in names}


if __name__ == "__main__":
    processes, calls, args, *names = sys.argv[1:]
    print(json.dumps(burst(int(processes), int(calls), json.loads(args), names)))
