"""
Rows whose run has died: found by ``manage.py locks doctor``, and sent again.

A row in its guard's status ``to`` whose lock nobody holds is lost work. The lock says who is
alive, so this is known and not guessed from the row's age. A run holds its lock before it claims
the row, and leaves the row before it releases the lock. So a row has no run if it is found
claimed, nobody then holds its lock, and it is still claimed after that.

That holds for the store in which its run took the lock. If the row's fence is none that the store
can have given, it is another one, or has lost its data since: the run may live.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from itertools import islice
from math import ceil
from shlex import quote
from typing import Any, TypeAlias

from django.db.models import Model, Q, QuerySet
from django.utils.timezone import now
from django.utils.translation import gettext

from .._values.tokens import new_token
from ..exceptions import InvalidLockConfig, StoreUnavailable
from ..stores import stores
from .events import moment
from .held import held_of
from .holders import command_line
from .problems import SENT, LostRow, Problem
from .rows import refuses_all
from .work import Work, tasks

ROWS_PER_LOOK = 500  # rows that are looked at together
# How often a row must be found claimed and not locked. Without a fence the row does not show that
# another run began and ended between two looks. And the broker often delivers the message of a
# killed run again before the last look.
LOOKS_PER_ROW = 3
LOOK_PAUSE_SECONDS = 0.1
REQUEUED_SECONDS = 60.0  # in which the same row's task is not sent a second time

# The alias of a store, and a lock's name.
Lock: TypeAlias = tuple[str, str]


def requeue(row: LostRow) -> tuple[bool, str | None]:
    """Send the task of a lost row again, unless that was done a moment ago. Return whether it was
    sent, and the message's task id, None if not known.

    It is safe to do it twice: the guard gives the row to one run. Raises `StoreUnavailable`,
    `TypeError` if the row alone does not make a call, and what sending the message raises.
    """
    store, token = stores[row.work.store], new_token()
    key = f"requeued {row.seen}"
    if store.reserve(key, token, row.pause) is not None:
        return False, None
    try:
        return True, row.work.send(row.pk)
    except BaseException:
        with suppress(StoreUnavailable):
            store.unreserve(key, token)
        raise


def still_lost(seen: Collection[str]) -> list[LostRow]:
    """Return the rows that are lost now as they were found, with that fence: by `LostRow.seen`.

    They are looked at as the doctor looks at them. Raises `StoreUnavailable`, and what importing
    the tasks raises.
    """
    return [
        row
        for same_rows in works_by_rows()
        if any(each.startswith(f"{work.task} ") for work in same_rows for each in seen)
        for row in lost_rows(same_rows)
        if isinstance(row, LostRow) and row.kind in SENT and row.seen in seen
    ]


def works_by_rows() -> Iterable[list[Work]]:
    """Return all guarded work; tasks that claim the same rows are in one list.

    Imports the modules with tasks. Raises what `tasks` raises.
    """
    found: dict[Any, list[Work]] = {}
    for work in tasks().guarded_tasks():
        with suppress(InvalidLockConfig):  # The system checks report it; and the task cannot run.
            key = work.guard.model, work.guard.field, work.guard.to
            _ = stores[work.store]
            found.setdefault(key, []).append(work)
    return found.values()


def lost_rows(same_rows: Sequence[Work]) -> Iterator[Problem]:
    """Yield a problem for each lost row of tasks that claim the same rows, and each task whose row
    it may be; and one for all rows whose locks' names are not known. A lost row whose fence refuses
    every run is another problem, and so is one that a run without the lock, or of another store,
    has claimed: it may live.

    Raises `StoreUnavailable`, and what the database raises.
    """
    guard, unknown = same_rows[0].guard, 0
    fence_fields = {work.guard.fence_field for work in same_rows}
    # Without a fence the status stands in its place: of these rows it never changes.
    fence_field = (len(fence_fields) == 1 and guard.fence_field) or guard.field
    claimed = guard.rows().filter(Q((guard.field, guard.to)))
    for pk, seen, locks in _unheld(same_rows, claimed, fence_field):
        if locks:
            fence = None if fence_field == guard.field else seen
            yield from _lost(_responsible(same_rows, pk), pk, locks, fence)
        else:
            unknown += 1
    if unknown:
        yield _nameless(same_rows, unknown)


def waiting_rows(work: Work, every: Sequence[Work], older: float) -> Iterator[Problem]:
    """Yield a problem for each row that has waited in ``source`` for more than ``older`` seconds,
    and whose lock nobody holds: its message is lost, or comes late.

    Rows whose locks' names are not known are left out. ``every``: all work.
    Raises as `lost_rows`.
    """
    guard, kind = work.guard, "waiting too long"
    if guard.since_field is None:
        message = gettext("Its guard has no since_field, so rows that wait are not found.")
        yield Problem("unknown", work.task, message, "", False, work.task)
        return
    rows = guard.waiting().filter(Q((f"{guard.since_field}__lt", now() - timedelta(0, older))))
    key = guard.model, guard.field
    others = [one.guard for one in every if (one.guard.model, one.guard.field) == key]
    others.remove(guard)
    message = gettext("It has waited for a run since %(time)s, and nobody holds its lock.")
    for pk, since, locks in _unheld([work], rows, guard.since_field):
        if locks:
            asks = any(other.waiting().filter(pk=pk).exists() for other in others)
            said = message % {"time": moment(since)}
            yield _found(kind, work, pk, locks[0][1], said, asks=asks, pause=older)


def _unheld(
    same_rows: Sequence[Work], rows: QuerySet[Model], field: str
) -> Iterator[tuple[Any, Any, Sequence[Lock]]]:
    """Yield those of some rows whose locks nobody holds, each with the ``field`` that tells it from
    itself later; and without locks those whose locks' names are not known."""
    found = iter(rows.order_by("pk").values_list("pk", field).iterator(ROWS_PER_LOOK))
    while chunk := dict(islice(found, ROWS_PER_LOOK)):
        suspects = {pk: locks for pk in chunk if (locks := _locks_of(same_rows, pk))}
        yield from ((pk, seen, ()) for pk, seen in chunk.items() if pk not in suspects)
        for look in range(LOOKS_PER_ROW):
            if not suspects:
                break
            time.sleep(LOOK_PAUSE_SECONDS if look else 0)
            held = held_of(lock for locks in suspects.values() for lock in locks).keys()
            suspects = {pk: locks for pk, locks in suspects.items() if held.isdisjoint(locks)}
            # A new run writes a new fence.
            later = dict(rows.filter(pk__in=list(suspects)).values_list("pk", field))
            suspects = {pk: suspects[pk] for pk in later if later[pk] == chunk[pk]}
        yield from ((pk, chunk[pk], locks) for pk, locks in suspects.items())


