"""The state of the stores and of guarded rows, as gauges that are asked for at each scrape.

What is not known has no value: a store that does not answer is "down", and has no other gauge.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime

from django.db import Error as DatabaseError
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from ..._values.arguments import base_of
from ..._values.lock_info import LockInfo
from ..._values.words import age
from ...exceptions import ListingNotSupported, StoreUnavailable
from ...operators.holders import Holder, holder_of
from ...operators.lost_work import lost_rows, works_by_rows
from ...stores import stores
from ..measures import task_of

# The value of the label "state" for each holder.
STATES = {holder: holder.value for holder in Holder} | {
    Holder.ALIVE: "held",
    Holder.UNKNOWN: "held",
    Holder.FOREIGN: "foreign",
    Holder.GONE: "orphaned",
}
# Of each gauge its text, and its labels.
GAUGES = {
    "store_up": ("Whether the lock store answered: 1, or 0.", "store"),
    "store_writable": ("Whether the lock store grants locks: 1, or 0.", "store"),
    "locks": ("Locks that are taken, by their state.", "store", "state"),
    "waiters": ("Callers that wait for a lock.", "store"),
    "longest_wait_seconds": ("How long the one who waits longest has waited.", "store"),
    "oldest_lock_age_seconds": ("Age of the task's oldest lease.", "store", "task"),
    "lost_rows": ("Rows at work whose lock nobody holds.", "rows"),
}
Gauges = dict[str, GaugeMetricFamily]


class LockCollector(Collector):
    """The gauges of all stores, for a registry: ``REGISTRY.register(LockCollector())``.

    They are the same on every host, so one host is enough. ``rows``: look for lost rows too, which
    imports the tasks, and asks the database once for each guard.
    """

    def __init__(self, *, rows: bool = True) -> None:
        self._rows = rows

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return the gauges without values: to register the collector asks no store."""
        return _gauges().values()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Ask all stores. Raises `InvalidLockConfig` for wrong settings."""
        gauges = _gauges()
        for alias in stores:
            _add_store(gauges, alias)
        if self._rows:
            _add_lost_rows(gauges["lost_rows"])
        return gauges.values()


def _gauges() -> Gauges:
    return {
        name: GaugeMetricFamily(f"tasklock_{name}", text, labels=labels)
        for name, (text, *labels) in GAUGES.items()
    }


def _add_store(gauges: Gauges, alias: str) -> None:
    try:
        with suppress(ListingNotSupported):  # Then only a write tells.
            _add_locks(gauges, alias, [*stores[alias].walk()])
    except StoreUnavailable:
        gauges["store_up"].add_metric([alias], 0)
        return
    gauges["store_writable"].add_metric([alias], not stores[alias].cannot_write())


def _add_locks(gauges: Gauges, alias: str, locks: Sequence[LockInfo]) -> None:
    gauges["store_up"].add_metric([alias], 1)
    counts = Counter[str]()
    moments = defaultdict[tuple[str, ...], list[datetime | None]](list)
    for info in locks:
        counts[STATES[holder_of(info)]] += 1
        moments["longest_wait_seconds", alias].append(info.waiting_since)
        if not (info.cooling or info.detached or info.held_by is not None):
            moments["oldest_lock_age_seconds", alias, task_of(info)].append(info.acquired_at)
    for state in dict.fromkeys(STATES.values()):
        gauges["locks"].add_metric([alias, state], counts[state])
    if all(info.waiters is not None for info in locks):
        # The permits of one name have one queue.
        queued = {base_of(info.name, info.owner.slots): info.waiters or 0 for info in locks}
        gauges["waiters"].add_metric([alias], sum(queued.values()))
    for (name, *labels), some in moments.items():
        if known := [age(moment) for moment in some if moment is not None]:
            gauges[name].add_metric(labels, max(0.0, *known))


def _add_lost_rows(gauge: GaugeMetricFamily) -> None:
    """Count the lost rows of each model. Without the tasks, or an answer, nothing is known."""
    totals: dict[str, Counter[str]] = {}
    with suppress(ImportError):
        for same_rows in works_by_rows():
            total = totals.setdefault(same_rows[0].guard.label, Counter())
            try:
                found = {(each.kind, each.what) for each in lost_rows(same_rows)}
                total.update(kind for kind, _ in found)
            except (StoreUnavailable, DatabaseError):
                total["silent"] += 1
    for label, total in totals.items():
        # A part is not called all of them, nor are rows that are not known called 0.
        if not total["silent"] and (total["lost work"] or not total["unknown"]):
            gauge.add_metric([label], total["lost work"] + total["other store"])
