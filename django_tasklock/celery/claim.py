"""The rows that runs have claimed, and which of them keep a lease from being handed on.

And what a run has that got no row, or has no lease.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ValidationError

from .._engine.lease import Lease
from ..guards import StatusGuard

__all__ = ["Claim", "NoWork", "Unleased", "at_work", "check_handing", "has_row_of"]


class NoWork(Exception):
    """The guard's row is not in a state to be worked on. ``row`` is its model and key."""

    def __init__(self, row: str) -> None:
        super().__init__(row)
        self.row = row


class Unleased:
    """``self.lease`` of a run without a lock, which only the guard protects."""

    token = ""
    fence = None
    held = False
    remaining = 0.0

    def __init__(self, name: str) -> None:
        self.name = name

    def assert_held(self) -> None:
        """Do nothing: there is no lease that could be lost."""

    def _is_detached(self) -> bool:
        return False


@dataclass(slots=True)
class Claim:
    """The row that a run has claimed."""

    guard: StatusGuard
    pk: Any
    fence: int | None
    lease: Lease | None
    replaced: bool = False
    """whether the row waits for the task that replaces this one"""

    def has_row_of(self, guard: StatusGuard, pk: Callable[[], Any]) -> bool:
        """Return whether ``guard`` cannot claim the row ``pk()`` beside this claim: it is the same
        row, and both guards write the same field."""
        if self.guard.model._meta.concrete_model is not guard.model._meta.concrete_model:
            return False
        fences = {self.guard.fence_field, guard.fence_field}
        if self.guard.field != guard.field and (len(fences) == 2 or None in fences):
            return False
        key, other = guard.model._meta.pk, pk()
        assert key is not None
        try:
            return bool(key.to_python(self.pk) == key.to_python(other))
        except ValidationError:
            return bool(self.pk == other)

    def check_handing(self, task: str, guard: StatusGuard | None, pk: Callable[[], Any]) -> None:
        """Raise `ValueError` if a call of ``task`` cannot go on under this run's lease before this
        run has finished its row. ``guard`` and ``pk()`` are those of the call."""
        if self.replaced:
            return
        if self.fence is None:
            raise ValueError(
                f"the lease protects the row {self.pk} of {self.guard.label}, which this run has "
                "claimed without a fence: it cannot be handed on before the run has ended"
            )
        if guard is not None and self.has_row_of(guard, pk):
            raise ValueError(
                f"this run has claimed the row {self.pk} of {guard.label}, and finishes it when "
                f"its body has returned: {task} cannot claim it under the same lease. "
                "Send it in a chain, without the lease"
            )


at_work: ContextVar[tuple[Claim, ...]] = ContextVar("tasklock_at_work", default=())
"""the rows that the runs around this code have claimed, the innermost run's last"""


def check_handing(token: str, task: str, guard: StatusGuard | None, pk: Callable[[], Any]) -> None:
    """Raise `ValueError` if a run around this code has the lease with this ``token``, and cannot
    hand it on now. See `Claim.check_handing`."""
    for claim in at_work.get():
        if claim.lease is not None and claim.lease.token == token:
            claim.check_handing(task, guard, pk)


def has_row_of(lease: Lease, guard: StatusGuard, pk: Callable[[], Any]) -> bool:
    """Return whether a run around this code has claimed the row ``pk()`` of ``guard`` under the
    ``lease``. See `Claim.has_row_of`."""
    return any(claim.lease is lease and claim.has_row_of(guard, pk) for claim in at_work.get())
