"""Fixtures of the hard cases: brokers for the session, a stage for every test."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import needs
from tests.acceptance.hard_cases.brokers import Broker, RabbitBroker, RedisBroker, connect
from tests.acceptance.hard_cases.stage import Stage
from tests.servers import NoRedis, RedisServer, own_redis

MakeStage = Callable[..., Stage]
on_both_brokers = pytest.mark.parametrize("broker", ["redis", "rabbitmq"])


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


@pytest.fixture
def make_stage(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    broker_server: RedisServer,
    lock_server: RedisServer,
) -> Iterator[MakeStage]:
    """Makes the stage of a test; its workers' output is shown when the test fails."""
    stages: list[Stage] = []

    def make(broker: str = "redis", *, ttl: float = 30.0, visibility: float = 3600.0) -> Stage:
        for server in (broker_server, lock_server):
            with connect(server) as client:
                client.flushall()
        chosen: Broker
        if broker == "rabbitmq":
            chosen = RabbitBroker(request.getfixturevalue("rabbitmq_url"))
        else:
            chosen = RedisBroker(broker_server, visibility)
        folder = tmp_path / f"stage{len(stages)}"
        folder.mkdir()
        stage = Stage(folder, chosen, broker_server, lock_server, ttl)
        stages.append(stage)
        return stage

    yield make
    failed = getattr(request.node, "hard_case_failed", False)
    for stage in stages:
        stage.close()
        if failed:
            print(stage.report())


@pytest.fixture
def stage(make_stage: MakeStage) -> Stage:
    """A stage on Redis with leases of 30 seconds."""
    return make_stage()


def need_pool(pool: str) -> None:
    """Skip, or fail in CI, where the library of a pool is missing; it is not imported here."""
    if pool in ("gevent", "eventlet"):
        needs.package(pool)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Remember that a test failed, so that its stage shows the logs."""
    report = yield
    if report.failed:
        item.hard_case_failed = True  # type: ignore[attr-defined]
    return report
