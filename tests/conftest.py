"""Fixtures that every test may ask for. `tests/store_cases.py` says which stores there are."""

from __future__ import annotations

import concurrent.futures.thread
import contextlib
import gc
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import hypothesis
import pytest
from django.db import connections
from django.test.utils import override_settings
from django_redis.pool import ConnectionFactory
from psycopg.conninfo import conninfo_to_dict

from django_tasklock.stores import stores
from django_tasklock.stores.base import BaseStore
from tests import inside, needs
from tests.agent import environment
from tests.celery_apps import apps_end
from tests.clusters import PATIENT_MS, Cluster
from tests.interruptions import forget_handled
from tests.proxy import CutProxy
from tests.servers import RedisServer
from tests.store_cases import (
    CACHE_CASES,
    NOWHERE,
    STORE_CASES,
    StoreCase,
    own_prefix,
    params,
    redis_cache,
)
from tests.waiting import until

# These import a store, and each store is tested for itself.
if TYPE_CHECKING:
    from django_tasklock.stores.zookeeper import ZooKeeperStore
    from tests.zookeepers import ZooKeeper

pytest.register_assert_rewrite("tests.stores.contract")

NIGHTLY = Path(__file__).parent / "nightly"

# A busy machine is no reason to fail.
hypothesis.settings.register_profile(
    "patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("patient")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--nightly", action="store_true", help="run what `make test` leaves out, and only that"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What is valuable and slow runs at night: what is marked so, or is below tests/nightly."""
    nightly = bool(config.getoption("--nightly"))
    groups: dict[bool, list[pytest.Item]] = {True: [], False: []}
    for item in items:
        at_night = item.path.is_relative_to(NIGHTLY) or "nightly" in item.keywords
        groups[at_night == nightly].append(item)
    items[:] = groups[True]
    if groups[False]:
        config.hook.pytest_deselected(items=groups[False])


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """A run that failed says last how to run these tests again, with the seed they have drawn."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput"):
        return
    failed = [*reporter.stats.get("failed", ()), *reporter.stats.get("error", ())]
    if not failed:
        return
    # A run in which more have failed has one cause, mostly.
    ids = " ".join(f"'{report.nodeid}'" for report in failed[:12])
    printed = "\n".join(text for report in failed for _, text in report.sections)
    seeds = sorted({*re.findall(r"^SEED=\w+", printed, re.MULTILINE)})
    seed = seeds[0] if len(seeds) == 1 else ""
    make = "nightly-tests" if config.getoption("--nightly") else "test"
    order = f"--randomly-seed={config.getoption('randomly_seed', None)}"
    reporter.section("how to run again what failed")
    reporter.write_line(f'{seed} make {make} ARGS="{order} {ids}"'.strip())


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """What a test has interrupted is not the context of the next one's exceptions."""
    forget_handled()


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


@pytest.fixture(autouse=True)
def no_app_outlives_its_test() -> Iterator[None]:
    with apps_end():
        yield


UseCaches = Callable[..., None]
UseRedis = Callable[..., None]
UseZooKeeper = Callable[..., "ZooKeeperStore"]
ProxyTo = Callable[[int], CutProxy]


@pytest.fixture(autouse=True)
def no_lease_outlives_its_test() -> Iterator[None]:
    """A lease that something still refers to would be renewed, and lost, in the next tests.

    A `CacheStore` would even ask the cache of the next test, and so its server, for a lease that an
    interrupted call has left.
    """
    yield
    inside.forget_all()


@pytest.fixture(autouse=True, scope="module")
def no_thread_outlives_its_file() -> Iterator[None]:
    """What it did would happen in the tests of another file.

    Those of a pool may stay, which waits for work; and those that `threading` has not started: the
    package's own, which end with their store.
    """

    def ended() -> bool:
        if left_of(before):
            gc.collect()  # With their store: it is in a circle, and a call of its own may last.
        return not left_of(before)

    before = {*threading.enumerate()}
    yield
    until(ended, f"the end of {left_of(before)}", every=0.1)


def left_of(before: set[threading.Thread]) -> list[threading.Thread]:
    """The threads that were started since, and have not ended."""
    pools: Any = concurrent.futures.thread
    known = before | {*pools._threads_queues}
    return [
        thread
        for thread in threading.enumerate()
        if not (thread in known or isinstance(thread, threading._DummyThread))
    ]


