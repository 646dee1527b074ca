"""Processes are killed around the release of a lock that cools: it is never free early or late."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from tests.conftest import UseRedis
from tests.contenders import TTL_SECONDS
from tests.cooling_contenders import HELD_SECONDS
from tests.crowd import run_crowd
from tests.servers import RedisServer

ROUNDING_SECONDS = 0.002
"""Redis counts milliseconds"""


@pytest.mark.slow
def test_who_is_killed_around_a_release(
    own_redis_server: RedisServer, use_redis: UseRedis, tmp_path: Path
) -> None:
    use_redis(own_redis_server.url)
    processes, turns = 4, 60
    ledger = run_crowd("tests.cooling_contenders", tmp_path, processes, turns)
    killed = {line[1] for line in ledger if line[0] == "K"}
    released = {line[1] for line in ledger if line[0] == "R"}
    entered = [
        (fence, pid, float(asked), float(moment))
        for deed, fence, pid, asked, moment in (line for line in ledger if line[0] == "E")
    ]
    cut_short = 0
    for (fence, pid, asked, moment), (later_fence, _, _, later) in pairwise(entered):
        assert int(later_fence) > int(fence)
        if fence in released:
            # The release has returned: the name was taken until its time, whoever died then.
            assert later - asked >= HELD_SECONDS - ROUNDING_SECONDS, f"free early, after {pid}"
        else:
            assert pid in killed
            cut_short += later - moment < HELD_SECONDS
        # Nobody's death keeps it for the ttl, nor for longer than it was to be held.
        assert later - moment < HELD_SECONDS + TTL_SECONDS / 4, f"stuck after {pid}"
    print(f"{len(entered)} turns, {len(killed)} kills, {cut_short} before the lock was cooling")
    assert len(killed) > 10
    assert cut_short > 0
    assert len(released) > 10
