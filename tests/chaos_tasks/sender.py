"""Sends the units of a plan, some at a time, and knows which are not done yet."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from django.db import close_old_connections

from tests.chaos.history import History
from tests.chaos_tasks.app import app
from tests.chaos_tasks.background import Background
from tests.chaos_tasks.plan import Message, Unit

__all__ = ["Sender"]

LOOK_SECONDS = 0.1
FINAL = ("done", "failed")


class Sender(Background):
    """Sends for as long as fewer than ``most`` jobs are under way."""

    def __init__(self, units: Iterable[Unit], most: int, history: History) -> None:
        super().__init__("sender")
        self._units = units
        self._most = most
        self._history = history
        self._lock = threading.Lock()
        self._sent: dict[int, list[Unit]] = {}
        self._sending: list[Unit] = []
        self.sent = 0

    def work(self) -> None:
        for unit in self._units:
            while len(self.unfinished()) > self._most and not self.over.wait(LOOK_SECONDS):
                pass
            while not self.over.is_set() and not self.send(unit):
                self.over.wait(LOOK_SECONDS)
            if self.over.is_set():
                return

    def unfinished(self) -> list[set[str]]:
        """The task ids of each job that was sent and is neither done nor failed."""
        from tests.chaos_tasks.rows.models import Job

        close_old_connections()
        open_jobs = Job._default_manager.exclude(status__in=FINAL).values_list("pk", flat=True)
        with self._lock:
            # A worker may have what is just being sent, before the sender knows it.
            begun = {job: [*units] for job, units in self._sent.items()}
            for unit in self._sending:
                for job in unit.jobs:
                    begun.setdefault(job, []).append(unit)
        return [
            {message.id for unit in begun[job] for message in unit.messages}
            for job in open_jobs if job in begun
        ]  # fmt: skip

    def units(self, job: int) -> list[Unit]:
        """What was sent of a job."""
        with self._lock:
            return list(self._sent.get(job, ()))

    def send(self, unit: Unit) -> bool:
        """Send a unit, from any thread. Returns False if it is not known to have been sent."""
        with self._lock:
            self._sending.append(unit)
        try:
            return self._send(unit)
        finally:
            with self._lock:
                self._sending.remove(unit)

    def _send(self, unit: Unit) -> bool:
        first, *rest = unit.messages
        jobs = [message.job for message in unit.messages]
        ids = [message.id for message in unit.messages]
        try:
            chain: list[Any] = [_signature(message) for message in rest]
            task: Any = app.tasks[first.task]
            result = task.apply_async(first.args, task_id=first.id, chain=chain[::-1] or None)
        except Exception as error:
            # Whether the broker has it is not known: it is sent again, with the same id.
            self._history.write("send failed", call=first.id, error=repr(error)[:300])
            return False
        if result.id != first.id:
            self._history.write("duplicate", call=first.id, name=str(first.job), of=result.id)
            return True
        self._history.write(
            "sent", call=first.id, name=str(first.job), jobs=jobs, ids=ids, end=first.end,
            task=first.task, duplicate=unit.duplicate,
        )  # fmt: skip
        with self._lock:
            self.sent += len(ids)
            for job in jobs:
                self._sent.setdefault(job, []).append(unit)
        return True


def _signature(message: Message) -> Any:
    signature = app.tasks[message.task].si(*message.args)
    return signature.set(task_id=message.id)
