"""Processes that are killed and stopped at random: no two holders overlap, and no kill costs."""

from __future__ import annotations

import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from django_tasklock import locks
from example_project.servers import RedisServer
from tests import contenders
from tests.agent import Agent, environment
from tests.conftest import UseRedis
from tests.steps import LONG, holder, taken, until, waiting


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "rounds", "kills"), [(8, 500, 150)])
def test_no_two_holders_overlap_and_every_kill_costs_nothing(
    own_redis_server: RedisServer,
    use_redis: UseRedis,
    tmp_path: Path,
    processes: int,
    rounds: int,
    kills: int,
) -> None:
    use_redis(own_redis_server.url)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    path = tmp_path / "ledger"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.contenders"),
            *map(str, (path, seed, processes, rounds, kills)),
        ],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr

    ledger = [line.split() for line in path.read_text().splitlines()]
    deeds = [(deed, int(fence), pid) for deed, fence, pid, *_ in ledger if deed != "K"]
    killed = {pid for deed, pid, *_ in ledger if deed == "K"}
    assert len(killed) == kills
    left = sum(deed == "L" for deed, _, _ in deeds)
    assert left >= processes * rounds

    cut_short = 0
    for (deed, fence, pid), (next_deed, next_fence, next_pid) in pairwise(deeds):
        if (deed, next_deed) == ("E", "L"):
            assert (fence, pid) == (next_fence, next_pid), "two at once"
        else:
            assert next_deed == "E", "somebody left who had not entered"
            assert next_fence > fence, "a fence that did not grow"
            if deed == "E":
                assert pid in killed, "two at once"
                cut_short += 1
    print(f"{left} rounds, {kills} kills, {cut_short} of them of holders at work")
    assert cut_short > 0

    moments = [float(line[-1]) for line in ledger]
    longest = max(later - earlier for earlier, later in pairwise(moments))
    print(f"longest pause {longest:.3f} s, of leases of {contenders.TTL} s")
    assert longest < contenders.TTL / 4
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
