"""`DatabaseStore` by way of something before its server: a proxy, or a real PgBouncer."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
from django.db import connections
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from django_tasklock.stores import stores
from django_tasklock.stores.database import DatabaseStore
from tests.conftest import ProxyTo, UseCaches, database_alias
from tests.needs import _running, missing
from tests.proxy import CutProxy
from tests.store_cases import database_store

__all__ = ["MODES", "pgbouncer", "proxy_before", "through_proxy"]


MODES = ("transaction", "session")
"""``pool_mode``; in the mode "statement" there are no transactions"""
USERS = ("postgres", "nobody")
"""as whom it runs where the tests run as root, which it refuses"""


def proxy_before(alias: str, proxy_to: ProxyTo) -> CutProxy:
    """A proxy before the server of a database."""
    return proxy_to(int(connections.settings[alias]["PORT"] or 5432))


@contextlib.contextmanager
def through_proxy(
    alias: str, proxy: CutProxy, use_caches: UseCaches, **options: Any
) -> Iterator[DatabaseStore]:
    """The store "default", in the database ``alias``, which it reaches through the proxy."""
    there: Any = dict(connections.settings[alias]) | {"HOST": "127.0.0.1", "PORT": proxy.port}
    with database_alias("proxied", there):
        use_caches({}, {"default": database_store("proxied", **options)})
        store = stores["default"]
        assert isinstance(store, DatabaseStore)
        yield store
        stores.forget()


@contextlib.contextmanager
def pgbouncer(dsn: str, mode: str) -> Iterator[int]:
    """A PgBouncer of one's own for every database of a server; yields its port on 127.0.0.1.

    Args:
        dsn: how to reach the server.
        mode: one of `MODES`.
    """
    search = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])
    binary = shutil.which("pgbouncer", path=search) or missing("pgbouncer is not installed")
    user = _other_user() if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    server = conninfo_to_dict(dsn)
    there = {key: server[key] for key in ("host", "port", "password") if server.get(key)}
    there |= {"user": server.get("user") or user.pw_name}
    with tempfile.TemporaryDirectory(prefix="tasklock-pgbouncer-") as name:
        folder = Path(name)
        os.chown(folder, user.pw_uid, user.pw_gid)

        def command(port: int) -> list[str]:
            (folder / "pgbouncer.ini").write_text(
                f"""\
                [databases]
                * = {" ".join(f"{key}={value}" for key, value in there.items())}
                [pgbouncer]
                listen_addr = 127.0.0.1
                listen_port = {port}
                unix_socket_dir =
                pidfile = {folder}/pid
                auth_type = any
                pool_mode = {mode}
                """.replace("    ", "")
            )
            as_user = ["-u", user.pw_name] if os.geteuid() == 0 else []
            return [binary, *as_user, str(folder / "pgbouncer.ini")]

        def pid(port: int) -> int | None:
            here = make_conninfo(dsn, host="127.0.0.1", port=port, user=str(there["user"]))
            try:
                psycopg.connect(here, connect_timeout=3).close()
                return int((folder / "pid").read_text())
            except (psycopg.OperationalError, OSError, ValueError):
                return None

        with _running(command, pid) as port:
            yield port


def _other_user() -> pwd.struct_passwd:
    found = {user.pw_name: user for user in pwd.getpwall()}
    for name in USERS:
        if name in found:
            return found[name]
    return missing(f"pgbouncer does not run as root, and there is no user {' or '.join(USERS)}")
