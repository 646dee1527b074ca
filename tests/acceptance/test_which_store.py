"""What the table of stores says of each, held against each of their servers."""

from __future__ import annotations

import time
from typing import Any

import pytest
from django.conf import settings
from django.core.cache import caches
from django.test.utils import override_settings

from django_tasklock import Lease, locks
from django_tasklock.stores.base import BaseStore
from tests.agent import Agent
from tests.steps import LONG, Meanwhile, taken
from tests.store_cases import STORE_CASES, StoreCase
from tests.waiting import until

pytestmark = pytest.mark.slow

LEFT_OUT = {
    "locmem": "of one process",
    "memory": "of one process",
    "file-based": "excludes nobody",
    **dict.fromkeys(("database-sqlite", "database-postgres"), "excludes until a lease expires"),
    **dict.fromkeys(
        ("redis-json", "redis-msgpack", "redis-compressed", "redis-keys", "redis-no-prefix"),
        "other texts in the same keys",
    ),
}
"""stores that are not tried here, and why"""
TTL_SECONDS = 1.5


def case_of(parameter: Any) -> StoreCase:
    case = getattr(parameter, "values", (parameter,))[0]
    assert isinstance(case, StoreCase)
    return case


def waits() -> Lease | None:
    """What a waiter gets, in a thread of its own."""
    try:
        return locks.acquire("video:1", wait=LONG)
    finally:
        caches.close_all()


on_each_store = pytest.mark.parametrize(
    "store",
    [parameter for parameter in STORE_CASES if case_of(parameter).id not in LEFT_OUT],
    indirect=True,
    ids=lambda case: case.id,
)


@on_each_store
def test_the_lock_of_a_killed_process_goes_to_the_next_at_once(store: BaseStore) -> None:
    with Agent() as other:
        held = other.ask("acquire", name="video:1", ttl=LONG)
        waiter = Meanwhile(waits)
        other.kill()
        lease = waiter.result()
    assert lease is not None
    assert waiter.took < LONG / 2
    if store.supports_fence:
        assert lease.fence is not None
        assert lease.fence > held["fence"]
    assert lease.release()


@on_each_store
def test_the_lock_of_a_host_that_died_is_free_after_its_ttl(store: BaseStore) -> None:
    """Nobody knows then that the process is dead, as with TAKEOVER off."""
    configured = dict(settings.TASKLOCK["default"])
    options = configured.get("OPTIONS", {}) | {"TAKEOVER": False}
    without = settings.TASKLOCK | {"default": configured | {"OPTIONS": options}}
    with override_settings(TASKLOCK=without), Agent() as other:
        asked = time.monotonic()
        other.ask("acquire", name="video:1", ttl=TTL_SECONDS)
        other.kill()
        assert locks.acquire("video:1") is None
        lease = locks.acquire("video:1", wait=LONG)
    assert lease is not None
    assert time.monotonic() - asked >= TTL_SECONDS


@on_each_store
def test_a_holder_that_was_away_for_longer_than_its_ttl_has_lost_the_lock(
    store: BaseStore,
) -> None:
    with Agent() as other:
        other.ask("enter", name="video:1", ttl=TTL_SECONDS, renew=True)
        other.stop()
        lease = locks.acquire("video:1", ttl=LONG, wait=LONG)
        assert lease is not None
        other.resume()
        assert other.ask("assert_held")["error"] == "LeaseLost"
        assert other.ask("release") is False
        assert other.ask("leave")["error"] == "LeaseLost"
    assert lease.extend(LONG)
    assert lease.release()


@on_each_store
def test_waiters_of_several_processes_are_served_in_their_order(store: BaseStore) -> None:
    if not store.supports_waiting:
        pytest.skip("only for a store that hands over to waiters")
    with Agent() as second:
        lease = taken("video:1")
        first = Meanwhile(waits)
        until(lambda: len(locks.waiters("video:1")) == 1)
        second.tell("acquire", name="video:1", wait=LONG)
        until(lambda: len(locks.waiters("video:1")) == 2)
        third = Meanwhile(waits)
        until(lambda: len(locks.waiters("video:1")) == 3)
        order = [owner.pid for owner in locks.waiters("video:1")]
        assert order[1] == second.pid != order[0] == order[2]
        assert lease.release()
        handed_over = first.result()
        assert handed_over is not None
        assert handed_over.release()
        assert second.answer() is not None
        assert third.is_alive()
        assert second.ask("release") is True
        last = third.result()
    assert last is not None
    assert last.release()
