"""What a call that is not run returns, and whom it tells."""

from __future__ import annotations

import logging
from typing import Any

from .._engine.skipping import SkipReason, skipped
from .._values.describe import printable
from .._values.owner import Owner
from .._values.owner_record import recorded
from .delivery import Delivery
from .outcomes import tell_not_run

__all__ = ["Skipping"]

logger = logging.getLogger("django_tasklock")


class Skipping:
    """The part of a run that skips the call. ``name`` is that of the lock."""

    def __init__(self, delivery: Delivery, name: str) -> None:
        self.task = delivery.task
        self.delivery = delivery
        self.name = name

    def skip(self, reason: SkipReason, holder: Owner | None) -> dict[str, Any]:
        """Return the marker of a skipped call. ``holder``: who has the lock."""
        if reason == "coalesced":
            self._tell(reason, "follow_up")
        else:
            self._tell("skipped", reason)
        task = self.task
        return skipped(task.lock_store, self.name, str(task.name), self.delivery.id, reason, holder)

    def _tell(self, outcome: str, reason: str) -> None:
        tell_not_run(self.task, outcome, reason, self.delivery.id, self.name)

    def skip_row(self, row: str) -> dict[str, Any]:
        """Log that the guard's ``row`` cannot be claimed, and return the marker."""
        logger.info(
            "skipped %s[%s]: its row %s is not in a state to be worked on, lock %s",
            self.task.name, self.delivery.id, printable(row), self.name,
        )  # fmt: skip
        return self.skip("invalid_state", None)

    def skip_replaced(self, later: str) -> dict[str, Any]:
        """Log that the call ``later`` replaces this one, which is debounced; return the marker."""
        logger.info(
            "skipped %s[%s]: the later call %s replaces it, lock %s",
            self.task.name, self.delivery.id, printable(later), self.name,
        )  # fmt: skip
        instead = Owner(task=str(self.task.name), task_id=recorded(later)) if later else None
        return self.skip("debounced", instead)
