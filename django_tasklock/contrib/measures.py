"""What is measured, by whatever library: the metrics, their labels, and the signals behind them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from django.dispatch import Signal

from .. import signals
from .._engine.lease import Lease

# The upper bounds of the buckets of all histograms.
SECONDS = (
    0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0,
)  # fmt: skip
# The label of a lock without a template. A name is never a label: there may be millions of names,
# and each value of a label is a time series of its own.
OTHER = "other"
# Different templates of one process: code that makes templates of values gets no more series.
MOST_LABELS = 500

# What adds to a metric: a number, and its labels. It is called in any thread.
Add = Callable[..., None]


class Metric(NamedTuple):
    """A counter, or a histogram of seconds."""

    name: str
    text: str
    labels: tuple[str, ...]


OUTCOME = ("lock", "store", "outcome")
REASON = ("lock", "store", "reason")
ACQUIRES = Metric("acquires", "Calls that asked for a lock, by what they got.", OUTCOME)
LOST = Metric("leases_lost", "Leases that ended before their release.", REASON)
CLEARED = Metric("locks_cleared", "Locks that were taken from their holder.", REASON)
NOT_RUN = Metric("tasks_not_run", "Calls of tasks that did not run.", (*OUTCOME, "reason"))
WAIT = Metric("wait", "Seconds that callers waited for a lock.", OUTCOME)
HOLD = Metric("hold", "Seconds that a lease was held.", OUTCOME)
COUNTERS = (ACQUIRES, LOST, CLEARED, NOT_RUN)
HISTOGRAMS = (WAIT, HOLD)


class Measures:
    """The receivers of the signals. A library keeps the numbers: ``counter`` and ``histogram`` make
    its metrics."""

    def __init__(
        self, counter: Callable[[Metric], Add], histogram: Callable[[Metric], Add]
    ) -> None:
        self._templates: set[str] = set()
        self._add = {each: counter(each) for each in COUNTERS}
        self._add |= {each: histogram(each) for each in HISTOGRAMS}
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

    def label_of(self, template: str | None) -> str:
        """Return the value of the label "lock" for locks whose names are filled from a template."""
        if template is not None and len(self._templates) < MOST_LABELS:
            self._templates.add(template)
        return template if template in self._templates else OTHER

    def _asked(self, outcome: str, *, template: str | None, waited: float, **said: Any) -> None:
        store = said["lease"].store if outcome == "acquired" else said["store"]
        labels = self.label_of(template), store, outcome
        self._add[ACQUIRES](1, *labels)
        self._add[WAIT](waited, *labels)

    def _ended(
        self, *, lease: Lease, template: str | None, held: float, cause: str = "", **_: Any
    ) -> None:
        """``cause``: of a loss."""
        label = self.label_of(template)
        if cause:
            self._add[LOST](1, label, lease.store, cause)
        self._add[HOLD](held, label, lease.store, "lost" if cause else "released")

    def _cleared(self, *, store: str, cause: str, **_: Any) -> None:
        # Who clears a lock knows its name, and no template.
        self._add[CLEARED](1, OTHER, store, cause)

    def _not_run(self, *, store: str, template: str, outcome: str, reason: str, **_: Any) -> None:
        self._add[NOT_RUN](1, self.label_of(template), store, outcome, reason)
