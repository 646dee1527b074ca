"""What a project writes by hand in the place of a lock store; made in the process that uses it."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from django.core.cache import caches
from django.db import connections

from django_tasklock.stores.database.dialects import DIALECTS
from django_tasklock.stores.database.queue_statements import LAST_POSITION

from .peers import TTL_SECONDS

__all__ = [
    "ADVISORY",
    "GET_LOCK",
    "CacheAddAndDelete",
    "DjangosCursor",
    "PGLock",
    "SessionLocks",
    "Statements",
]

POLL_SECONDS = 0.01
"""how often a statement by hand is sent again until it grants"""


class CacheAddAndDelete:
    """The two calls of the cache that `CacheStore` is made of, without a look at the token."""

    def __init__(self, alias: str) -> None:
        self._cache = caches[alias]

    def acquire(self, name: str) -> Any:
        return name if self._cache.add(name, os.urandom(16), TTL_SECONDS) else None

    def wait(self, name: str) -> Any:
        raise NotImplementedError

    def release(self, held: Any) -> None:
        self._cache.delete(held)


class Statements:
    """The very statements of `DatabaseStore`, on one connection of the driver."""

    def __init__(self, alias: str) -> None:
        wrapper = connections[alias]
        self._cursor = self.cursor(wrapper)
        statements = DIALECTS[wrapper.vendor]
        self._acquire, self._release = statements.acquire, statements.release
        if wrapper.vendor == "sqlite":  # Its driver has other marks for parameters.
            self._acquire, self._release = map(_for_sqlite, (self._acquire, self._release))

    def cursor(self, wrapper: Any) -> Any:
        return _DRIVERS[wrapper.vendor](wrapper.settings_dict)

    def acquire(self, name: str) -> Any:
        token = os.urandom(11).hex()
        self._cursor.execute(
            self._acquire,
            {"key": f"hand:{name}", "token": token, "ttl": TTL_SECONDS * 1_000_000, "owner": "{}",
             "position": LAST_POSITION, "now": time.time_ns() // 1000},
        )  # fmt: skip
        rows = self._cursor.fetchall()
        # The row of a lock that is held has another's token.
        return (name, token) if rows and rows[0][1] == token else None

    def wait(self, name: str) -> Any:
        while (held := self.acquire(name)) is None:
            time.sleep(POLL_SECONDS)
        return held

    def release(self, held: Any) -> None:
        name, token = held
        given = {"key": f"hand:{name}", "token": token, "now": time.time_ns() // 1000}
        self._cursor.execute(self._release, given)


class DjangosCursor(Statements):
    """The same statements in a project's own code: each on a new cursor of Django's connection."""

    def cursor(self, wrapper: Any) -> Any:
        return _NewCursors(wrapper)


class _NewCursors:
    def __init__(self, wrapper: Any) -> None:
        self._wrapper = wrapper
        self._rows: list[Any] = []

    def execute(self, sql: str, given: dict[str, Any]) -> None:
        with self._wrapper.cursor() as cursor:
            cursor.execute(sql, given)
            self._rows = cursor.fetchall()

    def fetchall(self) -> list[Any]:
        return self._rows


class SessionLocks:
    """A lock of the database's own, which the session holds: no ttl, no fence, nothing written."""

    def __init__(
        self, key: Callable[[str], Any], take: str, wait: str, give_back: str, alias: str
    ) -> None:
        wrapper = connections[alias]
        self._cursor: Any = _DRIVERS[wrapper.vendor](wrapper.settings_dict)
        self._key, self._take, self._wait, self._give_back = key, take, wait, give_back

    def acquire(self, name: str) -> Any:
        return self._asked(self._take, name)

    def wait(self, name: str) -> Any:
        return self._asked(self._wait, name)

    def release(self, held: Any) -> None:
        self._asked(self._give_back, held[0])

    def _asked(self, sql: str, name: str) -> Any:
        self._cursor.execute(sql, [self._key(name)])
        answer = self._cursor.fetchone()[0]
        return None if answer in (False, 0) else (name,)


class PGLock:
    """django-pglock, on Django's own connection."""

    def __init__(self, alias: str) -> None:
        self._advisory = partial(import_module("pglock").advisory, using=alias)

    def acquire(self, name: str) -> Any:
        lock = self._advisory(name, timeout=0)
        return lock if lock.acquire() else None

    def wait(self, name: str) -> Any:
        lock = self._advisory(name)
        return lock if lock.acquire() else None

    def release(self, held: Any) -> None:
        held.release()


def _psycopg(settings: dict[str, Any]) -> Any:
    import psycopg

    given = {"host": settings["HOST"], "port": settings["PORT"], "user": settings["USER"],
             "password": settings["PASSWORD"]}  # fmt: skip
    connection = psycopg.connect(
        dbname=settings["NAME"], autocommit=True, cursor_factory=psycopg.ClientCursor,
        **settings["OPTIONS"],
        **{key: value for key, value in given.items() if value},
    )  # fmt: skip
    return connection.cursor()


def _mysql(settings: dict[str, Any]) -> Any:
    from MySQLdb import connect

    return connect(
        host=settings["HOST"], port=settings["PORT"], user=settings["USER"],
        password=settings["PASSWORD"], database=settings["NAME"], charset="utf8mb4",
        autocommit=True,
    ).cursor()  # fmt: skip


def _sqlite(settings: dict[str, Any]) -> Any:
    import sqlite3

    connection = sqlite3.connect(settings["NAME"], isolation_level=None, timeout=30)
    connection.executescript(settings["OPTIONS"]["init_command"])
    return connection.cursor()


def _for_sqlite(sql: str) -> str:
    for name in ("key", "token", "ttl", "owner", "position", "now"):
        sql = sql.replace(f"%({name})s", f":{name}")
    return sql


_DRIVERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "postgresql": _psycopg,
    "mysql": _mysql,
    "sqlite": _sqlite,
}


def _number(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little", signed=True)


ADVISORY = (
    _number,
    "SELECT pg_try_advisory_lock(%s)",
    "SELECT pg_advisory_lock(%s)",
    "SELECT pg_advisory_unlock(%s)",
)
GET_LOCK = (
    str,
    "SELECT GET_LOCK(%s, 0)",
    "SELECT GET_LOCK(%s, 600)",
    "SELECT RELEASE_LOCK(%s)",
)
