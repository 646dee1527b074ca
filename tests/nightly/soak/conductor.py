"""The conductor of a soak: starts all, has it disturbed, waits until all is done, and ends all."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import redis

from tests import needs
from tests.nightly.chaos.history import History, now
from tests.nightly.newer import newer_copy
from tests.nightly.soak import DRAIN_SECONDS, VISIBILITY_SECONDS, figures
from tests.nightly.soak.crew import Crew
from tests.nightly.soak.database import database, make_tables, rows_of, transitions_of
from tests.nightly.soak.faults import Faults
from tests.nightly.soak.programs import Kind, kinds, site_ports
from tests.servers import RedisServer, find_binary, kept_in
from tests.stage.brokers import Broker, RabbitBroker, RedisBroker, address, connect
from tests.stage.workers import AS_ROOT

__all__ = ["run"]

WARM_SHARE, WARM_SECONDS = 1 / 20, 15.0
"""of the time, and at least so much, before the first look"""
QUIET_SHARE = 1 / 20
"""of the time, at its end, in which nobody is disturbed"""
SETTLED_SECONDS = 30.0
"""in which no lease is left"""
PRINTED = re.compile(r"^(Exception ignored|Exception in thread|Fatal Python error|.*egmentation)")
"""what Python prints and no logger hears"""
QUEUE, RESULTS_DB, LOCKS_DB = "soak", 1, 2


class Soak:
    """One soak, in a folder."""

    def __init__(self, folder: Path, minutes: float, seed: str, broker: str) -> None:
        self._folder, self._seconds, self._seed = folder, minutes * 60, seed
        self._broker_name = broker
        self._until = 0.0
        self._history = History(folder, "conductor")

    def run(self) -> None:
        with contextlib.ExitStack() as stack:
            options = (*kept_in(self._folder / "redis"), "--appendfsync", "always")
            server = RedisServer.start(find_binary(), options)
            stack.callback(server.stop)
            broker = self._broker(stack, server)
            stack.callback(broker.drop, QUEUE)
            rows = stack.enter_context(database(self._folder))
            environment = self._environment(server, broker, rows)
            os.environ |= environment | {"SOAK_NAME": "conductor"}
            import django
            from django.db import connections

            django.setup()
            make_tables()
            stack.callback(connections.close_all)
            newer, places = newer_copy(self._folder / "newer"), self._places()
            crew = Crew(places, self._folder, newer, self._history, environment)
            stack.callback(crew.kill_all)
            crew.start("worker1", "worker2", "site1", "site2")
            self._until = now() + self._seconds
            crew.start("plain1", "plain2", "sender1")
            crew.spare()
            self._play(crew, server, broker, self._until)

    def _places(self) -> dict[str, Kind]:
        return kinds(site_ports(), lambda: self._until, self._seed)

    def _broker(self, stack: contextlib.ExitStack, server: RedisServer) -> Broker:
        if self._broker_name == "rabbitmq":
            try:
                return RabbitBroker(stack.enter_context(needs.rabbitmq()))
            except (pytest.skip.Exception, pytest.fail.Exception) as error:
                raise RuntimeError(str(error)) from None  # Outside of a test.
        return RedisBroker(server, VISIBILITY_SECONDS)

    def _environment(
        self, server: RedisServer, broker: Broker, rows: dict[str, Any]
    ) -> dict[str, str]:
        celery = {
            "broker_url": broker.url,
            "broker_transport_options": broker.options,
            "broker_connection_retry_on_startup": True,
            "broker_connection_max_retries": None,
            "result_backend": address(server, RESULTS_DB),
            "result_expires": 120,
            "task_default_queue": QUEUE,
            "worker_prefetch_multiplier": 1,
            "worker_cancel_long_running_tasks_on_connection_loss": False,
        }
        return {
            "DJANGO_SETTINGS_MODULE": "tests.nightly.soak.settings",
            "SOAK_FOLDER": str(self._folder),
            "SOAK_CELERY": json.dumps(celery),
            "SOAK_DATABASE": json.dumps(rows),
            "STAGE_LOCKS": address(server, LOCKS_DB),
            **AS_ROOT,
        }

    def _play(self, crew: Crew, server: RedisServer, broker: Broker, until: float) -> None:
        look = partial(self._look, crew, server)
        chance = Random(f"{self._seed}/faults")
        faults = Faults(crew, server, broker, self._history, chance)
        warm = now() + max(self._seconds * WARM_SHARE, WARM_SECONDS)

        def tick() -> None:
            faults.timetable.run_due()
            crew.watch()
            time.sleep(0.05)

        while now() < warm:
            tick()
        before = look()
        faults.begin(until - self._seconds * QUIET_SHARE)
        crew.expect_end("sender1")
        while now() < until:
            tick()
        faults.timetable.run_all()
        self._drain(crew, broker, until, tick)
        self._settle(server)
        figures.keep(self._folder, before, look())
        crew.end_orderly()
        self._write_rows()
        self._write_what_was_printed()

    def _drain(self, crew: Crew, broker: Broker, until: float, tick: Callable[[], None]) -> None:
        """Wait until all that was asked for is done; say what is not."""

        what: dict[str, Callable[[], bool]] = {
            "sender1 has not ended": partial(crew.rests, "sender1"),
            "plain2 has not ended": partial(crew.rests, "plain2"),
            "plain1 has not ended": partial(crew.rests, "plain1"),
            "messages are left": lambda: not broker.count(QUEUE),
        }
        deadline = until + DRAIN_SECONDS + 10
        for left, ended in what.items():
            deadline = max(deadline, now() + 10)
            while not (done := ended()) and now() < deadline:
                tick()
            if not done:
                self._history.write("left", what=left)
                if "plain" in left:
                    crew.ask_where(left.split()[0])

    def _settle(self, server: RedisServer) -> None:
        """No lease is left but that of a site's main process."""
        with connect(server, LOCKS_DB) as client:
            deadline = now() + SETTLED_SECONDS
            while (left := _leases(client)) and now() < deadline:
                time.sleep(0.5)
            if left:
                self._history.write("left", what=f"leases: {left}")

    def _look(self, crew: Crew, server: RedisServer) -> figures.Figures:
        with contextlib.ExitStack() as stack:
            databases = {"broker": 0, "results": RESULTS_DB, "locks": LOCKS_DB}
            clients = {
                what: stack.enter_context(connect(server, number))
                for what, number in databases.items()
            }
            return figures.look(crew.processes(), clients)

    def _write_rows(self) -> None:
        changes = transitions_of()
        for row, (status, task) in rows_of().items():
            said = changes.get(row, [])
            self._history.write("row", row=row, task=task, status=status, changes=said)

    def _write_what_was_printed(self) -> None:
        for log in self._folder.glob("*.log"):
            lines = log.read_text(errors="replace").splitlines()
            for number, line in enumerate(lines):
                if PRINTED.match(line):
                    text = "\n".join(lines[number : number + 30])
                    self._history.write("error", logger=log.name, text=text)


def _leases(client: redis.Redis) -> list[str]:
    keys = [key.decode() for key in client.scan_iter(match="*:lock:*", _type="string")]
    return [key for key in keys if " " not in key and ":master-" not in key]


def run(folder: Path, minutes: float, seed: str, broker: str) -> None:
    """Soak for so many minutes, and leave the history and the figures in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    Soak(folder, minutes, seed, broker).run()
