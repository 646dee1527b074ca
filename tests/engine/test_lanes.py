"""The threads in which calls of asyncio programs, and what is noted, are made."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connections

from django_tasklock._engine.aio import lanes
from django_tasklock._engine.aio.lanes import Lane
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_thread_that_ends_has_closed_what_it_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if another thread took the call that was in the queue when its own had ended."""
    monkeypatch.setattr(lanes, "IDLE_SECONDS", 0.1)
    lane = Lane(2)
    opened: list[Any] = []
    both, goes_on = threading.Barrier(3), threading.Event()

    def opens() -> None:
        both.wait(PATIENCE)
        connection = connections["default"]
        connection.ensure_connection()
        opened.append(connection)

    def is_busy() -> None:
        both.wait(PATIENCE)
        assert goes_on.wait(PATIENCE)

    lane.submit(is_busy)
    lane.submit(opens)

    class Queue:
        """Shows the thread that has made its call another one, which it does not get."""

        def __init__(self) -> None:
            self._real: Any = lane._calls
            self._said = False

        def __getattr__(self, name: str) -> object:
            return getattr(self._real, name)

        def qsize(self) -> int:
            if opened and not self._said:
                self._said = True
                return 1
            length: int = self._real.qsize()
            return length

    lane._calls = Queue()  # type: ignore[assignment]
    both.wait(PATIENCE)
    until(lambda: opened, "its call")
    until(lambda: opened[0].connection is None, "closed")
    goes_on.set()
    until(lane.is_done, "all calls are made")
