"""What is held, and what is reserved, as operators look at it; and how they clear what they saw.

A lease is cleared as it was seen, and never the next one of the same lock. A job is reserved for a
message in the queue (``unique_while``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any

from .._engine.acquiring import clear
from .._engine.service import LockService
from .._values.arguments import base_of, is_name
from .._values.lock_info import LockInfo
from ..exceptions import ListingNotSupported
from ..stores import stores
from ..stores.base import BaseStore
from ..stores.records import LISTED_KEY_PREFIX, key_of
from .logs import log_reservation_cleared

MOST_PROBED = 100  # permits that are looked for on a store that cannot list


class Outcome(Enum):
    """The result of clearing one lease. The value is the word that the command prints."""

    CLEARED = "cleared"
    CHANGED_HANDS = "changed hands"
    NOT_LOCKED = "not locked"


def held_permits(service: LockService, name: str) -> list[LockInfo]:
    """Return the held permits of ``name`` (``slots=N``), by number. Raises `StoreUnavailable`."""
    try:
        found = service.list(f"{name}#")
    except ListingNotSupported:
        names = [f"{name}#{slot}" for slot in range(1, MOST_PROBED + 1)]
        found = [info for info in service.store.find_many(names) if info is not None]
    held = [info for info in found if info.slot and base_of(info.name, info.owner.slots) == name]
    return sorted(held, key=lambda info: info.slot or 0)


def held_of(locks: Iterable[tuple[str, str]]) -> dict[tuple[str, str], LockInfo]:
    """Return what holds each of ``locks``, an alias of a store and a name, that is held.

    Raises `StoreUnavailable`, and `InvalidLockConfig` for an alias that does not exist.
    """
    by_store: dict[str, dict[str, None]] = {}
    for alias, name in locks:
        by_store.setdefault(alias, {})[name] = None
    return {
        (alias, name): info
        for alias, names in by_store.items()
        for name, info in zip(names, stores[alias].find_many(list(names)), strict=True)
        if info is not None
    }


def digest_of(info: LockInfo) -> str:
    """Return what tells a lease from all others, but proves nothing and clears nothing: for a page
    that a user sees who may only look. Of a key that other code set it tells the value."""
    seen = info.digest or "" if info.token is None else info.token
    return hashlib.sha256(seen.encode()).hexdigest()[:32]


def clear_seen(info: LockInfo, *, by: str) -> Outcome:
    """Clear the lock if the lease that was seen, ``info``, still has it; return what became of it.

    ``by`` says for the log and the history who clears. Raises `StoreUnavailable`: the lock may be
    cleared.
    """
    store = stores[info.store]
    # Without both, whatever holds the lock would be cleared.
    is_known = bool(info.token or info.digest)
    if is_known and clear(store, info.name, info.token, info.digest, info, by=by):
        return Outcome.CLEARED
    return Outcome.NOT_LOCKED if store.find(info.name) is None else Outcome.CHANGED_HANDS


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
