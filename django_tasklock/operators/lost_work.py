"""
Rows whose run has died: found by ``manage.py locks doctor``, and sent again.

A row in its guard's status ``to`` whose lock nobody holds is lost work. The lock says who is
alive, so this is known and not guessed from the row's age. A run holds its lock before it claims
the row, and leaves the row before it releases the lock. So a row has no run if it is found
claimed, nobody then holds its lock, and it is still claimed after that.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from django.db.models import Q
from django.utils.translation import gettext

from .._values.tokens import new_token
from ..exceptions import InvalidLockConfig, StoreUnavailable
from ..stores import stores
from .held import held_of
from .holders import command_line
from .problems import About, LostRow, Problem
from .rows import refuses_all
from .work import Work, tasks

ROWS_PER_LOOK = 500  # rows that are looked at together
# How often a row must be found claimed and not locked. Without a fence the row does not show that
# another run began and ended between two looks. And the broker often delivers the message of a
# killed run again before the last look.
LOOKS_PER_ROW = 3
LOOK_PAUSE_SECONDS = 0.1
REQUEUED_SECONDS = 60.0  # in which the same row's task is not sent a second time


def requeue(row: LostRow) -> tuple[bool, str | None]:
    """Send the task of a lost row again, unless that was done a moment ago. Return whether it was
    sent, and the message's task id, None if not known.

    It is safe to do it twice: the guard gives the row to one run. Raises `StoreUnavailable`,
    `TypeError` if the row alone does not make a call, and what sending the message raises.
    """
    store, token = stores[row.work.store], new_token()
    key = f"requeued {row.seen}"
    if store.reserve(key, token, REQUEUED_SECONDS) is not None:
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
        if isinstance(row, LostRow) and row.sendable and row.seen in seen
    ]


def works_by_rows() -> Iterable[list[Work]]:
    """Return all guarded work; tasks that claim the same rows are in one list.

    Imports the modules with tasks. Raises `CeleryMissing`, and what importing raises.
    """
    found: dict[Any, list[Work]] = {}
    for work in tasks().guarded_tasks():
        with suppress(InvalidLockConfig):  # The system checks report it; and the task cannot run.
            key = work.guard.model, work.guard.field, work.guard.to
            _ = stores[work.store]
            found.setdefault(key, []).append(work)
    return found.values()


def lost_rows(same_rows: Sequence[Work]) -> Iterator[Problem]:
    """Yield a problem for each lost row of tasks that claim the same rows, and one for all rows
    whose locks' names are not known. A lost row whose fence refuses every run is another problem,
    and so is one that a run without the lock has claimed, which may live.

    Raises `StoreUnavailable`, and what the database raises.
    """
    guard, unknown = same_rows[0].guard, 0
    fence_fields = {work.guard.fence_field for work in same_rows}
    # Without a fence the status stands in its place: of these rows it never changes.
    fence_field = (len(fence_fields) == 1 and guard.fence_field) or guard.field
    claimed = guard.rows().filter(Q((guard.field, guard.to)))
    rows = iter(claimed.order_by("pk").values_list("pk", fence_field).iterator(ROWS_PER_LOOK))
    while chunk := dict(islice(rows, ROWS_PER_LOOK)):
        suspects = {pk: locks for pk in chunk if (locks := _locks_of(same_rows, pk))}
        unknown += len(chunk) - len(suspects)
        for look in range(LOOKS_PER_ROW):
            if not suspects:
                break
            time.sleep(LOOK_PAUSE_SECONDS if look else 0)
            held = held_of(lock for locks in suspects.values() for lock in locks).keys()
            suspects = {pk: locks for pk, locks in suspects.items() if held.isdisjoint(locks)}
            # A new run writes a new fence.
            now = dict(claimed.filter(pk__in=list(suspects)).values_list("pk", fence_field))
            suspects = {pk: suspects[pk] for pk in now if now[pk] == chunk[pk]}
        for pk, locks in suspects.items():
            fence = None if fence_field == guard.field else chunk[pk]
            yield _lost(_responsible(same_rows, pk), pk, locks[0][1], fence)
    if unknown:
        yield _nameless(same_rows, unknown)


def _lost(work: Work, pk: Any, lock: str, fence: int | None) -> LostRow:
    guard, kind, store = work.guard, "lost work", stores[work.store]
    command = command_line("doctor", store=work.store, options="--requeue")
    values = {"status": guard.to, "lock": lock, "command": command, "field": guard.fence_field}
    free = gettext(
        "If no run of it lives, set its %(field)s to NULL, then send it again: %(command)s"
    )
    # Asked after the looks, so that it is larger than the fence of every run before them.
    if refuses_all(fence, store):
        kind, values["fence"], hint = "fence", fence, free
        message = gettext(
            "The row is “%(status)s”, nobody holds its lock, and no run can claim it: its "
            "fence %(fence)s is larger than any lease’s now."
        )
    elif (fence or 0) < 0 and store.supports_fence:
        kind, hint = "unknown", free
        message = gettext(
            "The row is “%(status)s”: a run without the lock has claimed it, and may be at work."
        )
    else:
        message = gettext("The row is “%(status)s”, and nobody holds its lock %(lock)s.")
        hint = gettext("Send it again: %(command)s")
    about = About(work.task, work.store, lock, guard.model._meta.label, str(pk))
    return LostRow(
        kind, f"{guard.label} {pk}", message % values, hint % values, kind != "unknown", about,
        work=work, pk=pk, fence=fence,
    )  # fmt: skip


def _nameless(same_rows: Sequence[Work], count: int) -> Problem:
    guard, names = same_rows[0].guard, ", ".join(work.task for work in same_rows)
    message = gettext("Rows in “%(status)s”, perhaps lost: %(count)d. Their locks are not known.")
    hint = gettext("Use only the guard’s argument in the lock_name of %(tasks)s.")
    values = {"status": guard.to, "count": count, "tasks": names}
    about = About(same_rows[0].task, model=guard.model._meta.label)
    return Problem("unknown", guard.label, message % values, hint % values, False, about)


def _locks_of(same_rows: Sequence[Work], pk: Any) -> list[tuple[str, str]]:
    """All locks under which the row may be worked on, by store and name, if all are known."""
    names = [(work.store, work.names_of(pk)) for work in same_rows]
    if not all(some for _, some in names):
        return []
    return [(store, name) for store, some in names for name in some]


def _responsible(same_rows: Sequence[Work], pk: Any) -> Work:
    """The task whose row it is, where several tasks claim the same rows."""
    for work in same_rows:
        wanted = work.guard.filter
        if wanted is None or work.guard.rows().filter(wanted, pk=pk).exists():
            return work
    return same_rows[0]
