"""
Signals of a lock's life, sent by the service with ``send_robust``: a receiver that raises
never stops a release. The sender is the `LockService` class; that of ``task_not_run`` is the
task's class.

====================  ============================================================
signal                arguments
====================  ============================================================
``lock_acquired``     ``lease``, ``template``, ``waited`` (seconds), ``holder``
                      (`LockInfo` of the one that it began to wait for; None: it
                      did not have to wait)
``lock_contended``    ``name``, ``store``, ``holder`` (`LockInfo`), ``owner`` (the
                      `Owner` who asked), ``waited`` (seconds), ``template``,
                      ``wait`` (as in the call)
``lock_unavailable``  ``name``, ``store``, ``template``, ``waited`` (seconds),
                      ``wait`` (as in the call), ``error``: the store did not
                      answer who asked for the lock
``lock_released``     ``lease``, ``template``, ``held`` (seconds)
``lock_lost``         ``lease``, ``reason``, ``cause``, ``template``, ``held``
                      (seconds); once for each lease
``lock_cleared``      ``name``, ``store``, ``token`` (or None), ``holder``
                      (`LockInfo` or None), ``by`` (what cleared it, for the log,
                      or None), ``cause``
``lock_held``         ``name``, ``store``, ``holder`` (`LockInfo`), ``ttl``
                      (seconds): an operator holds it; ``lock_acquired`` is not
                      sent
``task_not_run``      ``task`` (its name), ``task_id`` (or None), ``name`` (of the
                      lock), ``store``, ``template``, ``outcome``, ``reason``
====================  ============================================================

``template`` is what the lock's name was filled from, such as ``"video:{video_id}"``: that of a
decorator, view or task; None for a name that was given as it is. ``cause``, ``outcome`` and
``reason`` of a task are of closed sets, so that they can be labels of a metric:

* ``cause`` of a loss: "expired" (it was not extended in time), "gone" (the store did not have it
  any more: it was cleared there, or was over).
* ``cause`` of a clear: "takeover" (its owner is dead), "worker" (so is the pool child that had it),
  "run" (the run had lost it), "cleared" (an operator, or other code).
* ``outcome`` and ``reason`` of a task: `OUTCOMES`.

``lock_lost`` may be sent from the renewal thread: its receivers must not use the ORM
connection of another thread.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from django.dispatch import Signal

__all__ = [
    "OUTCOMES", "lock_acquired", "lock_cleared", "lock_contended", "lock_held", "lock_lost",
    "lock_released", "lock_unavailable", "task_not_run",
]  # fmt: skip

lock_acquired = Signal()
lock_contended = Signal()
lock_unavailable = Signal()
lock_released = Signal()
lock_lost = Signal()
lock_cleared = Signal()
lock_held = Signal()
task_not_run = Signal()

# The class `LockService`, which says so itself: it stands above all that sends signals.
senders: list[Any] = []


def tell(signal: Signal, **said: Any) -> None:
    """Send a signal of a lock's life."""
    if signal.receivers:
        signal.send_robust(senders[0], **said)


# Why a task was skipped, as its marker says it. "coalesced" is an outcome of its own.
SkipReason = Literal[
    "already_processing", "coalesced", "cooling_down", "debounced", "held_by_operator",
    "invalid_state", "replaced",
]  # fmt: skip
# The outcomes of ``task_not_run``, each with its reasons.
OUTCOMES: dict[str, tuple[str, ...]] = {
    "skipped": tuple(sorted({*get_args(SkipReason)} - {"coalesced"})),
    "coalesced": ("follow_up",),
    "joined": ("result",),
    "requeued": ("held", "lease_lost", "limit", "outage", "redelivery"),
    "dropped": ("redelivery",),
    "duplicate": ("queued", "running"),
    "given_up": ("held", "outage", "requeue_failed", "too_many_attempts"),
}
