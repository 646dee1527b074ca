"""Reservations (``unique_while``) whose message is gone: it has ended, or it is nowhere."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from .._compat.celery import count_messages, delays_natively, queue_of_calls
from ..operators.reservations import QueuedJob
from .loading import locked_tasks
from .unique import has_ended

# How long the broker and the workers may take to say where messages are: three questions to the
# workers, each for one second.
SEEK_SECONDS = 5.0


def gone_messages(jobs: Sequence[QueuedJob]) -> Iterator[tuple[QueuedJob, bool]]:
    """Yield each job whose message has ended, with True, or is in no known queue and with no worker
    that answers, with False. What is not known is not gone."""
    tasks = locked_tasks()
    sought: dict[Any, list[QueuedJob]] = {}
    silent: set[Any] = set()  # The result backend of these apps: each question costs a timeout.
    for job in jobs:
        if (task := tasks.get(job.task)) is None:
            continue
        ended = task.app not in silent and has_ended(task, job.task_id)
        silent |= {task.app} if ended is None else set()
        if ended:
            yield job, True
        else:
            sought.setdefault(task.app, []).append(job)
    for app, some in sought.items():
        nowhere: set[str] = set()
        with suppress(Exception):  # A router of the project's.
            queues = {queue_of_calls(tasks[job.task]) for job in some}
            _seek_in_time(app, {job.task_id for job in some}, queues, nowhere)
        yield from ((job, False) for job in some if job.task_id in nowhere)


def _seek_in_time(*where: Any) -> None:
    """`_seek` for `SEEK_SECONDS` at most, in a thread, since a broker may never answer: no exit
    waits for a daemon."""
    seeker = threading.Thread(target=_seek, args=where, daemon=True)
    seeker.start()
    seeker.join(SEEK_SECONDS)


def _seek(app: Any, ids: set[str], queues: set[str], nowhere: set[str]) -> None:
    """Add to ``nowhere`` those of some messages that are in no known queue, and with no worker.
    None of them where the broker keeps delayed messages, or no worker answers."""
    with suppress(Exception):  # A broker that does not answer, or cannot count.
        if delays_natively(app) or count_messages(app, queues):
            return
        workers = app.control.inspect(timeout=1.0)
        answers = workers.query_task(*ids) or {}
        ids = ids.difference(*answers.values()) if answers else set()
        if ids:  # Before 5.7 Celery shows here alone what waits in a worker for its ETA.
            later = [each for answer in (workers.scheduled() or {}).values() for each in answer]
            ids -= {each["request"]["id"] for each in later}
        if ids:  # Looked at once more: a message on its way may be in neither.
            read = workers.active_queues() or {}
            queues |= {queue["name"] for each in read.values() for queue in each}
            nowhere |= set() if count_messages(app, queues) else ids
