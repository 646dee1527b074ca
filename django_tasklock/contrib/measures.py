"""What is measured, by whatever library: the metrics, their labels, and the signals behind them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.dispatch import Signal

from .._engine.lease import Lease
from ..signals import (
    lock_acquired,
    lock_cleared,
    lock_contended,
    lock_lost,
    lock_released,
    lock_unavailable,
    task_not_run,
)

__all__ = ["COUNTERS", "HISTOGRAMS", "MOST_LABELS", "OTHER", "SECONDS", "Measures", "Metric"]

SECONDS = (
    0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0,
)  # fmt: skip
"""upper bounds of the buckets of all histograms"""
OTHER = "other"
"""the label of a lock without a template. A name is never a label: there may be millions of names,
and each value of a label is a time series of its own."""
MOST_LABELS = 500
"""different templates of one process: code that makes templates of values gets no more series"""


@dataclass(frozen=True, slots=True)
class Metric:
    """A counter, or a histogram of seconds."""

    name: str
    text: str
    labels: tuple[str, ...]


ACQUIRES = Metric(
    "acquires", "Calls that asked for a lock, by what they got.", ("lock", "store", "outcome")
)
LOST = Metric("leases_lost", "Leases that ended before their release.", ("lock", "store", "reason"))
CLEARED = Metric(
    "locks_cleared", "Locks that were taken from their holder.", ("lock", "store", "reason")
)
NOT_RUN = Metric(
    "tasks_not_run", "Calls of tasks that did not run.", ("lock", "store", "outcome", "reason")
)
WAIT = Metric("wait", "Seconds that callers waited for a lock.", ("lock", "store", "outcome"))
HOLD = Metric("hold", "Seconds that a lease was held.", ("lock", "store", "outcome"))
COUNTERS = (ACQUIRES, LOST, CLEARED, NOT_RUN)
HISTOGRAMS = (WAIT, HOLD)


class Measures(ABC):
    """The receivers of the signals. A subclass keeps the numbers by a library of its own."""

    def __init__(self) -> None:
        self._templates: set[str] = set()
        self._receivers: tuple[tuple[Signal, Callable[..., None]], ...] = (
            (lock_acquired, self._acquired),
            (lock_contended, self._contended),
            (lock_unavailable, self._unavailable),
            (lock_released, self._released),
            (lock_lost, self._lost),
            (lock_cleared, self._cleared),
            (task_not_run, self._not_run),
        )

    @abstractmethod
    def count(self, metric: Metric, *labels: str) -> None:
        """Add one to a counter. It is called in any thread."""

    @abstractmethod
    def observe(self, metric: Metric, seconds: float, *labels: str) -> None:
        """Add a value to a histogram. It is called in any thread."""

    def connect(self) -> None:
        """Count from now on. A second call changes nothing."""
        for signal, receiver in self._receivers:
            signal.connect(receiver, weak=False)

    def disconnect(self) -> None:
        """Count no longer."""
        for signal, receiver in self._receivers:
            signal.disconnect(receiver)

    def label_of(self, template: str | None) -> str:
        """Return the value of the label "lock" for locks whose names are filled from a template."""
        if template is None or template in self._templates:
            return template or OTHER
        if len(self._templates) >= MOST_LABELS:
            return OTHER
        self._templates.add(template)
        return template

    def _asked(self, template: str | None, store: str, outcome: str, waited: float) -> None:
        labels = self.label_of(template), store, outcome
        self.count(ACQUIRES, *labels)
        self.observe(WAIT, waited, *labels)

    def _acquired(self, *, lease: Lease, template: str | None, waited: float, **_: Any) -> None:
        self._asked(template, lease.store, "acquired", waited)

    def _contended(self, *, store: str, template: str | None, waited: float, **_: Any) -> None:
        self._asked(template, store, "refused", waited)

    def _unavailable(self, *, store: str, template: str | None, waited: float, **_: Any) -> None:
        self._asked(template, store, "unavailable", waited)

    def _released(self, *, lease: Lease, template: str | None, held: float, **_: Any) -> None:
        self.observe(HOLD, held, self.label_of(template), lease.store, "released")

    def _lost(
        self, *, lease: Lease, template: str | None, cause: str, held: float, **_: Any
    ) -> None:
        label = self.label_of(template)
        self.count(LOST, label, lease.store, cause)
        self.observe(HOLD, held, label, lease.store, "lost")

    def _cleared(self, *, store: str, cause: str, **_: Any) -> None:
        # Who clears a lock knows its name, and no template.
        self.count(CLEARED, OTHER, store, cause)

    def _not_run(self, *, store: str, template: str, outcome: str, reason: str, **_: Any) -> None:
        self.count(NOT_RUN, self.label_of(template), store, outcome, reason)
