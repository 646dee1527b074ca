"""``on_conflict="run"``: a run beside the one that holds the lock.

It is for watching what a lock would do, before one lets it. The run has no lease on the lock, and
never touches the holder's. Like a run during an outage, it has the guard alone.

A message that the broker keeps until its run has ended takes a lease of its own name meanwhile
(`beside_name`), which only its redeliveries look at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .._engine.lease import Lease
from .._values.lock_info import LockInfo
from ..operators.logs import log_run_beside
from ..stores.base import Note
from .claim import NoWork
from .delivery import Delivery
from .locked_run import LockedRun

__all__ = ["RunBeside"]


class RunBeside(LockedRun):
    """What one call of a task does without the lock ``name``, which ``holder`` has."""

    cools = False

    def __init__(
        self,
        delivery: Delivery,
        name: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        called: tuple[Sequence[Any], Mapping[str, Any]],
        holder: LockInfo,
    ) -> None:
        super().__init__(delivery, name, args, kwargs, called)
        self.holder = holder

    def alone(self) -> Any:
        """As a call, for a message of which the broker keeps no copy: without any lease."""
        marker = self.start(None)
        return self.work(None) if marker is None else marker

    def work(self, lease: Lease | None) -> Any:
        """Run the body without a lease. Returns its result, or a skip marker.

        Raises `NoWork` if a run has claimed the guard's row, which may have died since.
        """
        try:
            return self.body(None, self._report)
        except NoWork as refused:
            if self.body.is_claimed():
                raise
            return self.skip_row(refused.row)

    def refuse(self, lease: Lease | None) -> None:
        """Leave the guard's row alone: it may be the holder's."""

    def release(self, lease: Lease, note: Note | None) -> bool:
        """Release the lease that only redeliveries look at. Its loss does not undo the run."""
        super().release(lease, note)
        return True

    def lock_of_other_run(self) -> str | None:
        """The name of the lock that another run of this very message would hold, if not this."""
        return self.name if self.delivery.survives else None

    def _report(self) -> None:
        task = self.task
        log_run_beside(self.name, task.lock_store, self.holder, str(task.name), self.delivery.id)
