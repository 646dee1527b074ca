"""Holders and waiters of permits are killed: never more than N are inside, and never fewer for
long while somebody waits."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from django_tasklock import locks
from tests.conftest import UseCaches, UseRedis
from tests.contenders import TTL_SECONDS
from tests.crowd import run_crowd
from tests.permit_contenders import NAME, SLOTS
from tests.servers import RedisServer
from tests.store_cases import database_store, make_lease_table

pytestmark = pytest.mark.slow

PROCESSES = 7


def contend(tmp_path: Path, rounds: int, kills: int) -> list[list[str]]:
    """The ledger of processes that contend for the permits, in words."""
    return run_crowd("tests.permit_contenders", tmp_path, PROCESSES, rounds, kills, within=400)


def assert_fair_and_exclusive(ledger: list[list[str]]) -> None:
    killed = {line[1] for line in ledger if line[0] == "K"}
    assert len(killed) > 5
    cut_short, longest = 0, 0.0
    for slot in range(1, SLOTS + 1):
        deeds = [line for line in ledger if line[0] in "EL" and line[1] == str(slot)]
        assert deeds, f"nobody ever had permit {slot}"
        for (deed, _, fence, pid, at), (next_deed, _, next_fence, next_pid, next_at) in pairwise(
            deeds
        ):
            if (deed, next_deed) == ("E", "L"):
                assert (fence, pid) == (next_fence, next_pid), "more than N at once"
                continue
            assert next_deed == "E", "somebody left who had not entered"
            assert int(next_fence) > int(fence), "a fence that did not grow"
            if deed == "E":
                assert pid in killed, "more than N at once"
                cut_short += 1
            longest = max(longest, float(next_at) - float(at))
    assert {line[1] for line in ledger if line[0] == "E"} <= set(map(str, range(1, SLOTS + 1)))
    print(
        f"{len(ledger)} lines, {len(killed)} kills, {cut_short} of holders; a permit was never "
        f"free for more than {longest:.2f} s"
    )
    assert cut_short > 0
    # More wait than there are permits, until the last ones are at work.
    assert longest < TTL_SECONDS / 4
    leases = [locks.acquire(NAME, slots=SLOTS) for _ in range(SLOTS)]
    assert all(leases), "those of the last ones are taken over as well"
    assert [lease.release() for lease in leases if lease] == [True] * SLOTS


def test_on_redis(own_redis_server: RedisServer, use_redis: UseRedis, tmp_path: Path) -> None:
    use_redis(own_redis_server.url)
    assert_fair_and_exclusive(contend(tmp_path, rounds=40, kills=40))


def test_in_a_database(postgres_alias: str, use_caches: UseCaches, tmp_path: Path) -> None:
    make_lease_table(postgres_alias)
    backend = "django.core.cache.backends.locmem.LocMemCache"
    use_caches({"default": {"BACKEND": backend}}, {"default": database_store(postgres_alias)})
    assert_fair_and_exclusive(contend(tmp_path, rounds=15, kills=25))
