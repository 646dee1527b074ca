"""The stores of the workload "stores", each with its server and with what stands beside it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from django_tasklock import locks

from . import database_servers, store_servers
from .by_hand import (
    ADVISORY,
    GET_LOCK,
    CacheAddAndDelete,
    DjangosCursor,
    PGLock,
    SessionLocks,
    Statements,
)
from .peers import FLOOR, TTL_SECONDS, Column, Floor
from .store_servers import Serve

__all__ = ["ENTRIES", "Entry", "columns_of"]


class Ours:
    """A store of the package, by its alias."""

    def __init__(self, alias: str) -> None:
        self._locks = locks.using(alias)

    def acquire(self, name: str) -> Any:
        return self._locks.acquire(name, ttl=TTL_SECONDS)

    def wait(self, name: str) -> Any:
        return self._locks.acquire(name, ttl=TTL_SECONDS, wait=None)

    def release(self, held: Any) -> None:
        held.release()


@dataclass(frozen=True)
class Entry:
    """A store of the workload "stores". One without a server of its own needs a title alone.

    ``serve`` starts what it needs; ``by_hand`` are the columns beside it, each made with the
    store's alias, the first one being the floor; ``apps`` are more apps for INSTALLED_APPS, left
    out where they are not installed. ``in_process``: it excludes the threads of one process.
    """

    title: str
    serve: Serve
    by_hand: dict[str, Callable[[str], Column]] = field(default_factory=dict)
    apps: tuple[str, ...] = ()
    in_process: bool = False


ENTRIES = (
    Entry("MemoryStore", store_servers.memory, in_process=True),
    Entry(
        "CacheStore on LocMemCache",
        store_servers.locmem,
        {"cache.add + delete": CacheAddAndDelete},
        in_process=True,
    ),
    Entry(
        "RedisStore",
        store_servers.redis_of_the_run,
        {FLOOR: lambda _alias: Floor(os.environ["BENCHMARK_REDIS_URL"])},
    ),
    Entry(
        "DatabaseStore on SQLite", database_servers.sqlite, {"its statements by hand": Statements}
    ),
    Entry(
        "DatabaseStore on PostgreSQL",
        database_servers.postgresql,
        {
            "its statements by hand": Statements,
            "the same by Django's cursor": DjangosCursor,
            "pg_advisory_lock by hand": partial(SessionLocks, *ADVISORY),
            "django-pglock": PGLock,
        },
        apps=("pgactivity", "pglock"),
    ),
    Entry(
        "DatabaseStore on PostgreSQL, no wait for the disk",
        database_servers.postgresql_without_disk,
        {"its statements by hand": Statements, "the same by Django's cursor": DjangosCursor},
    ),
    Entry(
        "DatabaseStore on MariaDB",
        database_servers.mariadb,
        {
            "its statements by hand": Statements,
            "GET_LOCK by hand": partial(SessionLocks, *GET_LOCK),
        },
    ),
    Entry("RedisClusterStore", store_servers.redis_cluster),
    Entry("QuorumStore", store_servers.quorum),
    Entry("ZooKeeperStore", store_servers.zookeeper),
)


def columns_of(entry: Entry, alias: str) -> dict[str, Column]:
    """The store and what stands beside it, by the names that the tables have. What is not installed
    is left out."""
    found: dict[str, Column] = {entry.title: Ours(alias)}
    for title, make in entry.by_hand.items():
        try:
            found[f"{entry.title}: {title}"] = make(alias)
        except ImportError:
            continue
    return found
