"""The servers of a run, and what may be done to them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests import needs
from tests.acceptance.hard_cases.brokers import Broker, RabbitBroker, RedisBroker, connect
from tests.rabbitmq import RabbitMQ
from tests.servers import forget_kept, kept_in, own_redis

__all__ = ["Database", "Servers"]

VISIBILITY_SECONDS = 8.0
"""seconds after which Redis delivers a message again that nobody has acknowledged"""


class Database:
    """The rows: on PostgreSQL, where there is one, else in an SQLite file."""

    def __init__(self, settings: dict[str, Any], dsn: str = "") -> None:
        self.settings = settings
        self._dsn = dsn

    @property
    def can_cut(self) -> bool:
        return bool(self._dsn)

    def for_workers(self) -> dict[str, Any]:
        """The settings of the workers, whose connections `cut` knows by their name."""
        if not self._dsn:
            return self.settings
        return self.settings | {"OPTIONS": {"application_name": "worker"}}

    def cut(self, *, within: float = 0.0) -> int:
        """End the workers' connections; with ``within`` those that are in an UPDATE, as soon as
        there is one. Returns how many."""
        query = (
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'worker'"
        )
        if within:
            query += " AND state = 'active' AND query LIKE 'UPDATE%%'"
        deadline = time.monotonic() + within
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while True:
                row = connection.execute(query).fetchone()
                if (row and row[0]) or time.monotonic() > deadline:
                    return int(row[0]) if row else 0
                time.sleep(0.005)

    def refuse(self, share: float) -> None:
        """Refuse so many of the writes of rows and effects from now on; see `tables`."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute("UPDATE chaos_tasks_disk SET refuses = %s", [share])

    @classmethod
    @contextmanager
    def own(cls, folder: Path) -> Iterator[Database]:
        with ExitStack() as stack:
            try:
                dsn = stack.enter_context(needs.postgres())
            except pytest.skip.Exception:
                options = {"timeout": 20, "transaction_mode": "IMMEDIATE"}
                options["init_command"] = "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF;"
                engine = "django.db.backends.sqlite3"
                name = str(folder / "rows.sqlite3")
                yield cls({"ENGINE": engine, "NAME": name, "OPTIONS": options})
                return
            says = conninfo_to_dict(dsn)
            settings = {
                "ENGINE": "django.db.backends.postgresql",
                **{
                    name: str(says.get(key) or "")
                    for name, key in (
                        ("NAME", "dbname"), ("USER", "user"), ("PASSWORD", "password"),
                        ("HOST", "host"), ("PORT", "port"),
                    )
                },
            }  # fmt: skip
            yield cls(settings, dsn)


class Servers:
    """A Redis for the locks, one for the results and the messages, or RabbitMQ for these."""

    def __init__(self, folder: Path, broker: str, stack: ExitStack) -> None:
        self._folder = folder
        self.locks = stack.enter_context(self._redis("locks"))
        self.results = stack.enter_context(self._redis("broker"))
        self.broker: Broker
        self.node: RabbitMQ | None = None
        """RabbitMQ, where it is our own"""
        if broker == "rabbitmq" and RabbitMQ.is_installed():
            self.node = stack.enter_context(RabbitMQ.own(folder / "rabbitmq"))
            self.broker = RabbitBroker(self.node.url, self.node)
        elif broker == "rabbitmq":
            self.broker = RabbitBroker(stack.enter_context(needs.rabbitmq()))
        else:
            self.broker = RedisBroker(self.results, VISIBILITY_SECONDS)

    def _redis(self, name: str) -> Any:
        return own_redis(needs_own=True, options=kept_in(self._folder / name))

    def restart_results(self) -> None:
        """The Redis of the results, which may be the broker too, ends and starts again, with its
        data."""
        self.results.restart()

    def restart_locks(self, *, empty: bool, away: float = 0.0) -> None:
        """SIGKILL for the Redis of the locks, and another one in its place after so many
        seconds."""
        self.locks.kill()
        time.sleep(away)
        if empty:
            forget_kept(self._folder / "locks")
        self.locks.restart()

    def cut_locks(self) -> None:
        with connect(self.locks) as client:
            client.client_kill_filter(_type="normal", skipme=True)

    def left(self) -> dict[str, list[str]]:
        """What is in the Redis of the locks that belongs to somebody: locks, wait queues and
        reservations."""
        with connect(self.locks) as client:
            names = [key.decode().partition(":1:lock")[2] for key in client.scan_iter("*:lock*")]
            reserved = [each.decode() for each in client.zrange(":1:lock reserved", 0, -1)]
        return {
            "locks": sorted(name[1:] for name in names if name[:1] == ":" and " " not in name),
            "queues": sorted(name for name in names if name.endswith(" queue")),
            "reservations": sorted(reserved),
        }
