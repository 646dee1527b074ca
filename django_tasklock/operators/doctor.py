"""What is wrong with the work and its stores: the diagnosis behind ``manage.py locks doctor``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from django.conf import settings
from django.core import checks
from django.db import Error as DatabaseError

from .._values.describe import printable
from ..exceptions import ListingNotSupported, StoreUnavailable
from ..stores import stores
from ..stores.base import BaseStore
from .deadlocks import deadlocks
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
from .savepoint import in_savepoint
from .wording import (
    KEYS_SHARED,
    NO_MESSAGE,
    NO_TTL,
    NOT_ALL_RESERVATIONS,
    OWNER_GONE,
    OWNER_GONE_WITH_ROW,
)
from .work import CeleryMissing, Work

__all__ = ["Look", "Problem", "Sent", "diagnose", "looks", "requeue"]

MAX_RESERVATIONS = 1000
"""reservations of a store that are looked at, the soonest to end first"""
MOST_ROWS = 1000
"""lost rows that `survey` counts: each hundred costs some looks with pauses"""
MOST_LOCKS = 10_000
"""other findings of one kind in a store that `survey` counts"""


class Look(NamedTuple):
    """One part of what the doctor looks at. Nothing is asked before ``found`` is read."""

    kinds: frozenset[str]
    """what it may find, but for a "server" that does not answer"""
    found: Iterator[Problem]
    most: int = MOST_LOCKS
    """how many findings are to be counted where not all are printed"""


def diagnose(aliases: Sequence[str] | None = None) -> Iterator[Problem]:
    """Yield all that is wrong with the work and the stores behind ``aliases`` (None: all stores).

    A store that does not answer is a problem too, and the others are still asked. Raises
    `InvalidLockConfig` for an alias that does not exist.
    """
    for look in looks(aliases):
        yield from look.found


def looks(aliases: Sequence[str] | None = None) -> list[Look]:
    """Return the parts of `diagnose`, to be read in this order. Raises `InvalidLockConfig`."""
    chosen = list(stores) if aliases is None else list(aliases)
    silent: set[str] = set()

    def look(
        kinds: str, found: Iterator[Problem], most: int = MOST_LOCKS, of: Sequence[str] = ()
    ) -> Look:
        return Look(frozenset(kinds.split(", ")), _answered(found, silent, of), most)

    all_looks = [look("settings", _settings())]
    try:
        all_work = works_by_rows()
    except ImportError as error:
        all_looks.append(look("lost work, fence, unknown", _no_tasks(error)))
    else:
        all_looks += [
            look(
                "lost work, fence, unknown",
                _rows(same_rows),
                MOST_ROWS,
                [work.store for work in same_rows],
            )
            for same_rows in all_work
            if any(work.store in chosen for work in same_rows)
        ]
    all_looks.append(look("deadlock", deadlocks([stores[alias].alias for alias in chosen])))
    for store in (stores[alias] for alias in chosen):
        all_looks += [
            look("owner gone, server", _owners(store), of=[store.alias]),
            look("no ttl, server", _endless(store), of=[store.alias]),
            look("no message", _reservations(store), of=[store.alias]),
            look("server", _server(store), of=[store.alias]),
        ]
    return all_looks


def _rows(same_rows: Sequence[Work]) -> Iterator[Problem]:
    """The lost rows; where their database does not answer, that these are not known."""
    try:
        with in_savepoint(same_rows[0].guard.model):
            yield from lost_rows(same_rows)
    except DatabaseError as error:
        label = same_rows[0].guard.label
        yield Problem(
            "unknown",
            label,
            f"its rows are not known: {printable(error)}",
            model=same_rows[0].guard.model,
        )


def _answered(found: Iterator[Problem], silent: set[str], of: Sequence[str]) -> Iterator[Problem]:
    """The same, with one problem for each store that does not answer: ``of`` these nothing more is
    asked, each further question would cost a timeout."""
    if not silent.isdisjoint(of):
        return
    try:
        yield from found
    except StoreUnavailable as error:
        if error.store not in silent:
            why = f"does not answer: {error.reason}"
            yield Problem("server", error.store, why, error=error, store=error.store)
        silent.add(error.store)


def _no_tasks(error: ImportError) -> Iterator[Problem]:
    """A site without Celery has no tasks, and that is nothing wrong."""
    missing = isinstance(error, CeleryMissing)
    message = str(error) if missing else f"a module with tasks cannot be imported: {error}"
    yield Problem("unknown", "tasks", message, serious=not missing, error=error)


def _owners(store: BaseStore) -> Iterator[Problem]:
    try:
        for orphan in gone_owners(store):
            yield _owner_gone(store, orphan)
    except ListingNotSupported as error:
        yield Problem(
            "server", store.alias, str(error), serious=False, error=error, store=store.alias
        )


def _owner_gone(store: BaseStore, orphan: Orphan) -> Problem:
    """While the lock stands its row is not reported as lost, so this names the row as well."""
    info, row, status = orphan
    command = command_line("clear", info.name, store=store.alias)
    wording, values = OWNER_GONE, {"owner": info.owner, "command": command}
    about: dict[str, Any] = {}
    if row is not None:
        requeue_command = command_line("doctor", store=store.alias, options="--requeue")
        wording = OWNER_GONE_WITH_ROW
        values |= {"row": label_of(row), "status": status, "requeue": requeue_command}
        about = {"row": row, "model": type(row), "pk": row.pk}
    # Without takeover, a lock is meant to outlast its process.
    return Problem.worded(
        "owner gone", info.name, wording, values, serious=store.takeover, store=store.alias,
        lock=info.name, info=info, task=info.owner.task, **about,
    )  # fmt: skip


def _endless(store: BaseStore) -> Iterator[Problem]:
    try:
        for info in store.endless():
            values = {"command": command_line("clear", info.name, store=store.alias)}
            yield Problem.worded(
                "no ttl", info.name, NO_TTL, values, store=store.alias, lock=info.name, info=info
            )
    except ListingNotSupported:
        # A store that lists, and has no such method, has no keys of other code.
        if store.supports_listing and type(store).scan is not BaseStore.scan:
            yield Problem.worded(
                "server", store.alias, KEYS_SHARED, {}, serious=False, store=store.alias
            )


def _reservations(store: BaseStore) -> Iterator[Problem]:
    """Reservations without a message.

    A message that is being sent, or that a worker has taken and not begun, cannot be seen for a
    moment. So it must be missing several times.
    """
    with suppress(ListingNotSupported):  # `_owners` reports it.
        jobs = queued_jobs(store, limit=MAX_RESERVATIONS + 1)
        if len(jobs) > MAX_RESERVATIONS:
            jobs.pop()
            yield Problem.worded(
                "no message", store.alias, NOT_ALL_RESERVATIONS, {"count": MAX_RESERVATIONS},
                serious=False, store=store.alias,
            )  # fmt: skip
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
                yield Problem.worded(
                    "no message", job.name, NO_MESSAGE, values, serious=False, store=store.alias,
                    lock=job.name, task=job.task,
                )  # fmt: skip


def _settings() -> Iterator[Problem]:
    for message in checks.run_checks(tags=["tasklock"]):
        if message.level >= checks.WARNING and not message.is_silenced():
            yield Problem("settings", str(message.id), str(message.msg), message.hint or "")


def _server(store: BaseStore) -> Iterator[Problem]:
    for finding in store.check():
        if f"django_tasklock.{finding.id}" not in settings.SILENCED_SYSTEM_CHECKS:
            yield Problem(
                "server", store.alias, finding.message, finding.hint, finding.serious,
                store=store.alias,
            )  # fmt: skip
