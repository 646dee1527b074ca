"""The state of the stores and of guarded rows as gauges, for ``locks metrics`` and the view.

What is not known has no value: a store that does not answer is "down", and none of its other gauges
has a value: 0 would be wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from django.db import Error as DatabaseError

from .._values.describe import age
from .._values.keyed import key_of
from .._values.lock_info import LockInfo
from ..exceptions import ListingNotSupported, StoreUnavailable
from ..stores import stores
from ..stores.base import BaseStore
from .exposition import Gauge
from .lost_work import lost_rows, works_by_rows
from .savepoint import in_savepoint

__all__ = ["STATES", "callers_waiting", "lock_state"]

STATES = ("held", "cooling", "detached", "operator", "foreign", "orphaned")
"""the values of the label "state"; each lock is in one of them"""


def lock_state(aliases: Sequence[str] | None = None, *, rows: bool = True) -> list[Gauge]:
    """Return the gauges of the stores behind ``aliases`` (None: all stores).

    ``rows``: look for lost rows too, of the tasks that use these stores. That imports the tasks,
    and asks the database for each guard. Raises `InvalidLockConfig` for an unknown alias.
    """
    up = Gauge("tasklock_store_up", "Whether the lock store answered: 1, or 0.")
    locks = Gauge("tasklock_locks", "Locks that are taken, by their state.")
    waiters = Gauge("tasklock_waiters", "Callers that wait for a lock.")
    oldest = Gauge("tasklock_oldest_lock_age_seconds", "Age of the lock that was taken first.")
    longest = Gauge(
        "tasklock_longest_wait_seconds", "How long the one who waits longest for a lock has waited."
    )
    lost = Gauge("tasklock_lost_rows", "Rows at work whose lock nobody holds.")
    chosen = list(stores) if aliases is None else list(aliases)
    for alias in chosen:
        store = stores[alias]
        try:
            found = store.list()
            gone = _gone(store, found)
        except StoreUnavailable:
            up.add(0, store=alias)
            continue
        except ListingNotSupported:
            continue  # Nothing can be asked that would tell.
        up.add(1, store=alias)
        _add_locks(alias, found, gone, locks, waiters, oldest)
        _add_longest_wait(alias, found, longest)
    if rows:
        _add_lost(chosen, lost)
    return [up, locks, waiters, longest, oldest, lost]


def _gone(store: BaseStore, found: Iterable[LockInfo]) -> set[str]:
    """The locks, by `key_of`, whose process, on this machine, is gone."""
    suspects = [info for info in found if info.owner.alive() is False]
    # Asked once more: the owner may have released it, and ended, since, and another may have it.
    now = store.get_many([info.name for info in suspects]) if suspects else ()
    return {
        key_of(info.name)
        for info, held in zip(suspects, now, strict=True)
        if info.is_same_lease(held)
    }


def _add_locks(
    alias: str,
    found: Iterable[LockInfo],
    gone: set[str],
    locks: Gauge,
    waiters: Gauge,
    oldest: Gauge,
) -> None:
    counts = Counter(dict.fromkeys(STATES, 0))
    since = None
    for info in found:
        if info.owner.waits_for is not None:
            continue  # It holds the gate, and waits for a permit.
        counts[_state(info, gone)] += 1
        if info.acquired_at is not None and (since is None or info.acquired_at < since):
            since = info.acquired_at
    for state in STATES:
        locks.add(counts[state], store=alias, state=state)
    queued = callers_waiting(found)
    if queued is not None:
        waiters.add(queued, store=alias)
    if since is not None:
        oldest.add(max(0.0, age(since)), store=alias)


def callers_waiting(infos: Iterable[LockInfo]) -> int | None:
    """Return how many callers wait for these locks; None where that is not known of one of them."""
    queued = 0
    for info in infos:
        if info.waiters is None:
            return None
        if info.owner.slots is None:
            # In the queue of a permit is the holder of the gate alone, who is counted once.
            queued += info.waiters
        if info.owner.waits_for is not None:
            queued += 1  # It holds the gate, and waits for a permit.
    return queued


def _add_longest_wait(alias: str, found: Iterable[LockInfo], longest: Gauge) -> None:
    """Add the longest wait, if anybody is known to wait. Who holds the gate waits for a permit."""
    moments = [
        moment
        for info in found
        for moment in (info.waiting_since, info.owner.waiting_since)
        if moment is not None
    ]
    if moments:
        longest.add(max(0.0, age(min(moments))), store=alias)


def _state(info: LockInfo, gone: set[str]) -> str:
    if key_of(info.name) in gone:
        return "orphaned"
    if info.token is None:
        return "foreign"
    if info.held_by is not None:
        return "operator"
    if info.cooling:
        return "cooling"
    return "detached" if info.detached else "held"


def _add_lost(chosen: Sequence[str], lost: Gauge) -> None:
    """Count the lost rows of each model. Without the tasks, or an answer, nothing is known."""
    try:
        all_work = list(works_by_rows())
    except ImportError:
        return
    counts: Counter[str] = Counter()
    silent: set[str] = set()
    nameless: set[str] = set()
    """models with rows at work whose locks' names are not known"""
    for same_rows in all_work:
        if any(work.store in chosen for work in same_rows):
            label = str(same_rows[0].guard.label)
            try:
                with in_savepoint(same_rows[0].guard.model):
                    found = Counter(problem.kind for problem in lost_rows(same_rows))
            except (StoreUnavailable, DatabaseError):
                silent.add(label)
            else:
                counts[label] += found["lost work"]
                nameless.update([label] if found["unknown"] else [])
    for rows, count in counts.items():
        # A part of the rows is not called all of them, nor are rows that are not known called 0.
        if rows not in silent and (count or rows not in nameless):
            lost.add(count, rows=rows)
