"""The clock of the Redis host is set forward between a waiter's question and its answer."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from django_tasklock import locks
from tests.agent import Agent
from tests.chaos.server_clock import ServerClock
from tests.conftest import UseRedis
from tests.servers import RedisServer, find_binary
from tests.steps import LONG, taken, waiting
from tests.waiting import until

pytestmark = pytest.mark.nightly


@pytest.mark.slow
def test_a_waiter_that_reads_its_answer_late_is_not_deceived(
    tmp_path: Path, use_redis: UseRedis
) -> None:
    clock = ServerClock(tmp_path)
    if not clock.can_step:
        pytest.skip("no C compiler")
    server = RedisServer.start(clock.binary(find_binary()))
    try:
        use_redis(server.url)
        first = taken("video:1", ttl=LONG)
        with Agent() as agent:
            agent.tell("acquire", name="video:1", ttl=8, wait=None)
            until(lambda: waiting("video:1") == 1)
            clock.step(10)
            agent.stop()
            assert first.release()
            time.sleep(5)
            agent.resume()
            assert agent.answer()
            second = locks.acquire("video:1", wait=20)
            assert second is not None
            assert not (agent.ask("held") and second.held)
    finally:
        server.stop()
