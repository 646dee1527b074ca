"""
Rows whose run has died: found by ``manage.py locks doctor``, and sent again.

A row in its guard's status ``to`` whose lock nobody holds is lost work. The lock says who is
alive, so this is known and not guessed from the row's age. A run holds its lock before it claims
the row, and leaves the row before it releases the lock. So a row has no run if it is found
claimed, no run then holds its lock, and it is still claimed after that. Under an operator's hold
there is no run.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

from django.db.models import Q

from .._values.lock_info import LockInfo
from .._values.tokens import new_token
from ..exceptions import InvalidLockConfig, StoreUnavailable
from ..guards import StatusGuard
from ..stores import stores
from .hints import command_line
from .problems import Problem
from .row_now import next_fence
from .wording import LOCK_UNKNOWN, LOST_WORK, LOST_WORK_HELD, ROW_FENCE_TOO_LARGE
from .work import Work, works

__all__ = ["LOOKS_PER_ROW", "LOOK_PAUSE_SECONDS", "Sent", "lost_rows", "requeue", "works_by_rows"]

ROWS_PER_LOOK = 500
"""rows that are looked at together"""
LOOKS_PER_ROW = 3
"""times that a row must be found claimed and not locked. Without a fence the row does not show
that another run began and ended between two looks; and the broker often delivers the message of a
killed run again before the last look."""
LOOK_PAUSE_SECONDS = 0.1
"""pause between two looks"""
REQUEUED_SECONDS = 60.0
"""for so long the doctor does not send the same row's task a second time"""


class Sent(NamedTuple):
    """A message that was sent for a lost row; ``task_id`` is None if it is not known."""

    task: str
    task_id: str | None


def requeue(problem: Problem) -> Sent | None:
    """Send the task of a lost row again. Return None if that was done a moment ago.

    It is safe to do it twice: the guard gives the row to one run. Raises `StoreUnavailable`,
    `TypeError` if the row alone does not make a call, and what sending the message raises.
    """
    work = problem.work
    assert work is not None
    store, token = stores[work.store], new_token()
    key = f"requeued {work.guard.label}.{work.guard.field}:{problem.pk}:{problem.fence}"
    if store.reserve(key, token, REQUEUED_SECONDS) is not None:
        return None
    try:
        return Sent(work.task, work.send(problem.pk))
    except BaseException:
        with suppress(StoreUnavailable):
            store.unreserve(key, token)
        raise


def works_by_rows() -> Iterable[list[Work]]:
    """Return all guarded work; tasks that claim the same rows are in one list.

    Imports the modules with tasks. Raises `CeleryMissing`, and what importing raises.
    """
    found: dict[Any, list[Work]] = {}
    for work in works():
        try:
            work.guard.check_fields()
            _ = stores[work.store]
        except InvalidLockConfig:
            continue  # The system checks report it; and the task cannot run.
        key = work.guard.model, work.guard.field, work.guard.to
        found.setdefault(key, []).append(work)
    return found.values()


