"""The databases that `DatabaseStore` is measured on; see `benchmarks.store_servers`."""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from .store_servers import STORES, NotHere, Site

__all__ = ["mariadb", "postgresql", "postgresql_without_disk", "sqlite"]


@contextlib.contextmanager
def sqlite(folder: Path) -> Iterator[Site]:
    name = str(folder / "locks.sqlite3")
    options = {"init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL"}
    there = {"ENGINE": "django.db.backends.sqlite3", "NAME": name, "OPTIONS": options}
    about = f"SQLite {sqlite3.sqlite_version}, in WAL mode with synchronous=NORMAL"
    yield _database("sqlite", there, about)


def postgresql(_folder: Path) -> AbstractContextManager[Site]:
    """In ``BENCHMARK_POSTGRES``'s server, or one on this machine that takes this user without a
    password: a database of its own, dropped afterwards."""
    return _postgresql("postgresql")


def postgresql_without_disk(_folder: Path) -> AbstractContextManager[Site]:
    """`postgresql`, whose commits do not wait for the disk: that hides what the rest costs."""
    return _postgresql("postgresql-without-disk", synchronous_commit="off")


@contextlib.contextmanager
def _postgresql(alias: str, **session: str) -> Iterator[Site]:
    """``session``: settings of the server for each session."""
    try:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict
    except ImportError as error:
        raise NotHere(f"{error.name} is not installed") from error
    named = os.environ.get("BENCHMARK_POSTGRES")
    usual = ["host=/var/run/postgresql dbname=postgres", "host=127.0.0.1 user=postgres"]
    for dsn in [named] if named else usual:
        with contextlib.suppress(psycopg.OperationalError):
            server = psycopg.connect(dsn, autocommit=True, connect_timeout=3)
            break
    else:
        raise NotHere("no PostgreSQL lets us in (set BENCHMARK_POSTGRES)")
    with server:
        name = f"benchmark_{secrets.token_hex(6)}"
        server.execute(f'CREATE DATABASE "{name}"')
        try:
            given = conninfo_to_dict(dsn)
            there: dict[str, Any] = {"ENGINE": "django.db.backends.postgresql", "NAME": name}
            for key in ("host", "port", "user", "password"):
                there |= {key.upper(): str(given[key])} if key in given else {}
            for key, value in session.items():
                server.execute(f"SET {key} = {value}")
            there["OPTIONS"] = {"options": " ".join(f"-c {k}={v}" for k, v in session.items())}
            shown = [f"{each} {_shown(server, each)}" for each in ("fsync", "synchronous_commit")]
            version = _shown(server, "server_version").split()[0]
            yield _database(alias, there, f"PostgreSQL {version}, {', '.join(shown)}")
        finally:
            server.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@contextlib.contextmanager
def mariadb(_folder: Path) -> Iterator[Site]:
    """In ``BENCHMARK_MARIADB``'s server, or one on this machine that takes root without a password:
    a database of its own, dropped afterwards."""
    try:
        from MySQLdb import connect
    except ImportError as error:
        raise NotHere("neither mysqlclient nor pymysql is installed") from error
    url = urlsplit(os.environ.get("BENCHMARK_MARIADB", "mysql://root@127.0.0.1:3306"))
    given = {"host": url.hostname or "127.0.0.1", "port": url.port or 3306}
    given |= {"user": unquote(url.username or "root"), "password": unquote(url.password or "")}
    try:
        server: Any = connect(**given, connect_timeout=3, autocommit=True)
    except Exception as error:
        raise NotHere(f"no MariaDB lets us in (set BENCHMARK_MARIADB): {error}") from error
    name = f"benchmark_{secrets.token_hex(6)}"
    with contextlib.closing(server), server.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        try:
            there = {key.upper(): value for key, value in given.items()}
            there |= {"ENGINE": "django.db.backends.mysql", "NAME": name}
            cursor.execute("SELECT @@version, @@innodb_flush_log_at_trx_commit")
            version, flush = cursor.fetchone()
            about = f"MariaDB {version.split('-')[0]}, innodb_flush_log_at_trx_commit {flush}"
            yield _database("mariadb", there, about)
        finally:
            server.ping(True)
            cursor.execute(f"DROP DATABASE {name}")


def _database(alias: str, settings: dict[str, Any], about: str) -> Site:
    store = {"BACKEND": f"{STORES}.database.DatabaseStore", "OPTIONS": {"DATABASE": alias}}
    return Site(alias, {alias: store}, databases={alias: settings}, about=about)


def _shown(server: Any, setting: str) -> str:
    return str(server.execute(f"SHOW {setting}").fetchone()[0])
