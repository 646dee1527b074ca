"""Each pool of Celery: a double is skipped, and the job of a process that was killed is done."""

from __future__ import annotations

from typing import Any

import pytest

from tests.nightly.surroundings.at_work import TTL_SECONDS, killed_at_work
from tests.stage.fixtures import MakeStage, need_pool
from tests.stage.ledger import Entry

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent", "eventlet"])
def test_each_pool_locks_and_recovers(make_stage: MakeStage, pool: str) -> None:
    """Under prefork a child is killed; elsewhere it is the worker, and another one goes on."""
    need_pool(pool)
    # RabbitMQ delivers the messages of a dead worker at once.
    stage = make_stage("rabbitmq", ttl=TTL_SECONDS)
    first = f"{stage.queue}-first"
    doomed = stage.worker(
        pool=pool, concurrency=1 if pool == "solo" else 2, options=("-Q", first), wait=False
    )
    other = stage.worker(wait=False)
    doomed.wait_ready()
    other.wait_ready()

    def kill(start: Entry) -> None:
        assert (start.pid == doomed.pid) is (pool != "prefork")
        stage.kill(start.pid)
        if pool != "prefork":
            answers: Any = stage.client.control.add_consumer(
                first, destination=["w2@hard"], reply=True, timeout=60, limit=1
            )
            assert "ok" in answers[0]["w2@hard"]

    try:
        killed_at_work(stage, kill, queue=first)
    finally:
        doomed.end()
        other.end()
        stage.broker.drop(first)