def lost_rows(same_rows: Sequence[Work], only: Collection[Any] | None = None) -> Iterator[Problem]:
    """Yield a problem for each lost row of tasks that claim the same rows, and one for all rows
    whose locks' names are not known. A lost row whose fence refuses every run is another problem.

    ``only``: look at the rows with these keys; None: at all. Raises `StoreUnavailable`.
    """
    guard, unknown = same_rows[0].guard, 0
    fence_field: str | None = guard.fence_field
    for work in same_rows:
        if work.guard.fence_field != fence_field or not stores[work.store].supports_fence:
            fence_field = None
    fields = ["pk", *([fence_field] if fence_field else [])]
    claimed = guard.rows().filter(Q((guard.field, guard.to)))
    if only is not None:
        claimed = claimed.filter(pk__in=list(only))
    rows = iter(claimed.order_by("pk").values_list(*fields).iterator(ROWS_PER_LOOK))
    while chunk := list(islice(rows, ROWS_PER_LOOK)):
        fences = {row[0]: row[1] if fence_field else None for row in chunk}
        suspects = {pk: locks for pk in fences if (locks := _locks_of(same_rows, pk))}
        unknown += len(fences) - len(suspects)
        holds: dict[tuple[str, str], LockInfo] = {}
        for look in range(LOOKS_PER_ROW):
            if suspects and look:
                time.sleep(LOOK_PAUSE_SECONDS)
            suspects, holds = _without_run(suspects)
            suspects = _still_claimed(guard, fence_field, suspects, fences)
        # After the looks, so that it is larger than the fence of every run before them.
        following = None
        if suspects and fence_field:
            following = next_fence(*(stores[work.store] for work in same_rows))
        for pk, locks in suspects.items():
            hold = next((holds[lock] for lock in locks if lock in holds), None)
            yield _lost(same_rows, pk, locks[0][1], fences[pk], following, hold)
    if unknown:
        tasks = [work.task for work in same_rows]
        values = {
            "status": guard.to, "count": unknown, "task": tasks[0], "tasks": ", ".join(tasks),
        }  # fmt: skip
        yield Problem.worded(
            "unknown", guard.label, LOCK_UNKNOWN, values, serious=False, work=same_rows[0],
            task=same_rows[0].task, model=guard.model,
        )  # fmt: skip


def _lost(
    same_rows: Sequence[Work],
    pk: Any,
    lock: str,
    fence: int | None,
    following: int | None,
    hold: LockInfo | None,
) -> Problem:
    guard, work = same_rows[0].guard, _responsible(same_rows, pk)
    command = command_line("doctor", store=work.store, options="--requeue")
    values = {"status": guard.to, "lock": lock, "command": command}
    what = f"{guard.label} {pk}"
    of = {
        "work": work, "pk": pk, "fence": fence, "store": work.store, "lock": lock,
        "task": work.task, "model": guard.model,
    }  # fmt: skip
    if fence is not None and following is not None and fence >= following:
        values |= {"fence": fence, "field": guard.fence_field}
        return Problem.worded("fence", what, ROW_FENCE_TOO_LARGE, values, **of)
    if hold is not None:
        who = ", ".join(filter(None, (hold.held_by, hold.reason))) or "-"
        values |= {"lock": hold.name, "owner": hold.owner, "who": who}
        return Problem.worded("lost work", what, LOST_WORK_HELD, values, **of, info=hold)
    return Problem.worded("lost work", what, LOST_WORK, values, **of)


def _locks_of(same_rows: Sequence[Work], pk: Any) -> list[tuple[str, str]]:
    """The stores and names of all locks under which the row may be worked on, if all are known."""
    found: list[tuple[str, str]] = []
    for work in same_rows:
        names = work.names_of(pk)
        if not names:
            return []
        found += [(work.store, name) for name in names]
    return found


def _without_run(
    suspects: dict[Any, list[tuple[str, str]]],
) -> tuple[dict[Any, list[tuple[str, str]]], dict[tuple[str, str], LockInfo]]:
    """The rows of which nobody, or an operator, has the locks, and what operators hold of them."""
    names: dict[str, list[str]] = {}
    for alias, name in {lock for locks in suspects.values() for lock in locks}:
        names.setdefault(alias, []).append(name)
    held: set[tuple[str, str]] = set()
    holds: dict[tuple[str, str], LockInfo] = {}
    for alias, some in names.items():
        for name, info in zip(some, stores[alias].get_many(some), strict=True):
            if info is not None and info.held_by is not None:
                holds[alias, name] = info
            elif info is not None:
                held.add((alias, name))
    return {pk: locks for pk, locks in suspects.items() if held.isdisjoint(locks)}, holds


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


def _responsible(same_rows: Sequence[Work], pk: Any) -> Work:
    """The task whose row it is, where several tasks claim the same rows."""
    for work in same_rows:
        wanted = work.guard.filter
        if (
            len(same_rows) == 1
            or wanted is None
            or work.guard.rows().filter(wanted, pk=pk).exists()
        ):
            return work
    return same_rows[0]
