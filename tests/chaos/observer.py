"""Looks at the locks again and again, from the conductor's process, past the proxies."""

from __future__ import annotations

import threading
from types import TracebackType

from tests.chaos.bounds import HICCUP_SECONDS, NAMES
from tests.chaos.history import History, now

__all__ = ["Observer"]

PAUSE_SECONDS = 0.04
"""seconds between two looks at all locks"""


class Observer:
    """Writes down who holds each lock and who waits for it, for the time of the block."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Observer:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        from django_tasklock import StoreUnavailable

        while True:
            before = now()
            if self._over.wait(PAUSE_SECONDS):
                return
            if now() - before > PAUSE_SECONDS + HICCUP_SECONDS:
                self._history.write("fault", fault="hiccup", since=before)
            for name in NAMES:
                try:
                    self._look(name)
                except StoreUnavailable:
                    break  # It is stopped, or has closed our connection as well.

    def _look(self, name: str) -> None:
        from django_tasklock import locks

        since = now()
        info = locks.get(name)
        queue = [owner.thread for owner in locks.waiters(name)]
        self._history.write(
            "seen",
            name=name,
            since=since,
            token=info.token if info else None,
            fence=info.fence if info else None,
            holder=(info.owner.thread or "") if info else "",
            queue=queue,
        )
