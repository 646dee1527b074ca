"""Fixtures that every test may ask for. `tests/store_cases.py` says which stores there are."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.conf import settings as django_settings
from django.db import connection, connections
from django.test.utils import override_settings
from psycopg.conninfo import conninfo_to_dict

from django_tasklock.lease import RELEASED
from django_tasklock.renewal import renewal
from django_tasklock.store_renewal import Entry
from django_tasklock.stores import stores
from django_tasklock.stores.base import BaseStore
from example_project.servers import NoRedis, RedisServer, own_redis
from tests import needs
from tests.proxy import CutProxy
from tests.store_cases import STORE_CASES, StoreCase, own_prefix, redis_cache

pytest.register_assert_rewrite("django_tasklock.testing")


def pytest_configure(config: pytest.Config) -> None:
    """Let SIGTERM end a run as Ctrl-C does: fixtures end what they started."""
    run = os.getpid()

    def interrupt(signum: int, frame: object) -> None:
        if os.getpid() == run:
            raise KeyboardInterrupt
        signal.signal(signum, signal.SIG_DFL)  # a fork of the run ends as usual
        os.kill(os.getpid(), signum)

    signal.signal(signal.SIGTERM, interrupt)
    # A run in the background of a shell, or under nohup, was told to ignore these, and so would
    # be every process that a test starts.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True, scope="session")
def tasks_have_made_themselves_known() -> None:
    """Or they would do so while a test has put something else where they do."""
    from django_tasklock.celery import explaining, works  # noqa: F401


UseCaches = Callable[..., None]
UseRedis = Callable[..., None]
ProxyTo = Callable[[int], CutProxy]


@pytest.fixture(autouse=True)
def no_lease_outlives_its_test() -> Iterator[None]:
    """A lease that something still refers to would be renewed, and lost, in the next tests."""
    yield
    for entry in renewal.entries():
        lease = entry.lease() if isinstance(entry, Entry) else entry.lease
        if lease is not None:
            lease._end(RELEASED)


# ------------------------------------------------------------------------------ servers


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One Redis for the whole run. Shared: never pause, kill or empty it."""
    try:
        with own_redis() as server:
            yield server
    except NoRedis as error:
        needs.missing(str(error))


@pytest.fixture
def own_redis_server() -> Iterator[RedisServer]:
    """A Redis for this test alone, to be paused, killed and started again."""
    try:
        with own_redis(needs_own=True) as server:
            yield server
    except NoRedis as error:
        needs.missing(str(error))


@pytest.fixture
def proxy_to() -> Iterator[ProxyTo]:
    """``proxy_to(port)``: a `CutProxy` in front of that loopback port."""
    with contextlib.ExitStack() as stack:
        yield lambda port: stack.enter_context(CutProxy(("127.0.0.1", port)))


@pytest.fixture
def cut_proxy(redis_server: RedisServer) -> Iterator[CutProxy]:
    """A `CutProxy` in front of ``redis_server``; ``cut_proxy.url`` is a Redis URL."""
    host = urlsplit(redis_server.url).hostname or "127.0.0.1"
    with CutProxy((host, redis_server.port)) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def memcached_server() -> Iterator[str]:
    """``host:port`` of a memcached for the whole run."""
    with needs.memcached() as address:
        yield address


@pytest.fixture(scope="session")
def postgres_dsn() -> Iterator[str]:
    """Connection string of an empty PostgreSQL database, dropped after the run."""
    with needs.postgres() as dsn:
        yield dsn


@pytest.fixture
def postgres_alias(postgres_dsn: str, transactional_db: None) -> Iterator[str]:
    """That database as the Django alias "postgres", without any table."""
    options = conninfo_to_dict(postgres_dsn)
    configured = {
        "ENGINE": "tests.postgresql",
        "NAME": options.pop("dbname"),
        "USER": options.pop("user", ""),
        "PASSWORD": options.pop("password", ""),
        "HOST": options.pop("host", ""),
        "PORT": options.pop("port", ""),
        "OPTIONS": options,
    }
    alias = "postgres"
    everything = connections.configure_settings({"default": {}, alias: configured})
    connections.settings[alias] = everything[alias]
    try:
        yield alias
    finally:
        connections[alias].close()
        del connections[alias]
        del connections.settings[alias]


@pytest.fixture(scope="session")
def rabbitmq_url() -> Iterator[str]:
    """A broker URL for Celery; give queues names of their own (``queue_name``)."""
    with needs.rabbitmq() as url:
        yield url


@pytest.fixture
def queue_name() -> str:
    """A queue name that no other test uses."""
    return f"tasklock-{secrets.token_hex(6)}"


@pytest.fixture(scope="session")
def chromium_path() -> Path:
    """The executable of a Chromium, for ``chromium.launch(executable_path=...)``."""
    return needs.chromium()


# ------------------------------------------------------------------------------ settings


@pytest.fixture
def use_caches() -> Iterator[UseCaches]:
    """``use_caches({"default": {...}}, tasklock={"default": {...}}, OTHER=...)``.

    These settings, until the test ends.
    """
    with contextlib.ExitStack() as stack:

        def use(
            caches: dict[str, Any], tasklock: dict[str, Any] | None = None, **others: Any
        ) -> None:
            stack.enter_context(override_settings(CACHES=caches, TASKLOCK=tasklock, **others))

        yield use


@pytest.fixture
def on_locmem(use_caches: UseCaches) -> None:
    """A cache of this process alone, which cannot list its locks."""
    backend = "django.core.cache.backends.locmem.LocMemCache"
    use_caches({"default": {"BACKEND": backend, "LOCATION": own_prefix()}}, {"default": {}})


@pytest.fixture
def use_redis(use_caches: UseCaches, redis_server: RedisServer) -> UseRedis:
    """``use_redis(url=None, tasklock=None, **options)``: django-redis as the default cache.

    On ``redis_server`` unless a URL is given, with keys that no other test uses; ``options``
    are django-redis's OPTIONS, ``tasklock`` the settings of the alias "default".
    """

    def use(url: str | None = None, tasklock: dict[str, Any] | None = None, **options: Any) -> None:
        use_caches(
            {"default": redis_cache(url or redis_server.url, **options)},
            {"default": tasklock or {}},
        )

    return use


@pytest.fixture
def process_env(transactional_db: None) -> Callable[[], dict[str, str]]:
    """``process_env()``: the environment of a process that shares this test's settings.

    Its database, its caches and its locks, as they are at the time of the call.
    """

    def environment() -> dict[str, str]:
        env = os.environ | {
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "PYTHONPATH": str(Path(__file__).parents[1]),
            "TASKLOCK_TEST_DATABASE": str(connection.settings_dict["NAME"]),
            "TASKLOCK_TEST_CACHES": json.dumps(django_settings.CACHES),
        }
        if getattr(django_settings, "TASKLOCK", None) is not None:
            env["TASKLOCK_TEST_TASKLOCK"] = json.dumps(django_settings.TASKLOCK)
        return env

    return environment


@pytest.fixture(params=STORE_CASES, ids=lambda case: case.id)
def store(request: pytest.FixtureRequest, use_caches: UseCaches) -> BaseStore:
    """The store "default", once for every store there is."""
    case: StoreCase = request.param
    use_caches({"default": case.cache(request)}, {"default": case.tasklock}, **case.settings)
    return stores["default"]
