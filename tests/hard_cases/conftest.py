"""Fixtures of the hard cases: brokers for the session, a stage for every test."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import needs
from tests.hard_cases.brokers import Broker, RabbitBroker, RedisBroker, connect
from tests.hard_cases.stage import Stage
from tests.nights import by_day
from tests.servers import NoRedis, RedisServer, own_redis

MakeStage = Callable[..., Stage]
on_both_brokers = pytest.mark.parametrize("broker", by_day("redis", "rabbitmq"))
on_all_pools = pytest.mark.parametrize(
    "pool", by_day("prefork", "threads", "solo", "gevent", "eventlet")
)


@pytest.fixture(scope="session")
def broker_server() -> Iterator[RedisServer]:
    """The Redis of Celery's messages and results."""
    with needed_redis() as server:
        yield server


@pytest.fixture(scope="session")
def lock_server() -> Iterator[RedisServer]:
    """The Redis of the locks: tests stop and pause it while Celery goes on."""
    with needed_redis() as server:
        yield server


@contextlib.contextmanager
def needed_redis() -> Iterator[RedisServer]:
    """A Redis of one's own; the test is skipped, or fails in CI, where there is none."""
    try:
        with own_redis(needs_own=True) as server:
            yield server
    except NoRedis as error:
        needs.missing(str(error))


@contextlib.contextmanager
def stages(
    request: pytest.FixtureRequest, folder: Path, broker_server: RedisServer, locks: RedisServer
) -> Iterator[MakeStage]:
    """Makes stages; their workers' output is shown when a test on them fails."""
    made: list[Stage] = []

    def make(broker: str = "redis", *, ttl: float = 30.0, visibility: float = 3600.0) -> Stage:
        for server in (broker_server, locks):
            with connect(server) as client:
                client.flushall()
        chosen: Broker
        if broker == "rabbitmq":
            chosen = RabbitBroker(request.getfixturevalue("rabbitmq_url"))
        else:
            chosen = RedisBroker(broker_server, visibility)
        place = folder / f"stage{len(made)}"
        place.mkdir()
        made.append(Stage(place, chosen, broker_server, locks, ttl))
        return made[-1]

    yield make
    failed = getattr(request.node, "hard_case_failed", False)
    for stage in made:
        stage.close()
        if failed:
            print(stage.report())


@pytest.fixture
def make_stage(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    broker_server: RedisServer,
    lock_server: RedisServer,
) -> Iterator[MakeStage]:
    """Makes the stages of a test."""
    with stages(request, tmp_path, broker_server, lock_server) as make:
        yield make


@pytest.fixture
def stage(make_stage: MakeStage) -> Stage:
    """A stage on Redis with leases of 30 seconds."""
    return make_stage()


@pytest.fixture(scope="module")
def shared_stage(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    broker_server: RedisServer,
    lock_server: RedisServer,
) -> Iterator[Stage]:
    """A stage and its worker, for a module whose tests have no other one: it is not made anew."""
    folder = tmp_path_factory.mktemp("shared")
    with stages(request, folder, broker_server, lock_server) as make:
        stage = make()
        stage.worker(concurrency=4)
        yield stage


def need_pool(pool: str) -> None:
    """Skip, or fail in CI, where the library of a pool is missing; it is not imported here."""
    if pool in ("gevent", "eventlet"):
        needs.package(pool)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Remember that a test failed, so that its stage shows the logs."""
    report = yield
    if report.failed:
        for node in (item, item.parent):
            node.hard_case_failed = True  # type: ignore[union-attr]
    return report
