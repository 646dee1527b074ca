"""Servers and programs that tests need: found, or started, or plainly said to be missing."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import unquote, urlsplit

import psycopg
import pytest
from kombu import Connection
from psycopg.conninfo import make_conninfo

from tests.servers import NoRedis, RedisServer, free_port, own_redis, start_process

START_SECONDS = 20.0


def missing(what: str) -> NoReturn:
    """Skip, saying what is missing; where ``CI`` is set nothing may be missing, so fail."""
    if os.environ.get("CI"):
        pytest.fail(f"{what} (CI is set, so this is not skipped)", pytrace=False)
    pytest.skip(what)


def has(module: str) -> bool:
    """Whether a module can be found; it is not imported here."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # Of the package that it is in.
        return False


def package(module: str, called: str = "") -> None:
    """`missing`, unless the module is there; ``called``: its package, if that has another name."""
    if not has(module):
        missing(f"{called or module} is not installed")


def program(name: str, folders: str = "") -> str:
    """The path of a program: on the path, or in the newest folder of this pattern."""
    found = sorted(Path("/").glob(folders.lstrip("/")), reverse=True) if folders else []
    path = os.pathsep.join([os.environ.get("PATH", ""), *map(str, found)])
    return shutil.which(name, path=path) or missing(f"{name} is not installed")


@contextlib.contextmanager
def redis(*, own: bool = False) -> Iterator[RedisServer]:
    """The Redis that ``REDIS_URL`` names, or one of this test's ``own``."""
    try:
        with own_redis(needs_own=own) as server:
            yield server
    except NoRedis as error:
        missing(str(error))


@contextlib.contextmanager
def memcached() -> Iterator[str]:
    """A memcached of one's own; yields ``host:port``."""
    command = [program("memcached"), "-l", "127.0.0.1", "-U", "0"]
    command += ["-u", "root"] if os.geteuid() == 0 else []
    with _running(lambda port: [*command, "-p", str(port)], _memcached_pid) as port:
        yield f"127.0.0.1:{port}"


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """A database of one's own, dropped afterwards; yields its connection string.

    In ``POSTGRES_DSN``'s server, or one that takes this user without a password.
    """
    server, name = _postgres_server(), f"tasklock_{secrets.token_hex(6)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
        try:
            yield make_conninfo(server, dbname=name)
        finally:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@contextlib.contextmanager
def mariadb() -> Iterator[dict[str, Any]]:
    """A database of one's own, dropped afterwards; yields HOST, PORT, USER, PASSWORD and NAME.

    In ``MARIADB_URL``'s server, or one on this machine that takes root without a password.
    """
    try:
        from tests.mariadb import connect
    except ImportError as error:
        missing(f"no driver of MariaDB is installed: {error}")
    url = urlsplit(os.environ.get("MARIADB_URL", "mysql://root@127.0.0.1:3306"))
    server = {"HOST": url.hostname or "127.0.0.1", "PORT": url.port or 3306}
    server |= {"USER": unquote(url.username or "root"), "PASSWORD": unquote(url.password or "")}
    user = {"user": server["USER"], "password": server["PASSWORD"], "autocommit": True}
    there: dict[str, Any] = {"host": server["HOST"], "port": server["PORT"], **user}
    try:
        connection = connect(**there, connect_timeout=3)
    except Exception as error:
        missing(f"no MariaDB lets us in: {error}")
    name = f"tasklock_{secrets.token_hex(6)}"
    with contextlib.closing(connection):
        connection.cursor().execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    try:
        yield server | {"NAME": name}
    finally:
        # Another connection: the server drops one that was idle through a long run.
        with contextlib.closing(connect(**there)) as connection:
            connection.cursor().execute(f"DROP DATABASE {name}")


@contextlib.contextmanager
def rabbitmq() -> Iterator[str]:
    """A RabbitMQ, in a virtual host of one's own where ``rabbitmqctl`` may make one.

    Where it may not, queues need names of their own: give them names of their own anyway.
    """
    url = os.environ.get("RABBITMQ_URL", "amqp://guest:guest@127.0.0.1:5672//")
    try:
        with Connection(url, connect_timeout=3) as connection:
            connection.connect()
    except Exception as error:
        missing(f"no RabbitMQ answers at {url}: {error}")
    virtual_host = f"tasklock-{secrets.token_hex(6)}"
    if "RABBITMQ_URL" in os.environ or not _rabbitmqctl("add_vhost", virtual_host):
        yield url
        return
    try:
        _rabbitmqctl("set_permissions", "-p", virtual_host, "guest", ".*", ".*", ".*")
        yield f"amqp://guest:guest@127.0.0.1:5672/{virtual_host}"
    finally:
        _rabbitmqctl("delete_vhost", virtual_host)


def chromium() -> Path:
    """A Chromium's executable: the system's, else the one that Playwright has downloaded."""
    for name in ("chromium", "chromium-browser", "google-chrome", "chrome"):
        if found := shutil.which(name):
            return Path(found)
    downloads = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH", "~/.cache/ms-playwright"))
    for downloaded in sorted(downloads.expanduser().glob("chromium-*/chrome-linux*/chrome")):
        return downloaded
    missing("no Chromium is installed")


def _postgres_server() -> str:
    usual = (
        "host=/var/run/postgresql dbname=postgres",
        "host=127.0.0.1 user=postgres dbname=postgres",
    )
    named = os.environ.get("POSTGRES_DSN")
    for candidate in [named] if named else usual:
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(candidate, connect_timeout=3).close()
            return candidate
    missing("no PostgreSQL lets us in (set POSTGRES_DSN)")


@contextlib.contextmanager
def _running(
    command: Callable[[int], list[str]], answering_pid: Callable[[int], int | None]
) -> Iterator[int]:
    """Start ``command`` on a free port, wait until that very process answers, end it afterwards."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        port = free_port()
        with tempfile.TemporaryFile() as output:
            process = start_process(command(port), output)
            try:
                while process.poll() is None:
                    if answering_pid(port) == process.pid:
                        yield port
                        return
                    if time.monotonic() > deadline:
                        raise TimeoutError(f"{command(port)} does not answer")
                    time.sleep(0.01)
                output.seek(0)
                said = output.read().decode(errors="replace")
            finally:
                process.terminate()
                process.wait()
        # Ended at once: somebody else was quicker to bind the port, or it is broken.
        if time.monotonic() > deadline or "in use" not in said:
            raise RuntimeError(f"{command(port)} ended: {said}")


def _memcached_pid(port: int) -> int | None:
    """The pid of the memcached that answers there, if one does."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.settimeout(1)
            connection.sendall(b"stats\r\nquit\r\n")
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
    except OSError:
        return None
    found = re.search(rb"STAT pid (\d+)", answer)
    return int(found[1]) if found else None


def _rabbitmqctl(*arguments: str) -> bool:
    binary = shutil.which("rabbitmqctl")
    if binary is None:
        return False
    command = [binary, "--quiet", *arguments]
    try:
        return subprocess.run(command, capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