def _lost(
    own: Sequence[Work], pk: Any, locks: Sequence[Lock], fence: int | None
) -> Iterator[LostRow]:
    guard, kind, store, first = own[0].guard, "lost work", stores[own[0].store], ""
    values = {"status": guard.to, "lock": locks[0][1], "field": guard.fence_field, "fence": fence}
    free = gettext("If no run of it lives, set its %(field)s to NULL first.")
    # Asked after the looks, so that it is larger than the fence of every run before them.
    if refuses_all(fence, store):
        kind, first = "fence", free
        message = gettext(
            "The row is “%(status)s”, nobody holds its lock, and no run can claim it: its "
            "fence %(fence)s is larger than any lease’s now."
        )
    elif (fence or 0) < 0 and store.supports_fence:
        kind, first = "unknown", free
        message = gettext(
            "The row is “%(status)s”: a run without the lock has claimed it, and may be at work."
        )
    elif not any(stores[each].may_have_given(name, fence or None) for each, name in locks):
        kind = "other store"
        given = gettext("no lock was ever granted here")
        if fence:
            given = gettext("no lock that was granted here had its fence, of %(time)s")
            values["time"] = moment(datetime.fromtimestamp(fence / 1e6, timezone.utc))
        values["given"] = given % values
        message = gettext(
            "The row is “%(status)s”, but %(given)s. Its run may live in another store, or with "
            "another KEY_PREFIX; or this store was emptied since, and its queue probably too."
        )
        first = gettext("See that the workers have these settings, and that no run of it lives.")
    else:
        message = gettext("The row is “%(status)s”, and nobody holds its lock %(lock)s.")
    said, asks = (message % values, first % values), len(own) > 1
    yield from (_found(kind, one, pk, locks[0][1], *said, fence, asks=asks) for one in own)


def _found(
    kind: str, work: Work, pk: Any, lock: str, message: str, first: str = "",
    fence: int | None = None, *, asks: bool, pause: float = REQUEUED_SECONDS,
) -> LostRow:  # fmt: skip
    """``first``: what is to be done before the task is sent. ``asks``: it may be another task's."""
    more = {"other store": "--other-store", "waiting too long": f"--source-older={ceil(pause)}"}
    options = ["--requeue", more.get(kind, ""), f"--task={quote(work.task)}" if asks else ""]
    hint = gettext("Send %(task)s again: %(command)s")
    if asks:
        hint = gettext(
            "Several tasks may work on it. If it is this one’s, send %(task)s again: %(command)s"
        )
    command = command_line("doctor", store=work.store, options=" ".join(options))
    hint %= {"task": work.task, "command": command}
    return LostRow(
        kind, f"{work.guard.label} {pk}", message, f"{first} {hint}".strip(), kind != "unknown",
        work.task, work.store, lock, work.guard.label, pk,
        work=work, fence=fence, asks=asks, pause=pause,
    )  # fmt: skip


def _nameless(same_rows: Sequence[Work], count: int) -> Problem:
    guard, names = same_rows[0].guard, ", ".join(work.task for work in same_rows)
    message = gettext("Rows in “%(status)s”, perhaps lost: %(count)d. Their locks are not known.")
    hint = gettext("Use only the guard’s argument in the lock_name of %(tasks)s.")
    values = {"status": guard.to, "count": count, "tasks": names}
    said = message % values, hint % values, False
    return Problem("unknown", guard.label, *said, model=guard.model._meta.label)


def _locks_of(same_rows: Sequence[Work], pk: Any) -> list[Lock]:
    """All locks under which the row may be worked on, by store and name, if all are known."""
    names = [(work.store, work.names_of(pk)) for work in same_rows]
    if not all(some for _, some in names):
        return []
    return [(store, name) for store, some in names for name in some]


def _responsible(same_rows: Sequence[Work], pk: Any) -> Sequence[Work]:
    """The tasks whose row it may be, as their filters say."""
    return [
        work
        for work in same_rows
        if work.guard.filter is None or work.guard.rows().filter(work.guard.filter, pk=pk).exists()
    ] or same_rows
