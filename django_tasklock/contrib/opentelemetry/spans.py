"""A span for each wait, linked to the span in which the holder took the lock.

The span is made when the wait is over, with the time at which it began: only then it is known that
there was a wait. The signals are sent in the context of the caller, so its span is the parent.

The holder's record says in which span it took the lock: trace and span id, in hexadecimal digits.
"""

from __future__ import annotations

import re
import time
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import Link, SpanContext, Status, StatusCode, TraceFlags

from ..._engine.lease import Lease
from ..._values import owner_record
from ..._values.lock_info import LockInfo
from ...exceptions import StoreUnavailable
from ...signals import lock_acquired, lock_contended, lock_unavailable
from ..lock_labels import label_of, label_of_lease

__all__ = ["connect", "disconnect"]

NANOSECONDS = 1_000_000_000

_written = re.compile(r"([0-9a-f]{32})-([0-9a-f]{16})").fullmatch


def connect() -> None:
    """Connect the receivers, and write the current span into records. A second call changes
    nothing."""
    for signal, receiver in _RECEIVERS:
        signal.connect(receiver, weak=False, dispatch_uid=f"{__name__}.{receiver.__name__}")
    owner_record.trace_source = _current


def disconnect() -> None:
    """Undo `connect`."""
    for signal, receiver in _RECEIVERS:
        signal.disconnect(dispatch_uid=f"{__name__}.{receiver.__name__}")
    owner_record.trace_source = None


def _current() -> str | None:
    """The current span as a record has it; None without one that is exported."""
    here = trace.get_current_span().get_span_context()
    if not here.is_valid or not here.trace_flags.sampled:
        return None
    return f"{trace.format_trace_id(here.trace_id)}-{trace.format_span_id(here.span_id)}"


def _acquired(*, lease: Lease, waited: float, holder: LockInfo | None, **_: Any) -> None:
    if holder is not None:
        _make(label_of_lease(lease), lease.store, "acquired", waited, holder)


def _contended(
    *,
    name: str,
    store: str,
    template: str | None,
    waited: float,
    holder: LockInfo | None,
    wait: float | None,
    **_: Any,
) -> None:
    if wait != 0:
        _make(label_of(template, name), store, "refused", waited, holder)


def _unavailable(
    *,
    name: str,
    store: str,
    template: str | None,
    waited: float,
    wait: float | None,
    error: StoreUnavailable,
    **_: Any,
) -> None:
    if wait != 0:
        _make(label_of(template, name), store, "unavailable", waited, None, error)


_RECEIVERS = (
    (lock_acquired, _acquired),
    (lock_contended, _contended),
    (lock_unavailable, _unavailable),
)


def _make(
    label: str,
    store: str,
    outcome: str,
    waited: float,
    holder: LockInfo | None,
    error: StoreUnavailable | None = None,
) -> None:
    now = time.time_ns()
    span = trace.get_tracer("django_tasklock").start_span(
        "tasklock wait",
        attributes={
            "tasklock.lock": label, "tasklock.store": store, "tasklock.outcome": outcome,
        },
        links=_links(holder),
        start_time=now - int(waited * NANOSECONDS),
    )  # fmt: skip
    if error is not None:
        span.set_status(Status(StatusCode.ERROR, error.reason))
    span.end(now)


def _links(holder: LockInfo | None) -> list[Link]:
    found = _written((holder is not None and holder.owner.trace) or "")
    if found is None:
        return []
    there = SpanContext(
        int(found[1], 16), int(found[2], 16), is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )  # fmt: skip
    return [Link(there)] if there.is_valid else []
