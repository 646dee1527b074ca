"""What is measured, by whatever library: the metrics, their labels, and the signals behind them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from django.dispatch import Signal

from .. import signals
from .._engine.lease import Lease
from .._values.lock_info import LockInfo

# The upper bounds of the buckets of all histograms.
SECONDS = (
    0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0,
)  # fmt: skip
# The label of a lock without a template, and of one that no task holds. A name is never a label:
# there may be millions of names, and each value of a label is a time series of its own.
OTHER = "other"
# Different labels of one process: code that makes templates of values gets no more series.
MOST_LABELS = 500

# What adds to a metric: a number, and its labels. It is called in any thread.
Add = Callable[..., None]


class Metric(NamedTuple):
    """A counter, or a histogram of seconds. ``unit``: by UCUM."""

    name: str
    unit: str
    text: str
    labels: tuple[str, ...]


OUTCOME, REASON = ("lock", "store", "outcome"), ("store", "reason")
ACQUIRES = Metric("acquires", "{acquire}", "Calls for a lock, by what they got.", OUTCOME)
LOST = Metric("leases_lost", "{lease}", "Leases that ended before release.", ("lock", *REASON))
CLEARED = Metric("locks_cleared", "{lock}", "Locks taken from their holder.", ("task", *REASON))
NOT_RUN = Metric("tasks_not_run", "{call}", "Task calls that did not run.", (*OUTCOME, "reason"))
WAIT = Metric("wait", "s", "Seconds that callers waited for a lock.", OUTCOME)
HOLD = Metric("hold", "s", "Seconds that a lease was held.", OUTCOME)
COUNTERS = (ACQUIRES, LOST, CLEARED, NOT_RUN)
HISTOGRAMS = (WAIT, HOLD)
# What alerts ask for, without the lock and the store. It is there from a lock's first event on: a
# series that begins with 1 has not increased.
AT_ZERO: list[tuple[Metric, tuple[str, ...]]] = [
    (ACQUIRES, ("unavailable",)), (LOST, ("expired",)), (LOST, ("gone",)),
    *((NOT_RUN, ("given_up", reason)) for reason in signals.OUTCOMES["given_up"]),
]  # fmt: skip
_labels: set[str] = set()


def label_of(text: str | None) -> str:
    """Return the value of the label "lock" for a template, or of "task" for a task's name."""
    if text is not None and len(_labels) < MOST_LABELS:
        _labels.add(text)
    return text if text in _labels else OTHER


def task_of(holder: LockInfo | None) -> str:
    """Return the label of the task that holds a lock. A command is none: with its arguments it may
    be another one each day."""
    return label_of(holder.owner.task if holder and holder.owner.task_id else None)


class Measures:
    """The receivers of the signals. A library keeps the numbers: ``made`` makes its metrics."""

    def __init__(self, made: Callable[[Metric], Add]) -> None:
        self._begun: set[tuple[str, str]] = set()
        self._add = {each: made(each) for each in (*COUNTERS, *HISTOGRAMS)}
        # Kept here, for each is a new object: a second `connect` changes nothing.
        self.receivers: dict[Signal, Callable[..., None]] = {
            signals.lock_acquired: partial(self._asked, "acquired"),
            signals.lock_contended: partial(self._asked, "refused"),
            signals.lock_unavailable: partial(self._asked, "unavailable"),
            signals.lock_released: self._ended,
            signals.lock_lost: self._ended,
            signals.lock_cleared: self._cleared,
            signals.task_not_run: self._not_run,
        }

    def connect(self) -> None:
        """Count from now on. A second call changes nothing."""
        for signal, receiver in self.receivers.items():
            signal.connect(receiver, weak=False)

    def _lock(self, template: str | None, store: str) -> tuple[str, str]:
        """The first two labels. With a lock's first event they have all series of `AT_ZERO`."""
        lock = label_of(template), store
        if lock not in self._begun:
            self._begun.add(lock)
            for metric, labels in AT_ZERO:
                self._add[metric](0, *lock, *labels)
        return lock

    def _asked(self, outcome: str, *, template: str | None, waited: float, **said: Any) -> None:
        store = said["lease"].store if outcome == "acquired" else said["store"]
        labels = *self._lock(template, store), outcome
        self._add[ACQUIRES](1, *labels)
        self._add[WAIT](waited, *labels)

    def _ended(
        self, *, lease: Lease, template: str | None, held: float, cause: str = "", **_: Any
    ) -> None:
        """``cause``: of a loss."""
        lock = self._lock(template, lease.store)
        if cause:
            self._add[LOST](1, *lock, cause)
        self._add[HOLD](held, *lock, "lost" if cause else "released")

    def _cleared(self, *, store: str, cause: str, holder: LockInfo | None, **_: Any) -> None:
        # Who clears a lock knows its holder, and no template.
        self._add[CLEARED](1, task_of(holder), store, cause)

    def _not_run(self, *, store: str, template: str, outcome: str, reason: str, **_: Any) -> None:
        self._add[NOT_RUN](1, *self._lock(template, store), outcome, reason)
