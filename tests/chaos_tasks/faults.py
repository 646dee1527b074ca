"""What the conductor does to the workers, the servers and the connections, at random."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from tests.chaos.history import now
from tests.chaos_tasks.process_faults import ProcessFaults
from tests.chaos_tasks.server_faults import ServerFaults

__all__ = ["Faults"]

TICK_SECONDS = 0.02
HICCUP_SECONDS = 1.0
"""by which the conductor may be late, before the history says so"""


class Faults(ProcessFaults, ServerFaults):
    """Begins faults and ends them, each in its time. Everything runs in the main thread."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._kinds: list[tuple[Callable[[], object], int]] = [
            (self._kill_child, 8), (self._kill_main, 2), (self._stop_child, 3),
            (self._stop_until_replaced, 4), (self._stop_before_claim, 4),
            (self._stop_main, 1), (self._warm, 2), (self._cold, 2), (self._cold_in_the_only_try, 3),
            (self._cut_broker, 2),
            (self._cut_locks, 2), (self._restart_locks, 1), (self._empty_locks, 1),
            (self._pause_locks, 1), (self._restart_results, 1),
        ]  # fmt: skip
        if self._servers.node is not None:
            self._kinds.append((self._kill_broker, 3))
        if self._database.can_cut:
            self._kinds += [
                (self._cut_database, 1), (self._cut_update, 3), (self._fill_disk, 2),
            ]  # fmt: skip

    def run(self, while_: Callable[[], bool], pause: tuple[float, float]) -> None:
        """Disturb while it is so, with such a pause between two; leave nothing disturbed."""
        faults, weights = zip(*self._kinds, strict=True)
        due = now() + self._chance.uniform(*pause)
        while while_():
            self.tick()
            if now() >= due:
                with contextlib.suppress(ProcessLookupError):
                    self._chance.choices(faults, weights)[0]()
                due = now() + self._chance.uniform(*pause)
        while self._ends:
            self.tick()

    def tick(self) -> None:
        """End what is due, and replace workers that have ended."""
        since = now()
        time.sleep(TICK_SECONDS)
        if now() - since > HICCUP_SECONDS:
            self._history.write("hiccup", since=since)
        self._end_what_is_due()
        for worker in self._crew.mend():
            self._history.write("worker ended", whom=worker.pid, log=worker.text()[-3000:])
