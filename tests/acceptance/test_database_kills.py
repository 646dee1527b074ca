"""Processes that contend for one lock in a database while they are killed at random."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from django_tasklock import locks
from tests import contenders
from tests.agent import Agent
from tests.conftest import UseCaches
from tests.steps import taken
from tests.store_cases import database_store as settings_of_store
from tests.store_cases import make_lease_table
from tests.storm import storm
from tests.waiting import until


@pytest.fixture(params=["sqlite_alias", "postgres_alias", "mariadb_alias"])
def alias(request: pytest.FixtureRequest, use_caches: UseCaches) -> str:
    """A database of locks alone, which the store "default" uses."""
    alias: str = request.getfixturevalue(request.param)
    make_lease_table(alias)
    use_caches({}, {"default": settings_of_store(alias)})
    return alias


@pytest.mark.parametrize(
    ("processes", "rounds", "kills", "asking"),
    [
        (8, 40, 12, ""),
        (8, 40, 12, "yes"),
        pytest.param(8, 100, 30, "yes", marks=pytest.mark.slow),
    ],
)
def test_no_two_holders_overlap_and_the_dead_hold_nothing(
    alias: str, tmp_path: Path, processes: int, rounds: int, kills: int, asking: str
) -> None:
    assert storm(tmp_path, processes, rounds, kills, {contenders.ASKING: asking}).killed


def test_the_lock_of_a_killed_process_is_taken_over_at_once(alias: str) -> None:
    with Agent() as other:
        held = other.ask("acquire", name="video:1", ttl=60.0)
        assert locks.acquire("video:1") is None
        other.kill()
        lease = taken("video:1")
        assert lease.fence is not None
        assert lease.fence > held["fence"]
        assert lease.release()


def test_without_takeover_it_is_free_after_its_ttl(alias: str, use_caches: UseCaches) -> None:
    use_caches({}, {"default": settings_of_store(alias, TAKEOVER=False)})
    with Agent() as other:
        asked = time.monotonic()
        other.ask("acquire", name="video:1", ttl=1.5)
        other.kill()
        assert locks.acquire("video:1") is None
        until(lambda: locks.acquire("video:1") is not None)
        assert time.monotonic() - asked >= 1.5
