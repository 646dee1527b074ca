"""Keys that others set, ours as others see them, and moving from the old recipe key by key."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.cache import cache
from django.test.utils import override_settings

from django_tasklock import Lease, LockNotAcquired, lock, locks
from tests.conftest import UseRedis
from tests.steps import Meanwhile, holder, taken, waiting
from tests.waiting import until

REDIS = "django_tasklock.stores.redis.RedisStore"
CACHE = "django_tasklock.stores.cache.CacheStore"

pytestmark = pytest.mark.usefixtures("on_redis")


@pytest.mark.parametrize("backend", [REDIS, CACHE])
@pytest.mark.parametrize("value", ["locked", {"token": "t" * 22, "at": "yesterday"}, b"\xff", None])
def test_what_old_code_has_set_is_a_lock_that_can_be_seen_and_cleared(
    use_redis: UseRedis, backend: str, value: Any
) -> None:
    # Given a lock of other code, on the very same key
    use_redis(tasklock={"BACKEND": backend})
    assert cache.add("lock:video:1", value, 7200)

    # I expect ours to be refused, and what is there to be shown, as far as it says anything
    assert locks.acquire("video:1", wait=0.02) is None
    with pytest.raises(LockNotAcquired), lock("video:1"):
        pytest.fail("the block ran")  # pragma: no cover
    info = holder("video:1")
    assert (info.token, info.fence, info.owner.alive()) == (None, None, None)
    assert backend == CACHE or 7000 < (info.ttl or 0) <= 7200
    assert cache.get("lock:video:1") == value

    # And an operator to clear it
    assert locks.clear("video:1") is True
    assert taken("video:1").release()


@pytest.mark.parametrize("prefix", ["lock:", ""])
def test_we_exclude_old_code_also_without_a_prefix(use_redis: UseRedis, prefix: str) -> None:
    use_redis(tasklock={"KEY_PREFIX": prefix.rstrip(":")})
    lease = taken("transcode-1")
    assert cache.add(f"{prefix}transcode-1", "locked", 7200) is False
    assert lease.extend()
    assert [info.name for info in locks.list()] == ["transcode-1"]
    assert lease.release()
    assert cache.add(f"{prefix}transcode-1", "locked", 7200)
    assert locks.acquire("transcode-1") is None


@pytest.mark.parametrize("timeout", [None, 7200], ids=["for-ever", "two-hours"])
def test_a_waiter_finds_within_seconds_that_old_code_is_done(timeout: int | None) -> None:
    """``cache.delete`` tells nobody: it is looked for, every second."""
    cache.add("lock:video:1", "locked", timeout)
    waiters: list[Meanwhile[Lease]] = []
    for _ in "ab":
        waiters.append(Meanwhile(lambda: taken("video:1", wait=None)))
        until(lambda: waiting("video:1") == len(waiters))
    cache.delete("lock:video:1")
    for waiter in waiters:
        assert waiter.result(within=5).release()


def test_others_see_our_key_and_may_delete_or_overwrite_it() -> None:
    lease = taken("video:1", ttl=2)
    assert lease.token in cache.get("lock:video:1")
    assert cache.ttl("lock:video:1") in (1, 2)  # type: ignore[attr-defined]
    waiter = Meanwhile(lambda: taken("video:1", wait=None))
    until(lambda: waiting("video:1") == 1)
    assert cache.delete("lock:video:1")
    # Nobody is told; a waiter asks again when the lease would have ended
    assert lease.extend() is False
    lease = taken("video:2")
    cache.set("lock:video:2", "locked", 7200)
    assert lease.release() is False
    assert cache.get("lock:video:2") == "locked"
    assert waiter.result().held


@pytest.mark.parametrize(("before", "after"), [(REDIS, CACHE), (CACHE, REDIS)])
def test_leases_of_the_one_store_exclude_those_of_the_other(before: str, after: str) -> None:
    """The same cache, first with one BACKEND and then with the other."""
    with override_settings(TASKLOCK={"default": {"BACKEND": before}}):
        lease = taken("video:1")
    with override_settings(TASKLOCK={"default": {"BACKEND": after}}):
        assert locks.acquire("video:1") is None
        assert holder("video:1").token == lease.token
        assert holder("video:1").owner == lease.owner
    with override_settings(TASKLOCK={"default": {"BACKEND": before}}):
        assert lease.release()
