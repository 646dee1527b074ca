"""Jobs that are reserved for a message in the queue (``unique_while``): listed and cleared."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

from .._values.arguments import checked_name
from ..stores import stores
from ..stores.base import LISTED_KEY_PREFIX, BaseStore, Reserved
from .clearing import Outcome
from .logs import log_reservation_cleared

__all__ = [
    "QUEUED_ORDERS",
    "QueuedJob",
    "clear_job",
    "in_queued_order",
    "key_of",
    "lookers",
    "queued_jobs",
    "without_message",
]

lookers: list[Callable[[str, set[str]], set[str]]] = []
"""functions that know messages; each gets a task and task ids, and returns the ids that are known
to be in no queue"""


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """One reservation: calls of ``task`` under the lock ``name`` are duplicates of the message
    ``task_id``, until that one starts or ``ttl`` seconds are over (None: for ever)."""

    task: str
    name: str
    task_id: str
    ttl: float | None
    store: str

    def as_json(self) -> dict[str, Any]:
        """The fields as JSON-able values."""
        return asdict(self)


def key_of(task: str, name: str) -> str:
    """Return the key of a job's reservation in its store."""
    return f"{LISTED_KEY_PREFIX}{task} {name}"


def queued_jobs(
    store: BaseStore, prefix: str = "", task: str | None = None, limit: int | None = None
) -> list[QueuedJob]:
    """Return the jobs that are reserved in a store, the soonest to end first.

    Only those whose locks' names begin with ``prefix`` and whose task matches ``task`` (with * and
    ?), at most ``limit``. Raises `ListingNotSupported` and `StoreUnavailable`.
    """
    everything = not prefix and task is None
    found = store.reservations(limit=limit if everything else None)
    jobs = [job for job in map(_parser(store.alias), found) if job is not None]
    return [
        job
        for job in jobs
        if job.name.startswith(prefix) and (task is None or fnmatchcase(job.task, task))
    ][:limit]


def clear_job(job: QueuedJob, *, by: str) -> Outcome:
    """End the reservation if it is still the one that was seen; ``by`` says for the log who did it.

    A message in the queue stays there, and the next call is not a duplicate of it. Returns the
    outcome. Raises `StoreUnavailable`.
    """
    store, key = stores[job.store], key_of(job.task, job.name)
    if store.unreserve(key, job.task_id):
        log_reservation_cleared(job.name, job.store, job.task, job.task_id, by)
        return Outcome.CLEARED
    return Outcome.NOT_LOCKED if store.get_note(key) is None else Outcome.CHANGED_HANDS


def without_message(jobs: Iterable[QueuedJob]) -> list[QueuedJob]:
    """Return the jobs whose message is known to be in no queue and with no worker."""
    by_task: dict[str, list[QueuedJob]] = {}
    for job in jobs:
        by_task.setdefault(job.task, []).append(job)
    return [
        job
        for task, some in by_task.items()
        for missing in [_missing(task, {job.task_id for job in some})]
        for job in some
        if job.task_id in missing
    ]


def _missing(task: str, task_ids: set[str]) -> set[str]:
    return set().union(*(look(task, task_ids) for look in lookers))


def in_queued_order(jobs: list[QueuedJob], order: str) -> list[QueuedJob]:
    """Return the jobs in one of `QUEUED_ORDERS`; with a ``-`` in the reverse order."""
    by: Callable[[QueuedJob], Any] = _QUEUED_SORT_KEYS[order.removeprefix("-")]
    return sorted(jobs, key=by, reverse=order.startswith("-"))


QUEUED_ORDERS = ("ttl", "name", "-ttl", "-name")
_QUEUED_SORT_KEYS: dict[str, Callable[[QueuedJob], Any]] = {
    "ttl": lambda job: (job.ttl is None, job.ttl or 0.0),
    "name": lambda job: job.name,
}


def _parser(alias: str) -> Callable[[Reserved], QueuedJob | None]:
    def parsed(reserved: Reserved) -> QueuedJob | None:
        """None for what was not written by us."""
        # A task's name may hold spaces, a lock's name does not.
        task, _, name = reserved.key.removeprefix(LISTED_KEY_PREFIX).rpartition(" ")
        try:
            checked_name(name)
        except ValueError:
            return None
        return QueuedJob(task, name, reserved.text, reserved.ttl, alias) if task else None

    return parsed
