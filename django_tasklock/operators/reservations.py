"""Jobs that are reserved for a message in the queue (``unique_while``): listed and cleared."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

from .._values.arguments import is_name
from ..stores import stores
from ..stores.base import BaseStore
from ..stores.records import LISTED_KEY_PREFIX, key_of
from .clearing import Outcome
from .logs import log_reservation_cleared


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


def queued_jobs(
    store: BaseStore, prefix: str = "", task: str | None = None, limit: int | None = None
) -> list[QueuedJob]:
    """Return the jobs that are reserved in a store, the soonest to end first.

    Only those whose locks' names begin with ``prefix`` and whose task matches ``task`` (with * and
    ?), at most ``limit``. Raises `ListingNotSupported` and `StoreUnavailable`.
    """
    jobs = []
    for reserved in store.reservations():
        # A task's name may hold spaces, a lock's name does not.
        of, _, name = reserved.key.removeprefix(LISTED_KEY_PREFIX).rpartition(" ")
        is_ours = bool(of) and is_name(name)
        if is_ours and name.startswith(prefix) and fnmatchcase(of, task or "*"):
            jobs.append(QueuedJob(of, name, reserved.text, reserved.ttl, store.alias))
    return jobs[:limit]


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
