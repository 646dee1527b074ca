"""A call of a task that is not run: its marker, and its event in the history, say why."""

from __future__ import annotations

from typing import Any, Literal

from .._values.lock_info import LockInfo
from .._values.owner import Owner, owner_record
from ..stores import stores
from .history import note_event

SkipReason = Literal[
    "already_processing", "coalesced", "cooling_down", "debounced", "held_by_operator",
    "invalid_state", "replaced",
# Why a task was skipped; ``signals.OUTCOMES`` has them too.
]  # fmt: skip


def reason_of(holder: LockInfo) -> SkipReason:
    """Return the reason of a call that is skipped because ``holder`` has its lock.

    Only "already_processing" may mean that somebody does the work.
    """
    if holder.held_by is not None:
        return "held_by_operator"
    return "cooling_down" if holder.cooling else "already_processing"


def skipped(
    store: str, name: str, task: str, task_id: str | None, reason: SkipReason, holder: Owner | None
) -> dict[str, Any]:
    """Note that a task is skipped, and return what it returns: plain JSON.

    ``store`` is the alias, ``name`` that of the lock, and ``holder`` who has it, or the task that
    does the work instead; None: nobody. ``task`` and ``task_id`` are those of the skipped call.
    """
    note_event(
        stores[store], "skipped", name, owner_record(task, task_id), holder=holder, reason=reason
    )
    marker: dict[str, Any] = {
        "status": "skipped", "reason": reason, "lock": name,
        "holder": None if holder is None else holder.task_id,
    }  # fmt: skip
    if holder is not None and holder.held_by is not None:
        marker |= {"held_by": holder.held_by, "hold_reason": holder.reason}
    return marker
