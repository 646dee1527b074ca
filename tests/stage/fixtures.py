"""What a test asks for: a stage of its own, or the one that tests share who leave it as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests import needs
from tests.nights import by_day
from tests.servers import NoRedis, RedisServer, own_redis
from tests.stage.brokers import Broker, RabbitBroker, RedisBroker, connect
from tests.stage.stage import Stage
from tests.stage.workers import AS_ROOT

MakeStage = Callable[..., Stage]
on_both_brokers = pytest.mark.parametrize("stage", by_day("redis", "rabbitmq"), indirect=True)
shared_on_both_brokers = pytest.mark.parametrize(
    "shared", by_day("redis", "rabbitmq"), indirect=True
)
on_all_pools = pytest.mark.parametrize(
    "pool", by_day("prefork", "threads", "solo", "gevent", "eventlet")
)


@contextmanager
def needed_redis() -> Iterator[RedisServer]:
    """A Redis of one's own; the test is skipped, or fails in CI, where there is none."""
    try:
        with own_redis(needs_own=True) as server:
            yield server
    except NoRedis as error:
        needs.missing(str(error))


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


@pytest.fixture
def make_stage(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    broker_server: RedisServer,
    lock_server: RedisServer,
) -> Iterator[MakeStage]:
    """Makes stages; pytest shows their workers' output if the test fails."""
    made: list[Stage] = []

    def make(broker: str = "redis", *, ttl: float = 30.0, visibility: float = 3600.0) -> Stage:
        for server in (broker_server, lock_server):
            with connect(server) as client:
                client.flushall()
        chosen: Broker = RedisBroker(broker_server, visibility)
        if broker == "rabbitmq":
            chosen = RabbitBroker(request.getfixturevalue("rabbitmq_url"))
        place = tmp_path / f"stage{len(made)}"
        place.mkdir()
        made.append(Stage(place, chosen, broker_server, lock_server, ttl))
        return made[-1]

    yield make
    for stage in made:
        stage.close()
        print(stage.report())


@pytest.fixture
def stage(request: pytest.FixtureRequest, make_stage: MakeStage) -> Stage:
    """A stage of the test's own: on Redis, with leases of 30 seconds, unless ``on_both_brokers`` or
    the marker ``stage`` say otherwise."""
    marker = request.node.get_closest_marker("stage") or pytest.mark.stage().mark
    brokers = (request.param,) if hasattr(request, "param") else marker.args
    return make_stage(*brokers, **marker.kwargs)


@contextmanager
def stage_for_a_file(folder: Path) -> Iterator[Stage]:
    """A stage on a Redis of its own, which the tests of a whole file share."""
    with needed_redis() as server:
        stage = Stage(folder, RedisBroker(server, 3600.0), server, server, 30.0)
        try:
            yield stage
        finally:
            stage.close()


@pytest.fixture(scope="session")
def company(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Stage]]:
    """The stage of all that share one; a new one if a test has left anything on the last."""
    stages: list[Stage] = []
    with ExitStack() as open_stages:

        def get() -> Stage:
            if not stages or stages[-1].queued() or stages[-1].held():
                open_stages.close()
                folder = tmp_path_factory.mktemp("shared")
                stages.append(open_stages.enter_context(stage_for_a_file(folder)))
                with_company(stages[-1])
            return stages[-1]

        yield get


def with_company(stage: Stage) -> Stage:
    """With a worker of four children, which unpickles, and has the code of the last release."""
    conf = {"accept_content": ["json", "pickle"]}
    stage.worker(concurrency=4, conf=conf, environment={"STAGE_OLD": "1", **AS_ROOT})
    return stage


@pytest.fixture
def shared(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """A stage with `with_company`. Its worker is not stopped, and its children may be killed.

    Tests share it; on RabbitMQ each has its own.
    """
    if getattr(request, "param", "redis") == "rabbitmq":
        yield with_company(request.getfixturevalue("make_stage")("rabbitmq"))
        return
    stage = request.getfixturevalue("company")()
    yield stage
    print(stage.report())


def need_pool(pool: str) -> None:
    """Skip, or fail in CI, where the library of a pool is missing; it is not imported here."""
    if pool in ("gevent", "eventlet"):
        needs.package(pool)