# ------------------------------------------------------------------------------ servers


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One Redis for the whole run. Shared: never pause, kill or empty it."""
    with needs.redis() as server:
        yield server


@pytest.fixture
def own_redis_server() -> Iterator[RedisServer]:
    """A Redis for this test alone, to be paused, killed and started again."""
    with needs.redis(own=True) as server:
        yield server


@pytest.fixture(scope="session")
def five_servers() -> Iterator[list[RedisServer]]:
    """Five for the whole run. Shared: never pause, kill or empty them."""
    with five_redis_servers() as servers:
        yield servers


@contextlib.contextmanager
def five_redis_servers() -> Iterator[list[RedisServer]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(needs.redis(own=True)) for _ in range(5)]


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[Cluster]:
    """One cluster for the whole run. Shared: never pause, kill or change its nodes."""
    with Cluster.own(timeout_ms=PATIENT_MS) as cluster:
        yield cluster


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
def zookeeper_server() -> Iterator[ZooKeeper]:
    """One ZooKeeper for the whole run. Shared: never pause, kill or restart it."""
    from tests.zookeepers import own_zookeeper

    with own_zookeeper() as server:
        yield server


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
    with database_alias("postgres", configured) as alias:
        yield alias


@pytest.fixture(scope="session")
def mariadb_settings() -> Iterator[dict[str, Any]]:
    """An empty MariaDB database, dropped after the run, as settings of a Django alias."""
    with needs.mariadb() as settings:
        yield settings | {"ENGINE": "tests.mariadb"}


@pytest.fixture
def mariadb_alias(mariadb_settings: dict[str, Any], transactional_db: None) -> Iterator[str]:
    """That database as the Django alias "mariadb", without any table."""
    with database_alias("mariadb", dict(mariadb_settings)) as alias:
        yield alias


@pytest.fixture
def sqlite_alias(tmp_path: Path, transactional_db: None) -> Iterator[str]:
    """An SQLite file as the Django alias "sqlite", without any table."""
    configured = {
        "ENGINE": "tests.sqlite",
        "NAME": str(tmp_path / "locks.sqlite3"),
        "OPTIONS": {"init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF"},
    }
    with database_alias("sqlite", configured) as alias:
        yield alias


@contextlib.contextmanager
def database_alias(alias: str, configured: dict[str, Any]) -> Iterator[str]:
    """A database as a Django alias for the time of the block."""
    everything = connections.configure_settings({"default": {}, alias: configured})
    connections.settings[alias] = everything[alias]
    try:
        yield alias
    finally:
        connections[alias].close()
        del connections[alias]
        del connections.settings[alias]
        inside.forget_threads_that_are_awaited()


@pytest.fixture(scope="session")
def rabbitmq_url() -> Iterator[str]:
    """A broker URL for Celery; give queues names of their own."""
    with needs.rabbitmq() as url:
        yield url


@pytest.fixture(params=["told", "not told"])
def each_fork(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forks of which the package is told, and those of which it is not, as uWSGI's.

    Python's own handlers run after both. A fork in C would leave the child the interpreter lock as
    it is, which other threads may be waiting for: `tests.engine.test_preloaded` has real ones.
    """
    if request.param == "not told":
        monkeypatch.setattr(os, "fork", partial(inside.fork_untold, os.fork))


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
            # django-redis keeps a pool for each URL, with the options of the cache that was the
            # first to use it: those of another test, or of an earlier server on the same port.
            ConnectionFactory._pools.clear()
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
def on_redis(use_redis: UseRedis) -> None:
    """django-redis, as its page says."""
    use_redis()


@pytest.fixture
def process_env(transactional_db: None) -> Callable[..., dict[str, str]]:
    """``process_env()``: the environment of a process that shares this test's settings.

    Its database, its caches and its locks, as they are at the time of the call.
    """
    return environment


def made_store(request: pytest.FixtureRequest, use_caches: UseCaches) -> BaseStore:
    """The store "default", as the `StoreCase` that is the fixture's parameter says."""
    case: StoreCase = request.param
    used = {"default": case.cache(request)}
    if nowhere := NOWHERE.get(used["default"]["BACKEND"]):
        used["silent"] = used["default"] | {"LOCATION": nowhere}
    tasklock = case.tasklock(request) if callable(case.tasklock) else case.tasklock
    caches, aliases = case.beside(request) if case.beside else ({}, {})
    use_caches(used | caches, {"default": tasklock} | aliases)
    return stores["default"]


@pytest.fixture(params=params(STORE_CASES, by_day={"redis-pickle"}), ids=lambda case: case.id)
def store(request: pytest.FixtureRequest, use_caches: UseCaches) -> BaseStore:
    """The store "default", on Redis; at night once for every store there is."""
    return made_store(request, use_caches)


@pytest.fixture(params=params(STORE_CASES), ids=lambda case: case.id)
def each_store(request: pytest.FixtureRequest, use_caches: UseCaches) -> BaseStore:
    """The store "default", once for each that most projects have; at night for every one."""
    return made_store(request, use_caches)


@pytest.fixture(params=params(CACHE_CASES), ids=lambda case: case.id)
def cache_store(request: pytest.FixtureRequest, use_caches: UseCaches) -> BaseStore:
    """The store "default", once for every store whose locks are keys of the default cache."""
    return made_store(request, use_caches)
