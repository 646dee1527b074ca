"""
Lost work, and what else is wrong: the diagnosis behind ``manage.py locks doctor``.

A row in its guard's status ``to`` whose lock nobody holds is work that was lost: the lock says
who is alive, so this is known, not guessed from the row's age. A run holds its lock before it
claims the row, and leaves the row before it releases the lock; so a row that is found claimed,
whose lock is not held after that, and which is still claimed after that, has no run.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from django.conf import settings
from django.core import checks
from django.db.models import Q

from .describe import command_line
from .exceptions import InvalidLockConfig, ListingNotSupported, StoreUnavailable
from .guards import StatusGuard
from .lease import LockInfo, new_token
from .queued import queued_jobs, without_message
from .stores import stores
from .stores.base import BaseStore
from .work import CeleryMissing, Work, works

__all__ = ["SHARED_PREFIX", "Problem", "diagnose", "requeue"]

CHUNK = 500
"""rows looked at together"""
LOOKS = 3
"""times that a row must be found claimed and not locked: without a fence it does not show that
another run began and ended between two looks; and a run whose child was killed is often
delivered again before the last"""
BETWEEN = 0.1
"""seconds between two looks"""
MOST_JOBS = 1000
"""reservations of a store that are looked at, the soonest to end"""
SHARED_PREFIX = "its keys do not begin as the locks' do alone: those without a TTL cannot be found"
SENT = 60.0
"""seconds within which the doctor does not send the same row's task a second time"""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    ``kind``: "lost work", "unknown" (rows whose locks' names cannot be told, and tasks that cannot
    be imported), "owner gone", "no ttl", "no message", "settings" or "server". ``what`` names it,
    ``count`` how often it is there, ``command`` is the one that the hint names, ``error`` what was
    raised; ``serious`` ones make the command exit with 1.
    """

    kind: str
    what: str
    message: str
    hint: str = ""
    serious: bool = True
    work: Work | None = None
    pk: Any = None
    fence: int | None = None
    count: int = 1
    command: str = ""
    error: StoreUnavailable | ListingNotSupported | ImportError | None = None

    def as_json(self) -> dict[str, Any]:
        """The fields as JSON-able values."""
        fields = ("kind", "what", "message", "hint", "serious")
        values = {field: getattr(self, field) for field in fields}
        values["task"] = self.work.task if self.work else None
        values["pk"] = None if self.pk is None else str(self.pk)
        return values


def diagnose(aliases: Sequence[str] | None = None) -> Iterator[Problem]:
    """All that is wrong with the work and the stores behind ``aliases`` (None: all)."""
    chosen = list(stores) if aliases is None else list(aliases)
    parts = [_settings()]
    try:
        kinds = _kinds()
    except ImportError as error:
        parts.append(_no_tasks(error))
    else:
        parts += [_lost(kind) for kind in kinds if any(work.store in chosen for work in kind)]
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


def requeue(problem: Problem) -> bool:
    """Send the task of a lost row again. False: that was done a moment ago.

    Safe to do twice: the guard gives the row to one run. Raises what sending raises.
    """
    work = problem.work
    assert work is not None
    store, token = stores[work.store], new_token()
    key = f"requeued {work.guard.label}.{work.guard.field}:{problem.pk}:{problem.fence}"
    if store.reserve(key, token, SENT) is not None:
        return False
    try:
        work.send(problem.pk)
    except BaseException:
        with suppress(StoreUnavailable):
            store.unreserve(key, token)
        raise
    return True


def _kinds() -> Iterable[list[Work]]:
    """All kinds of work; those that claim the same rows together."""
    found: dict[Any, list[Work]] = {}
    for work in works():
        try:
            work.guard.check_fields()
            _ = stores[work.store]
        except InvalidLockConfig:
            continue  # Said by the system checks; and it cannot run.
        key = work.guard.model, work.guard.field, work.guard.to
        found.setdefault(key, []).append(work)
    return found.values()


def _no_tasks(error: ImportError) -> Iterator[Problem]:
    """A site without Celery has no tasks, and nothing that were wrong with it."""
    missing = isinstance(error, CeleryMissing)
    message = str(error) if missing else f"a module with tasks cannot be imported: {error}"
    yield Problem("unknown", "tasks", message, serious=not missing, error=error)


def _lost(kind: Sequence[Work]) -> Iterator[Problem]:
    guard, unknown = kind[0].guard, 0
    fence_field: str | None = guard.fence_field
    for work in kind:
        if work.guard.fence_field != fence_field or not stores[work.store].supports_fence:
            fence_field = None
    fields = ["pk", *([fence_field] if fence_field else [])]
    claimed = guard.rows().filter(Q((guard.field, guard.to)))
    rows = iter(claimed.order_by("pk").values_list(*fields).iterator(CHUNK))
    while chunk := list(islice(rows, CHUNK)):
        fences = {row[0]: row[1] if fence_field else None for row in chunk}
        suspects = {pk: locks for pk in fences if (locks := _locks_of(kind, pk))}
        unknown += len(fences) - len(suspects)
        for look in range(LOOKS):
            if suspects and look:
                time.sleep(BETWEEN)
            suspects = _without_lock(suspects)
            suspects = _still_claimed(guard, fence_field, suspects, fences)
        for pk, locks in suspects.items():
            work = _responsible(kind, pk)
            command = command_line("doctor", store=work.store, options="--requeue")
            yield Problem(
                "lost work",
                f"{guard.label} {pk}",
                f"is {guard.to!r}, and nobody holds its lock {locks[0][1]}",
                f"Send it again: {command}",
                command=command,
                work=work,
                pk=pk,
                fence=fences[pk],
            )
    if unknown:
        yield Problem(
            "unknown",
            guard.label,
            f"{unknown} rows are {guard.to!r}, and the names of their locks cannot be told",
            f"Make the lock_name of {', '.join(work.task for work in kind)} of the guard's "
            "argument alone.",
            serious=False,
            work=kind[0],
            count=unknown,
        )


def _locks_of(kind: Sequence[Work], pk: Any) -> list[tuple[str, str]]:
    """The stores and names of all locks under which the row may be worked on, if all are known."""
    found: list[tuple[str, str]] = []
    for work in kind:
        names = work.names_of(pk)
        if not names:
            return []
        found += [(work.store, name) for name in names]
    return found


def _without_lock(suspects: dict[Any, list[tuple[str, str]]]) -> dict[Any, list[tuple[str, str]]]:
    names: dict[str, list[str]] = {}
    for alias, name in {lock for locks in suspects.values() for lock in locks}:
        names.setdefault(alias, []).append(name)
    held = {(alias, name) for alias in names for name in stores[alias].held(names[alias])}
    return {pk: locks for pk, locks in suspects.items() if held.isdisjoint(locks)}


def _still_claimed(
    guard: StatusGuard, fence_field: str | None, suspects: dict[Any, Any], fences: dict[Any, Any]
) -> dict[Any, Any]:
    if not suspects:
        return {}
    rows = guard.rows().filter(Q(pk__in=list(suspects)) & Q((guard.field, guard.to)))
    if fence_field is None:
        still = set(rows.values_list("pk", flat=True))
    else:
        # A new run writes a new fence.
        found = dict(rows.values_list("pk", fence_field))
        still = {pk for pk, fence in found.items() if fence == fences[pk]}
    return {pk: locks for pk, locks in suspects.items() if pk in still}


def _responsible(kind: Sequence[Work], pk: Any) -> Work:
    """Whose row it is, where several kinds of work claim the same rows."""
    for work in kind:
        wanted = work.guard.filter
        if len(kind) == 1 or wanted is None or work.guard.rows().filter(wanted, pk=pk).exists():
            return work
    return kind[0]


def _locks(store: BaseStore) -> Iterator[Problem]:
    try:
        for info in store.list():
            # Asked once more: its owner may have released it, and ended, since.
            if info.owner.alive() is False and _is_held(store, info):
                command = command_line("clear", info.name, store=store.alias)
                yield Problem(
                    "owner gone",
                    info.name,
                    f"is held by {info.owner}, a process that is gone",
                    f"It ends by itself; or: {command}",
                    # Without takeover, a lock is meant to outlast its process.
                    serious=store.takeover,
                    command=command,
                )
    except ListingNotSupported as error:
        yield Problem("server", store.alias, str(error), serious=False, error=error)
        return
    try:
        for info in store.scan():
            if info.ttl is None:
                command = command_line("clear", info.name, store=store.alias)
                yield Problem(
                    "no ttl",
                    info.name,
                    "is held by a key that never expires",
                    f"If nobody works under it: {command}",
                    command=command,
                )
    except ListingNotSupported:
        yield Problem("server", store.alias, SHARED_PREFIX, serious=False)


def _is_held(store: BaseStore, info: LockInfo) -> bool:
    now = store.get(info.name)
    return now is not None and now.token == info.token


def _reservations(store: BaseStore) -> Iterator[Problem]:
    """Those without a message. One that is being sent now, or has been taken by a worker that has
    not begun, has none for a moment: so it must be missed several times."""
    with suppress(ListingNotSupported):  # Said of the locks.
        jobs = queued_jobs(store, limit=MOST_JOBS)
        for look in range(LOOKS):
            if jobs and look:
                time.sleep(BETWEEN)
            jobs = without_message(jobs)
        still = {(job.task, job.name, job.task_id) for job in queued_jobs(store)} if jobs else ()
        for job in jobs:
            if (job.task, job.name, job.task_id) in still:
                command = command_line("clear", job.name, store=store.alias, options="--queued")
                yield Problem(
                    "no message",
                    job.name,
                    f"calls of {job.task} are duplicates of {job.task_id}, "
                    "of which the broker has no message",
                    f"It ends by itself; or: {command}",
                    # The call may be waiting for its broker.
                    serious=False,
                    command=command,
                )


def _settings() -> Iterator[Problem]:
    for message in checks.run_checks(tags=["tasklock"]):
        if message.level >= checks.WARNING and not message.is_silenced():
            yield Problem("settings", str(message.id), str(message.msg), message.hint or "")


def _server(store: BaseStore) -> Iterator[Problem]:
    for finding in store.check():
        if f"django_tasklock.{finding.id}" not in settings.SILENCED_SYSTEM_CHECKS:
            yield Problem("server", store.alias, finding.message, finding.hint, finding.serious)
