"""What is wrong with the work and its stores: the diagnosis behind ``manage.py locks doctor``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

from django.conf import settings
from django.core import checks

from ..exceptions import ListingNotSupported, StoreUnavailable
from ..stores import stores
from ..stores.base import BaseStore
from .gone_owners import Orphan, gone_owners
from .guarded import label_of
from .hints import command_line
from .lost_work import (
    LOOK_PAUSE_SECONDS,
    LOOKS_PER_ROW,
    Sent,
    lost_rows,
    requeue,
    works_by_rows,
)
from .problems import Problem
from .reservations import queued_jobs, without_message
from .wording import KEYS_SHARED, NO_MESSAGE, NO_TTL, OWNER_GONE, OWNER_GONE_WITH_ROW
from .work import CeleryMissing

__all__ = ["Problem", "Sent", "diagnose", "requeue"]

MAX_RESERVATIONS = 1000
"""reservations of a store that are looked at, the soonest to end first"""


def diagnose(aliases: Sequence[str] | None = None) -> Iterator[Problem]:
    """Yield all that is wrong with the work and the stores behind ``aliases`` (None: all stores).

    A store that does not answer is a problem too, and the others are still asked. Raises
    `InvalidLockConfig` for an alias that does not exist.
    """
    chosen = list(stores) if aliases is None else list(aliases)
    parts = [_settings()]
    try:
        all_work = works_by_rows()
    except ImportError as error:
        parts.append(_no_tasks(error))
    else:
        parts += [
            lost_rows(same_rows)
            for same_rows in all_work
            if any(work.store in chosen for work in same_rows)
        ]
    parts += [look(stores[alias]) for alias in chosen for look in (_locks, _reservations, _server)]
    silent: set[str] = set()
    for part in parts:
        try:
            yield from part
        except StoreUnavailable as error:
            if error.store not in silent:
                why = f"does not answer: {error.reason}"
                yield Problem("server", error.store, why, error=error)
            silent.add(error.store)


def _no_tasks(error: ImportError) -> Iterator[Problem]:
    """A site without Celery has no tasks, and that is nothing wrong."""
    missing = isinstance(error, CeleryMissing)
    message = str(error) if missing else f"a module with tasks cannot be imported: {error}"
    yield Problem("unknown", "tasks", message, serious=not missing, error=error)


def _locks(store: BaseStore) -> Iterator[Problem]:
    try:
        for orphan in gone_owners(store):
            yield _owner_gone(store, orphan)
    except ListingNotSupported as error:
        yield Problem("server", store.alias, str(error), serious=False, error=error)
        return
    try:
        for info in store.endless():
            command = command_line("clear", info.name, store=store.alias)
            yield Problem.worded("no ttl", info.name, NO_TTL, {"command": command})
    except ListingNotSupported:
        # A store without this method has no keys of other code.
        if type(store).scan is not BaseStore.scan:
            yield Problem.worded("server", store.alias, KEYS_SHARED, {}, serious=False)


def _owner_gone(store: BaseStore, orphan: Orphan) -> Problem:
    """While the lock stands its row is not reported as lost, so this names the row as well."""
    info, row, status = orphan
    command = command_line("clear", info.name, store=store.alias)
    wording, values = OWNER_GONE, {"owner": info.owner, "command": command}
    if row is not None:
        requeue_command = command_line("doctor", store=store.alias, options="--requeue")
        wording = OWNER_GONE_WITH_ROW
        values |= {"row": label_of(row), "status": status, "requeue": requeue_command}
    # Without takeover, a lock is meant to outlast its process.
    return Problem.worded("owner gone", info.name, wording, values, serious=store.takeover)


def _reservations(store: BaseStore) -> Iterator[Problem]:
    """Reservations without a message.

    A message that is being sent, or that a worker has taken and not begun, cannot be seen for a
    moment. So it must be missing several times.
    """
    with suppress(ListingNotSupported):  # `_locks` reports it.
        jobs = queued_jobs(store, limit=MAX_RESERVATIONS)
        for look in range(LOOKS_PER_ROW):
            if jobs and look:
                time.sleep(LOOK_PAUSE_SECONDS)
            jobs = without_message(jobs)
        still = {(job.task, job.name, job.task_id) for job in queued_jobs(store)} if jobs else ()
        for job in jobs:
            if (job.task, job.name, job.task_id) in still:
                command = command_line("clear", job.name, store=store.alias, options="--queued")
                values = {"task": job.task, "task_id": job.task_id, "command": command}
                # Not serious: the call may be waiting for its broker.
                yield Problem.worded("no message", job.name, NO_MESSAGE, values, serious=False)


def _settings() -> Iterator[Problem]:
    for message in checks.run_checks(tags=["tasklock"]):
        if message.level >= checks.WARNING and not message.is_silenced():
            yield Problem("settings", str(message.id), str(message.msg), message.hint or "")


def _server(store: BaseStore) -> Iterator[Problem]:
    for finding in store.check():
        if f"django_tasklock.{finding.id}" not in settings.SILENCED_SYSTEM_CHECKS:
            yield Problem("server", store.alias, finding.message, finding.hint, finding.serious)
