"""The state of the stores and of guarded rows, as gauges that are asked for at each scrape.

What is not known has no value: a store that does not answer is "down", and has no other gauge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from django.db import Error as DatabaseError
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from ..._values.describe import age
from ..._values.lock_info import LockInfo
from ...exceptions import ListingNotSupported, StoreUnavailable
from ...operators.holders import Holder, holder_of
from ...operators.lost_work import lost_rows, works_by_rows
from ...stores import stores

__all__ = ["LockCollector"]

STATES = {
    Holder.ALIVE: "held",
    Holder.UNKNOWN: "held",
    Holder.COOLING: "cooling",
    Holder.DETACHED: "detached",
    Holder.OPERATOR: "operator",
    Holder.FOREIGN: "foreign",
    Holder.GONE: "orphaned",
}
"""the value of the label "state" for each holder"""


class LockCollector(Collector):
    """The gauges of all stores, for a registry: ``REGISTRY.register(LockCollector())``.

    They are the same on every host, so one host is enough. ``rows``: look for lost rows too, which
    imports the tasks, and asks the database once for each guard.
    """

    def __init__(self, *, rows: bool = True) -> None:
        self._rows = rows

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return the gauges without values: to register the collector asks no store."""
        return _Gauges().all()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Ask all stores. Raises `InvalidLockConfig` for wrong settings."""
        gauges = _Gauges()
        for alias in stores:
            gauges.add_store(alias)
        if self._rows:
            gauges.add_lost_rows()
        return gauges.all()


class _Gauges:
    def __init__(self) -> None:
        def gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"tasklock_{name}", text, labels=labels)

        self.up = gauge("store_up", "Whether the lock store answered: 1, or 0.", "store")
        self.locks = gauge("locks", "Locks that are taken, by their state.", "store", "state")
        self.waiters = gauge("waiters", "Callers that wait for a lock.", "store")
        self.longest = gauge(
            "longest_wait_seconds", "How long the one who waits longest has waited.", "store"
        )
        self.oldest = gauge(
            "oldest_lock_age_seconds", "Age of the lock that was taken first.", "store"
        )
        self.lost = gauge("lost_rows", "Rows at work whose lock nobody holds.", "rows")

    def all(self) -> list[GaugeMetricFamily]:
        return [self.up, self.locks, self.waiters, self.longest, self.oldest, self.lost]

    def add_store(self, alias: str) -> None:
        try:
            found = stores[alias].list()
        except StoreUnavailable:
            self.up.add_metric([alias], 0)
            return
        except ListingNotSupported:
            return  # Nothing can be asked that would tell.
        self.up.add_metric([alias], 1)
        locks = [info for info in found if info.owner.waits_for is None]
        counts = Counter(STATES[holder_of(info)] for info in locks)
        for state in dict.fromkeys(STATES.values()):
            self.locks.add_metric([alias, state], counts[state])
        waiters = _waiters(found)
        if waiters is not None:
            self.waiters.add_metric([alias], waiters)
        waiting = [at for info in found for at in (info.waiting_since, info.owner.waiting_since)]
        for gauge, moments in (
            (self.longest, waiting),
            (self.oldest, [info.acquired_at for info in locks]),
        ):
            known = [moment for moment in moments if moment is not None]
            if known:
                gauge.add_metric([alias], max(0.0, age(min(known))))

    def add_lost_rows(self) -> None:
        """Count the lost rows of each model. Without the tasks, or an answer, nothing is known."""
        try:
            works = list(works_by_rows())
        except ImportError:
            return
        totals: dict[str, Counter[str]] = {}
        for same_rows in works:
            total = totals.setdefault(str(same_rows[0].guard.label), Counter())
            try:
                total.update(problem.kind for problem in lost_rows(same_rows))
            except (StoreUnavailable, DatabaseError):
                total["silent"] += 1
        for label, total in totals.items():
            # A part is not called all of them, nor are rows that are not known called 0.
            if not total["silent"] and (total["lost work"] or not total["unknown"]):
                self.lost.add_metric([label], total["lost work"])


def _waiters(found: Sequence[LockInfo]) -> int | None:
    """How many callers wait for these locks; None where that is not known of one of them."""
    queued = 0
    for info in found:
        if info.waiters is None:
            return None
        if info.owner.waits_for is not None:
            queued += 1  # It holds the gate, and waits for a permit.
        if info.owner.slots is None:
            # In the queue of a permit is the holder of the gate alone, who is counted already.
            queued += info.waiters
    return queued
