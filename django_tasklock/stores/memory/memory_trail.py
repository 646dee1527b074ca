"""The history of locks in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ..._values.event import Event
from ...conf import StoreSettings
from ..trail import is_about
from .memory_notes import MemoryNotes

__all__ = ["MemoryTrail"]

HISTORY_EVENTS = 10_000
"""how many events are kept"""


class MemoryTrail(MemoryNotes):
    """The part of `MemoryStore` that keeps the history."""

    supports_history = True

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        self._events: deque[Event] = deque(maxlen=HISTORY_EVENTS)

    def record(self, events: Sequence[Event]) -> None:
        with self.guard:
            self._events.extend(events)

    def events(
        self, name: str | None = None, task_id: str | None = None, limit: int = 100
    ) -> list[Event]:
        with self.guard:
            found = [event for event in reversed(self._events) if is_about(event, name, task_id)]
        return found[:limit]
