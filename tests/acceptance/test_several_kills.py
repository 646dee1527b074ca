"""Processes that hold several locks are killed at work: no two holders, and no lock is stuck."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from django_tasklock import locks
from tests.conftest import UseRedis
from tests.contenders import TTL_SECONDS
from tests.crowd import run_crowd
from tests.servers import RedisServer
from tests.several_contenders import NAMES


@pytest.mark.slow
def test_all_locks_of_the_dead_are_taken_over(
    own_redis_server: RedisServer, use_redis: UseRedis, tmp_path: Path
) -> None:
    use_redis(own_redis_server.url)
    processes, rounds, kills = 6, 40, 30
    ledger = run_crowd("tests.several_contenders", tmp_path, processes, rounds, kills)
    killed = {line[1] for line in ledger if line[0] == "K"}
    assert len(killed) > 5
    cut_short = 0
    for name in NAMES:
        deeds = [line[:4] for line in ledger if line[1] == name]
        for (deed, _, fence, pid), (next_deed, _, next_fence, next_pid) in pairwise(deeds):
            if (deed, next_deed) == ("E", "L"):
                assert (fence, pid) == (next_fence, next_pid), "two at once"
                continue
            assert next_deed == "E", "somebody left who had not entered"
            assert int(next_fence) > int(fence), "a fence that did not grow"
            if deed == "E":
                assert pid in killed, "two at once"
                cut_short += 1
    print(
        f"{len(ledger)} lines, {len(killed)} kills, {cut_short} leases of holders that were killed"
    )
    assert cut_short > 0
    moments = [float(line[-1]) for line in ledger]
    assert max(later - earlier for earlier, later in pairwise(moments)) < TTL_SECONDS / 4
    leases = locks.acquire_all(NAMES)
    assert leases is not None, "those of the last ones are taken over as well"
    assert [lease.release() for lease in leases] == [True] * len(NAMES)
