"""A connection of the store's own to a database of the setting DATABASES.

The caller's connection would not do. A lease that is taken in the caller's transaction is not seen
by others until that commits, and is gone if it is rolled back.
"""

from __future__ import annotations

from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from ..._compat.django_database import in_transaction, new_wrapper
from ...exceptions import InvalidLockConfig

__all__ = ["caller_may_hold_sqlite", "cannot_serve", "new_connection", "wait_for_file"]

OLDEST_MARIADB = (10, 5)
OLDEST_SQLITE = (3, 35)
"""the first with INSERT … RETURNING"""
FILE_SECONDS = 0.8
"""how long a statement waits for SQLite's file while the caller may be the one who keeps it locked:
the caller would wait for itself"""


def new_connection(database: str, seconds: float) -> BaseDatabaseWrapper:
    """Connect to a database of DATABASES, in autocommit mode, for any thread to use.

    Args:
        database: the alias.
        seconds: how long connecting, and a statement, may take.

    Raises `InvalidLockConfig` if leases cannot be kept there, and what Django raises.
    """
    wrapper = new_wrapper(database)
    wrapper.settings_dict.update(
        AUTOCOMMIT=True, CONN_HEALTH_CHECKS=False, OPTIONS=_options(wrapper, seconds)
    )
    reason = cannot_serve(wrapper)
    if reason:
        raise InvalidLockConfig(f"the database {database!r} {reason}")
    try:
        wrapper.ensure_connection()
        _assert_is_mariadb(wrapper, database)
    except BaseException:
        wrapper.close()
        raise
    return wrapper


def cannot_serve(wrapper: BaseDatabaseWrapper) -> str | None:
    """Why leases cannot be kept in the database, as far as that is known without asking it."""
    if wrapper.vendor == "sqlite":
        version: tuple[int, ...] = wrapper.Database.sqlite_version_info  # type: ignore[attr-defined]
        if version < OLDEST_SQLITE:
            return (
                f"is on SQLite {'.'.join(map(str, version))}: locks need SQLite "
                f"{'.'.join(map(str, OLDEST_SQLITE))} or newer"
            )
        if wrapper.is_in_memory_db():  # type: ignore[attr-defined]
            return (
                "is SQLite in memory, where other connections and processes find no locks: give "
                "DATABASES[...]['NAME'] a file, and in tests DATABASES[...]['TEST']['NAME']"
            )
    elif wrapper.vendor not in ("postgresql", "mysql"):
        return f"is on {wrapper.display_name}: locks need PostgreSQL, MariaDB or SQLite"
    return None


def _options(wrapper: BaseDatabaseWrapper, seconds: float) -> dict[str, Any]:
    options = dict(wrapper.settings_dict["OPTIONS"])
    whole = max(1, round(seconds))
    if wrapper.vendor == "sqlite":
        options["timeout"] = seconds
    elif wrapper.vendor == "postgresql":
        # A pool is the application's: connections that are kept here would be missing there.
        options.pop("pool", None)
        # The statements name a value several times, and the server would want its type each time.
        options.pop("server_side_binding", None)
        options.setdefault("connect_timeout", whole)
        if "isolation_level" in options:
            from django.db.backends.postgresql.psycopg_any import IsolationLevel

            options["isolation_level"] = IsolationLevel.READ_COMMITTED
    elif wrapper.vendor == "mysql":
        options["isolation_level"] = "read committed"
        for limit in ("connect_timeout", "read_timeout", "write_timeout"):
            options.setdefault(limit, whole)
    return options


def _assert_is_mariadb(wrapper: Any, database: str) -> None:
    if wrapper.vendor != "mysql":
        return
    if not wrapper.mysql_is_mariadb or wrapper.mysql_version < OLDEST_MARIADB:
        version = ".".join(map(str, wrapper.mysql_version))
        raise InvalidLockConfig(
            f"the database {database!r} is on {wrapper.display_name} {version}, which has no "
            "INSERT ... RETURNING: locks need MariaDB "
            f"{'.'.join(map(str, OLDEST_MARIADB))} or newer, PostgreSQL or SQLite"
        )


def caller_may_hold_sqlite() -> bool:
    """Whether this thread is in a transaction of its own on an SQLite database."""
    return any(
        connection.vendor == "sqlite" and in_transaction(connection)
        for connection in connections.all(initialized_only=True)
    )


def wait_for_file(wrapper: Any, seconds: float) -> None:
    """Let the statements on an SQLite connection wait for the file for at most ``seconds``."""
    limit = min(seconds, FILE_SECONDS) if caller_may_hold_sqlite() else seconds
    if getattr(wrapper, "tasklock_waits", seconds) != limit:
        wrapper.connection.execute(f"PRAGMA busy_timeout = {round(limit * 1000)}")
        wrapper.tasklock_waits = limit
