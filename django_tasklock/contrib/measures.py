"""What is measured, by whatever library: the metrics, and the receivers that fill them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from django.dispatch import Signal

from .._engine.lease import Lease
from .._values.lock_info import LockInfo
from ..signals import (
    lock_acquired,
    lock_cleared,
    lock_contended,
    lock_lost,
    lock_released,
    lock_unavailable,
    task_not_run,
)
from .lock_labels import label_of, label_of_lease

__all__ = ["COUNTERS", "HISTOGRAMS", "SECONDS", "Measuring", "Metric", "Recorder"]

SECONDS = (
    0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0,
)  # fmt: skip
"""upper bounds of the buckets of all histograms"""


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


class Recorder(Protocol):
    """Keeps the numbers. It is called in any thread."""

    def count(self, metric: Metric, *labels: str) -> None:
        """Add one to a counter."""

    def observe(self, metric: Metric, seconds: float, *labels: str) -> None:
        """Add a value to a histogram."""


class Measuring:
    """The receivers of the signals, which tell ``recorder``. ``name`` tells them from others."""

    def __init__(self, recorder: Recorder, name: str) -> None:
        self._recorder = recorder
        self._name = name
        self._receivers: tuple[tuple[Signal, Callable[..., None]], ...] = (
            (lock_acquired, self._acquired),
            (lock_contended, self._contended),
            (lock_unavailable, self._unavailable),
            (lock_released, self._released),
            (lock_lost, self._lost),
            (lock_cleared, self._cleared),
            (task_not_run, self._not_run),
        )

    def connect(self) -> None:
        """Connect the receivers. A second call changes nothing."""
        for signal, receiver in self._receivers:
            signal.connect(receiver, weak=False, dispatch_uid=self._uid(receiver))

    def disconnect(self) -> None:
        """Disconnect the receivers."""
        for signal, receiver in self._receivers:
            signal.disconnect(dispatch_uid=self._uid(receiver))

    def _uid(self, receiver: Callable[..., None]) -> str:
        return f"{self._name}.{receiver.__name__}"

    def _asked(self, label: str, store: str, outcome: str, waited: float) -> None:
        self._recorder.count(ACQUIRES, label, store, outcome)
        self._recorder.observe(WAIT, waited, label, store, outcome)

    def _acquired(self, *, lease: Lease, waited: float, **_: Any) -> None:
        self._asked(label_of_lease(lease), lease.store, "acquired", waited)

    def _contended(
        self, *, name: str, store: str, template: str | None, waited: float, **_: Any
    ) -> None:
        self._asked(label_of(template, name), store, "refused", waited)

    def _unavailable(
        self, *, name: str, store: str, template: str | None, waited: float, **_: Any
    ) -> None:
        self._asked(label_of(template, name), store, "unavailable", waited)

    def _released(self, *, lease: Lease, held: float, **_: Any) -> None:
        self._recorder.observe(HOLD, held, label_of_lease(lease), lease.store, "released")

    def _lost(self, *, lease: Lease, cause: str, held: float, **_: Any) -> None:
        label = label_of_lease(lease)
        self._recorder.count(LOST, label, lease.store, cause)
        self._recorder.observe(HOLD, held, label, lease.store, "lost")

    def _cleared(
        self, *, name: str, store: str, holder: LockInfo | None, cause: str, **_: Any
    ) -> None:
        slots = None if holder is None else holder.owner.slots
        self._recorder.count(CLEARED, label_of(None, name, slots), store, cause)

    def _not_run(
        self, *, name: str, store: str, template: str, outcome: str, reason: str, **_: Any
    ) -> None:
        self._recorder.count(NOT_RUN, label_of(template, name), store, outcome, reason)
