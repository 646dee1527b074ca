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
from django.utils.translation import gettext

from .._values.lock_info import LockInfo
from .._values.tokens import new_token
from ..exceptions import InvalidLockConfig, StoreUnavailable
from ..stores import stores
from .holders import command_line, who
from .problems import Problem
from .rows import key_of, next_fence, text_of_key
from .work import Work, works

__all__ = ["SeenRow", "Sent", "lost_rows", "requeue", "still_lost", "works_by_rows"]

ROWS_PER_LOOK = 500  # rows that are looked at together
# A row must be found claimed and not locked so often. Without a fence the row does not show that
# another run began and ended between two looks; and the broker often delivers the message of a
# killed run again before the last look.
LOOKS_PER_ROW = 3
LOOK_PAUSE_SECONDS = 0.1
REQUEUED_SECONDS = 60.0  # for so long the same row's task is not sent a second time

NamedLock = tuple[str, str]
"""a store's alias, and the name of a lock in it"""


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


class SeenRow(NamedTuple):
    """A lost row as the doctor has found it: its task and store, its key as text, its fence."""

    task: str
    store: str
    pk: str
    fence: int | None = None

    @classmethod
    def of(cls, problem: Problem) -> SeenRow:
        """The row of a problem of the kind "lost work"."""
        assert problem.work is not None
        return cls(problem.work.task, problem.work.store, text_of_key(problem.pk), problem.fence)


def still_lost(seen: Sequence[SeenRow]) -> dict[SeenRow, Problem]:
    """Return the problem of each row that is lost now as it was seen: with that fence.

    The rows are looked at as the doctor looks at them. Raises `StoreUnavailable`, and what
    importing the tasks raises.
    """
    found: dict[SeenRow, Problem] = {}
    for same_rows in works_by_rows():
        tasks = {(work.task, work.store) for work in same_rows}
        keys = [
            key_of(same_rows[0].guard, each.pk) for each in seen if (each.task, each.store) in tasks
        ]
        if keys:
            for problem in lost_rows(same_rows, [key for key in keys if key is not None]):
                if problem.kind == "lost work":
                    found[SeenRow.of(problem)] = problem
    return {each: found[each] for each in seen if each in found}


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
    fenced = {work.guard.fence_field for work in same_rows} == {guard.fence_field} and all(
        stores[work.store].supports_fence for work in same_rows
    )
    # Without a fence the key stands in its place: it never changes.
    fence_field = (fenced and guard.fence_field) or "pk"
    claimed = guard.rows().filter(Q((guard.field, guard.to)))
    if only is not None:
        claimed = claimed.filter(pk__in=list(only))
    rows = iter(claimed.order_by("pk").values_list("pk", fence_field).iterator(ROWS_PER_LOOK))
    while chunk := dict(islice(rows, ROWS_PER_LOOK)):
        suspects = {pk: locks for pk in chunk if (locks := _locks_of(same_rows, pk))}
        unknown += len(chunk) - len(suspects)
        held: dict[NamedLock, LockInfo] = {}
        for look in range(LOOKS_PER_ROW):
            if not suspects:
                break
            time.sleep(LOOK_PAUSE_SECONDS if look else 0)
            held = _holders({lock for locks in suspects.values() for lock in locks})
            runs = {lock for lock, info in held.items() if info.held_by is None}
            suspects = {pk: locks for pk, locks in suspects.items() if runs.isdisjoint(locks)}
            # A new run writes a new fence.
            now = dict(claimed.filter(pk__in=list(suspects)).values_list("pk", fence_field))
            suspects = {pk: suspects[pk] for pk in now if now[pk] == chunk[pk]}
        # After the looks, so that it is larger than the fence of every run before them.
        following = None
        if suspects and fence_field != "pk":
            following = next_fence(*(stores[work.store] for work in same_rows))
        for pk, locks in suspects.items():
            hold = next((held[lock] for lock in locks if lock in held), None)
            fence = None if fence_field == "pk" else chunk[pk]
            yield _lost(same_rows, pk, locks[0][1], fence, following, hold)
    if unknown:
        yield _nameless(same_rows, unknown)


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
    kind, hint = "lost work", gettext("Send it again: %(command)s")
    if fence is not None and following is not None and fence >= following:
        values |= {"fence": str(fence), "field": str(guard.fence_field)}
        kind, message, hint = (
            "fence",
            gettext(
                "The row is “%(status)s”, nobody holds its lock, and no run can claim it: its "
                "fence %(fence)s is larger than any lease’s now."
            ),
            gettext(
                "If no run of it lives, set its %(field)s to NULL, then send it again: %(command)s"
            ),
        )
    elif hold is not None:
        lock = hold.name
        values |= {"lock": lock, "who": ", ".join(filter(None, (who(hold.owner), hold.reason)))}
        message = gettext(
            "The row is “%(status)s”, no run works on it, and its lock %(lock)s is held by %(who)s."
        )
        hint = gettext("After the hold, send it again: %(command)s")
    else:
        message = gettext("The row is “%(status)s”, and nobody holds its lock %(lock)s.")
    return Problem(
        kind, f"{guard.label} {pk}", message % values, hint % values, command,
        store=work.store, lock=lock, info=hold if kind == "lost work" else None, task=work.task,
        model=guard.model, pk=pk, work=work, fence=fence,
    )  # fmt: skip


def _nameless(same_rows: Sequence[Work], count: int) -> Problem:
    guard, tasks = same_rows[0].guard, ", ".join(work.task for work in same_rows)
    return Problem(
        "unknown",
        guard.label,
        gettext("Rows that are “%(status)s” and whose locks’ names are not known: %(count)d.")
        % {"status": guard.to, "count": count},
        gettext("Use only the guard’s argument in the lock_name of %(tasks)s.") % {"tasks": tasks},
        serious=False,
        task=same_rows[0].task,
        model=guard.model,
        work=same_rows[0],
    )


def _locks_of(same_rows: Sequence[Work], pk: Any) -> list[NamedLock]:
    """All locks under which the row may be worked on, if all are known."""
    names = [(work.store, work.names_of(pk)) for work in same_rows]
    if not all(some for _, some in names):
        return []
    return [(store, name) for store, some in names for name in some]


def _holders(locks: Collection[NamedLock]) -> dict[NamedLock, LockInfo]:
    """What holds those of the locks that are held."""
    found: dict[NamedLock, LockInfo] = {}
    for alias in {alias for alias, _ in locks}:
        names = [name for of, name in locks if of == alias]
        for name, info in zip(names, stores[alias].get_many(names), strict=True):
            if info is not None:
                found[alias, name] = info
    return found


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
