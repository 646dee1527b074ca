"""What may happen to all: a server ends, hangs or refuses, or connections are cut."""

from __future__ import annotations

import time

from tests.acceptance.hard_cases.brokers import RedisBroker
from tests.chaos.history import now
from tests.chaos_tasks.disturber import LOOK_SECONDS, Disturber

__all__ = ["ServerFaults"]


class ServerFaults(Disturber):
    """Faults of the broker, of the locks' Redis and of the database of the rows."""

    _disk_full = False

    def _cut_broker(self) -> None:
        if self._servers.node is not None and not self._servers.node.serves:
            return
        since = now()
        with self._nothing_on_its_way() as safe:
            if safe:
                self._servers.broker.cut()
        if safe:
            self._note("broker cut", since)

    def _restart_results(self) -> None:
        since = now()
        with self._nothing_on_its_way() as safe:
            if safe:
                self._servers.restart_results()
        if safe:
            what = "broker" if isinstance(self._servers.broker, RedisBroker) else "results"
            self._note(f"{what} restarted", since)

    def _kill_broker(self) -> None:
        """RabbitMQ starts again with its data, which takes some seconds."""
        node, since = self._servers.node, now()
        assert node is not None
        if not node.serves:
            return
        node.kill()
        node.start()

        def look() -> None:
            if node.serves:
                self._note("broker killed", since)
            elif not node.runs:
                raise RuntimeError(f"RabbitMQ does not start again: {node.said()}")
            else:
                self._after(LOOK_SECONDS, look)

        look()

    def _cut_locks(self) -> None:
        since = now()
        self._servers.cut_locks()
        self._note("locks cut", since)

    def _restart_locks(self) -> None:
        since = now()
        self._servers.restart_locks(empty=False, away=self._chance.choice([0, 1, 3]))
        self._note("locks restarted", since)

    def _empty_locks(self) -> None:
        since = now()
        self._servers.restart_locks(empty=True)
        self._note("locks emptied", since)

    def _pause_locks(self) -> None:
        since = now()
        self._servers.locks.pause()
        time.sleep(self._chance.choice([0.2, 1, 3]))
        self._servers.locks.resume()
        self._note("locks paused", since)

    def _cut_database(self) -> None:
        since, number = now(), self._database.cut()
        self._note("database cut", since, connections=number)

    def _fill_disk(self) -> None:
        """The database refuses all writes for some time, or most: some pages still have room."""
        if self._disk_full:
            return
        since, self._disk_full = now(), True
        self._database.refuse(self._chance.choice([0.7, 1.0]))

        def make_room() -> None:
            self._database.refuse(0.0)
            self._disk_full = False
            self._note("disk full", since)

        self._after(self._chance.choice([0.2, 1, 3]), make_room)

    def _cut_update(self) -> None:
        since, number = now(), self._database.cut(within=1.0)
        if number:
            self._note("database cut in an UPDATE", since, connections=number)
