"""Processes that hold a lock several blocks deep are killed in any of them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from tests.conftest import UseRedis
from tests.contenders import TTL_SECONDS
from tests.crowd import run_crowd
from tests.reentrant_contenders import NAME
from tests.servers import RedisServer
from tests.steps import taken


@pytest.mark.slow
def test_lock_of_a_process_killed_in_an_inner_block_is_taken_over(
    own_redis_server: RedisServer, use_redis: UseRedis, tmp_path: Path
) -> None:
    use_redis(own_redis_server.url)
    processes, rounds, kills = 4, 25, 20
    ledger = run_crowd("tests.reentrant_contenders", tmp_path, processes, rounds, kills)
    # I expect no other thread of a holder to have been inside
    assert [line for line in ledger if line[0] == "S"] == []
    killed = {line[1] for line in ledger if line[0] == "K"}
    assert len(killed) > 5
    # and each run of blocks to have one lease, or to end with its process
    inside: list[str] = []
    holder, deepest_killed, fences = ("", ""), 0, [0]
    for deed, depth, fence, pid in (line[:4] for line in ledger if line[0] != "K"):
        if deed == "E" and depth == "0":
            if inside:
                assert holder[1] in killed, "two at once"
                deepest_killed = max(deepest_killed, len(inside))
            inside, holder = [], (fence, pid)
            fences.append(int(fence))
        assert (fence, pid) == holder, "two at once"
        if deed == "E":
            inside.append(depth)
        else:
            assert inside.pop() == depth, "a block ended that was not the innermost"
    assert fences == sorted(set(fences)), "a fence that did not grow"
    assert deepest_killed > 1, "nobody was killed in an inner block"
    print(f"{len(ledger)} lines, {len(killed)} kills, the deepest in block {deepest_killed}")
    moments = [float(line[-1]) for line in ledger]
    assert max(later - earlier for earlier, later in pairwise(moments)) < TTL_SECONDS / 4
    # and the last one of the dead to be taken over as well
    assert taken(NAME).release()
