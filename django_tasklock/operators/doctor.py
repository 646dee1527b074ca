"""What is wrong with the work and its stores: behind ``manage.py locks doctor`` and the page."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Any

from django.conf import settings
from django.core import checks
from django.db import Error as DatabaseError
from django.utils.translation import gettext

from .._values.lock_info import LockInfo
from .._values.words import printable
from ..exceptions import ListingNotSupported, StoreUnavailable
from ..guards import StatusGuard
from ..stores import stores
from ..stores.base import BaseStore
from ..stores.records import key_of
from .held import QueuedJob, queued_jobs
from .holders import Holder, command_line, holder_of, sentence, who
from .lost_work import lost_rows, waiting_rows, works_by_rows
from .problems import GoneMessage, LockProblem, Problem, first_of
from .rows import in_savepoint, label_of, row_if_known
from .work import CeleryMissing, tasks

# Locks of a store whose owner is gone that are reported, and reservations that are looked at: each
# may cost a question to the database, or to the result backend.
MOST_GONE = 500


def diagnose(
    aliases: Sequence[str] | None = None, source_older: float | None = None
) -> Iterator[Problem]:
    """Yield all that is wrong with the work and the stores behind ``aliases`` (None: all stores).

    ``source_older``: also find rows that have waited in ``source`` for more seconds than that.

    It asks the databases, the stores, and Celery's servers and workers, which may take seconds.
    Nothing is asked before it is read. A store that does not answer is a problem too, and the
    others are still asked; of that store nothing more is asked: each question would cost a timeout.
    Raises `InvalidLockConfig` for an alias that does not exist.
    """
    chosen = {alias: stores[alias] for alias in (stores if aliases is None else aliases)}
    silent: set[str] = set()
    yield from _settings()
    try:
        all_work = [(each, lost_rows(each)) for each in works_by_rows()]
        if source_older is not None:
            every = [work for same_rows, _ in all_work for work in same_rows]
            all_work += [([work], waiting_rows(work, every, source_older)) for work in every]
    except ImportError as error:
        all_work = []
        yield _no_tasks(error)
    for same_rows, rows in all_work:
        found, of = _rows(same_rows[0].guard, rows), {work.store for work in same_rows}
        if not of.isdisjoint(chosen):
            yield from _answered(found, silent, of)
    for store in chosen.values():
        found = chain(_locks(store), _reservations(store), _server(store))
        yield from _answered(found, silent, [store.alias])


def _answered(found: Iterator[Problem], silent: set[str], of: Collection[str]) -> Iterator[Problem]:
    """The same, with one problem for each store that does not answer."""
    if not silent.isdisjoint(of):
        return
    try:
        yield from found
    except StoreUnavailable as error:
        silent.add(error.store)
        message = gettext("The store is unavailable: %(reason)s") % {"reason": error.reason}
        hint = gettext(
            "If no server answers: see that it runs, and that this machine can reach it."
        )
        yield Problem("server", error.store, message, hint, store=error.store)


def _settings() -> Iterator[Problem]:
    for message in checks.run_checks(tags=["tasklock"]):
        if message.level >= checks.WARNING and not message.is_silenced():
            yield Problem("settings", str(message.id), str(message.msg), message.hint or "")


def _no_tasks(error: ImportError) -> Problem:
    """A site without Celery has no tasks, and that is nothing wrong."""
    if isinstance(error, CeleryMissing):
        hint = gettext("Run the doctor where Celery is installed.")
        return Problem("unknown", "tasks", str(error), hint, serious=False)
    words = gettext("A module with tasks cannot be imported, so lost work is not known: %(reason)s")
    hint = gettext("Mend the import, and run the doctor again.")
    return Problem("unknown", "tasks", words % {"reason": error}, hint)


def _rows(guard: StatusGuard, found: Iterator[Problem]) -> Iterator[Problem]:
    """The same; where the database of the rows does not answer, that they are not known."""
    try:
        with in_savepoint(guard.model):
            yield from found
    except DatabaseError as error:
        message = gettext("Its lost rows are not known: %(reason)s") % {"reason": printable(error)}
        yield Problem("unknown", guard.label, message, model=guard.model._meta.label)


def _locks(store: BaseStore) -> Iterator[Problem]:
    """Locks whose process is gone, or late, where the store can list them."""
    try:
        found = ((info, holder_of(info)) for info in store.walk())
        all_told = (each for each in found if each[1] in (Holder.GONE, Holder.OVERDUE))
        for info, holder in islice(all_told, MOST_GONE):
            # Asked once more: the owner may have released it, and ended, since it was read.
            now = store.find(info.name)
            if now is not None and info.is_same_lease(now) and holder_of(now) is holder:
                yield _owner_gone(store, now) if holder is Holder.GONE else _overdue(now)
        more = sum(1 for _ in all_told)
        yield from first_of("owner gone", store.alias, MOST_GONE, MOST_GONE + more)
    except ListingNotSupported as error:
        show = {"command": command_line("show", "NAME", store=store.alias)}
        hint = gettext("So they were not looked for. To see a single lock: %(command)s") % show
        yield Problem("server", store.alias, str(error), hint, False, store=store.alias)


def _owner_gone(store: BaseStore, info: LockInfo) -> LockProblem:
    """With the row that the process has left claimed: while the lock stands, the row is not
    reported as lost."""
    found, of_row = row_if_known(info), dict[str, Any]()
    message = gettext("It is held by %(owner)s, a process that is gone.")
    values = {"owner": who(info.owner)}
    if found is not None and getattr(found[0], found[1].field) == found[1].to:
        row, guard = found
        of_row = {"model": row._meta.label, "pk": row.pk}
        values |= {"row": label_of(row), "status": guard.to}
        message = gettext(
            "It is held by %(owner)s, a process that is gone, and its row %(row)s is “%(status)s”."
        )
    command = command_line("clear", info.name, store=store.alias)
    hint = gettext("It ends by itself. To end it now: %(command)s") % {"command": command}
    # Without takeover, a lock is meant to outlast its process.
    return LockProblem(
        "owner gone", info.name, message % values, hint, store.takeover,
        info.owner.task, info.store, info.name, info=info, **of_row,
    )  # fmt: skip


def _overdue(info: LockInfo) -> LockProblem:
    """A note: soon it is renewed, or over."""
    hint = gettext("See whether %(owner)s still runs, and reaches the store.")
    said = sentence(info), hint % {"owner": who(info.owner)}, False, info.owner.task
    return LockProblem("overdue", info.name, *said, info.store, info.name, info=info)


def _reservations(store: BaseStore) -> Iterator[Problem]:
    """Reservations whose message is gone, where the store can list them."""
    gone: list[tuple[QueuedJob, bool]] = []
    # Each of the two is reported by itself.
    with suppress(ListingNotSupported, ImportError):
        if jobs := queued_jobs(store):
            gone += tasks().gone_messages(jobs[:MOST_GONE])
        yield from first_of("reservation", store.alias, MOST_GONE, len(jobs))
    for job, ended in gone:
        # Asked once more: its message may have started since it was read.
        if store.get_note(key_of(job.task, job.name)) == job.task_id:
            yield _message_gone(job, ended=ended)


def _message_gone(job: QueuedJob, *, ended: bool) -> GoneMessage:
    values = {
        "message": f"{job.task}[{job.task_id}]",
        "command": command_line("clear", job.name, store=job.store, options="--queued"),
    }
    if ended:
        message = gettext("It is reserved for the message %(message)s, which has ended.")
        hint = gettext("The next call finds this, and is sent. To end it now: %(command)s")
    else:
        message = gettext(
            "It is reserved for the message %(message)s, whose duplicates are not sent. The queues "
            "that are known are empty, and no worker that answers has that message."
        )
        hint = gettext(
            "It may be in a queue that only its call has named. If a worker died with it, the "
            "broker delivers it again, on Redis after the visibility timeout. If it is lost, have "
            "the next call sent: %(command)s"
        )
    return GoneMessage(
        "reservation", job.name, message % values, hint % values, False,
        job.task, job.store, job.name, job=job, ended=ended,
    )  # fmt: skip


def _server(store: BaseStore) -> Iterator[Problem]:
    for finding in store.check():
        if f"django_tasklock.{finding.id}" not in settings.SILENCED_SYSTEM_CHECKS:
            said = finding.message, finding.hint, finding.serious
            yield Problem("server", store.alias, *said, store=store.alias)
