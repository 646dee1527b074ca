"""A run whose lease was over before it ended, as after a stop of its process: what it must not do.

Its message may have been delivered again meanwhile. The note of the starts, the row and the queue
may be that run's by now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from .._engine.lease import Lease
from .._values.lock_info import LockInfo
from ..exceptions import StoreUnavailable
from .delivery import Delivery
from .requeue import requeue_redelivery

__all__ = ["LateRun"]

RESTART_DELAY_SECONDS = 0.5
"""the delay of a message whose run lost its lease and starts over"""


class LateRun:
    """What is done with the message of ``delivery`` if its run is late.

    ``args`` and ``kwargs`` are those of the message.
    """

    def __init__(self, delivery: Delivery, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._delivery = delivery
        self._args = args
        self._kwargs = kwargs

    def start_over(self, lease: Lease) -> NoReturn:
        """Requeue the message if nobody has the lock of the lost ``lease``, or a redelivery has it.

        Raises `LeaseLost` if another task id has it.
        """
        delivery, holder = self._delivery, self._holder_after(lease)
        if lease.slot is not None and holder is not None and not delivery.is_by(holder):
            holder = None  # Another permit may be free: the message comes back and asks for it.
        if holder is None:
            requeue_redelivery(
                delivery, self._args, self._kwargs, RESTART_DELAY_SECONDS, why="lease_lost"
            )
        self.leave_to(holder)
        lease.assert_held()
        raise AssertionError("a lost lease is not held")

    def leave_to_redelivery(self, lease: Lease) -> None:
        """Requeue the message if a redelivery of it has the lock of the lost ``lease``."""
        self.leave_to(self._holder_after(lease))

    def leave_to(self, holder: LockInfo | None) -> None:
        """Requeue the message if ``holder`` is another delivery of it, whose run counts.

        On Redis both deliveries have the same tag: the broker forgets the redelivery as well when
        this one is acknowledged. If its run died then, nothing would come back.
        """
        delivery = self._delivery
        if holder is not None and delivery.survives and delivery.is_by(holder):
            requeue_redelivery(delivery, self._args, self._kwargs, holder.ttl)

    def _holder_after(self, lease: Lease) -> LockInfo | None:
        """Who has the lock of a lost lease now; None if nobody has, or the store is silent."""
        task = self._delivery.task
        try:
            task.clear_lost(lease)
            return task.locks.get(lease.name)
        except StoreUnavailable:
            return None
