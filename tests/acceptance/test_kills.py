"""Processes that are killed and stopped at random: no two holders overlap, and no kill costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from django_tasklock import locks
from tests import contenders
from tests.agent import Agent
from tests.conftest import UseRedis
from tests.servers import RedisServer
from tests.steps import LONG, holder, taken, waiting
from tests.storm import storm
from tests.waiting import until


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "rounds", "kills"), [(8, 200, 60)])
def test_no_two_holders_overlap_and_every_kill_costs_nothing(
    own_redis_server: RedisServer,
    use_redis: UseRedis,
    tmp_path: Path,
    processes: int,
    rounds: int,
    kills: int,
) -> None:
    use_redis(own_redis_server.url)
    was = storm(tmp_path, processes, rounds, kills)
    assert len(was.killed) == kills
    assert was.cut_short > 0
    until(lambda: waiting(contenders.NAME) == 0)
    assert taken(contenders.NAME).release(), "the last one of the dead is taken over as well"


class TestStopped:
    """A lease that lapsed while its holder was stopped."""

    @pytest.fixture(autouse=True)
    def on_redis(self, use_redis: UseRedis) -> None:
        use_redis()

    @pytest.mark.parametrize("renew", [False, True], ids=["", "renewed"])
    def test_who_comes_back_too_late_is_told_and_changes_nothing(self, renew: bool) -> None:
        with Agent() as agent:
            agent.ask("enter", name="video:1", ttl=0.4, renew=renew)
            agent.stop()
            until(lambda: not locks.is_locked("video:1"), "the end of the lease")
            lease = taken("video:1", ttl=LONG)
            agent.resume()
            assert agent.ask("assert_held")["error"] == "LeaseLost"
            assert agent.ask("extend", ttl=10 * LONG) is False
            assert agent.ask("release") is False
            assert agent.ask("held") is False
            assert agent.ask("leave")["error"] == "LeaseLost"
        info = holder("video:1")
        assert info.token == lease.token
        assert info.ttl is not None
        assert info.ttl <= LONG
        assert lease.held

    def test_who_comes_back_in_time_goes_on(self) -> None:
        with Agent() as agent:
            token = agent.ask("enter", name="video:1", ttl=LONG)
            agent.stop()
            assert locks.acquire("video:1", wait=0.1) is None
            agent.resume()
            assert agent.ask("held") is True
            assert holder("video:1").token == token
            assert agent.ask("leave") is None
        assert not locks.is_locked("video:1")
