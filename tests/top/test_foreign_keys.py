"""Keys that others set, ours as others see them, and moving from the old recipe key by key."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from django.core.cache import cache
from django.test.utils import override_settings

from django_tasklock import Lease, LockNotAcquired, lock, locks
from django_tasklock._values.owner import Owner
from django_tasklock._values.tokens import new_token
from django_tasklock.stores import stores
from tests.conftest import UseRedis
from tests.servers import RedisServer
from tests.steps import LONG, Meanwhile, holder, taken, waiting
from tests.waiting import until

REDIS = "django_tasklock.stores.redis.RedisStore"
CACHE = "django_tasklock.stores.cache.CacheStore"
SOON_SECONDS = 5.0
"""seconds; a waiter looks every second at a key that somebody else set"""


pytestmark = pytest.mark.usefixtures("on_redis")


# ------------------------------ ``cache.add(key, "locked", 7200)`` elsewhere, on the very same key


def test_old_code_excludes_us() -> None:
    assert cache.add("lock:video:1", "locked", 7200)
    assert locks.acquire("video:1") is None
    with pytest.raises(LockNotAcquired), lock("video:1"):
        pytest.fail("the block ran")  # pragma: no cover
    info = holder("video:1")
    assert (info.token, info.acquired_at, info.fence, info.owner) == (None, None, None, Owner())
    assert info.ttl is not None
    assert 7000 < info.ttl <= 7200
    assert cache.get("lock:video:1") == "locked"
    cache.delete("lock:video:1")
    assert taken("video:1").release()


def test_we_exclude_old_code_also_without_a_prefix(use_redis: UseRedis) -> None:
    for prefix in ("lock:", ""):
        use_redis(tasklock={"KEY_PREFIX": prefix.rstrip(":")})
        lease = taken("transcode-1")
        assert cache.add(f"{prefix}transcode-1", "locked", 7200) is False
        assert lease.extend()
        assert [info.name for info in locks.list()] == ["transcode-1"]
        assert lease.release()
        assert cache.add(f"{prefix}transcode-1", "locked", 7200)
        assert locks.acquire("transcode-1") is None


@pytest.mark.parametrize("timeout", [None, 7200], ids=["for-ever", "two-hours"])
def test_waiter_finds_within_seconds_that_old_code_is_done(timeout: int | None) -> None:
    """``cache.delete`` tells nobody: it is looked for."""
    cache.add("lock:video:1", "locked", timeout)
    waiters: list[Meanwhile[Lease]] = []
    for _ in "ab":
        waiters.append(Meanwhile(lambda: taken("video:1", wait=None)))
        until(lambda: waiting("video:1") == len(waiters))
    cache.delete("lock:video:1")
    for waiter in waiters:
        assert waiter.result(SOON_SECONDS).release()


# ------------------------------------------------------------------ our key, as others see it


def test_others_see_our_key_and_may_delete_it(redis_server: RedisServer) -> None:
    lease = taken("video:1", ttl=5)
    assert cache.get("lock:video:1")["token"] == lease.token
    assert cache.ttl("lock:video:1") in (4, 5)  # type: ignore[attr-defined]
    client: Any = redis.Redis.from_url(redis_server.url)
    assert client.ttl(holder("video:1").key) in (4, 5)
    waiter = Meanwhile(lambda: taken("video:1", wait=None))
    until(lambda: waiting("video:1") == 1)
    assert client.delete(holder("video:1").key)
    # Nobody is told; a waiter asks again when the lease would have ended
    assert lease.extend() is False
    lease = taken("video:2")
    cache.set("lock:video:2", "locked", 7200)
    assert lease.release() is False
    assert cache.get("lock:video:2") == "locked"
    assert waiter.result().held


JUNK: list[Any] = [
    {"token": "t" * 22, "at": "yesterday", "ends": "tomorrow", "pid": "x", "start": []},
    {"token": ["t"]},
    b"\x00\xff",
    None,
]


@pytest.mark.parametrize("backend", [REDIS, CACHE])
@pytest.mark.parametrize("value", JUNK, ids=repr)
def test_junk_is_a_lock_that_can_be_seen_and_cleared(
    use_redis: UseRedis, backend: str, value: Any
) -> None:
    use_redis(tasklock={"BACKEND": backend})
    cache.set("lock:video:1", value, LONG)
    assert locks.acquire("video:1") is None
    assert locks.acquire("video:1", wait=0.02) is None
    assert locks.is_locked("video:1")
    info = holder("video:1")
    assert info.as_json()["name"] == "video:1"
    assert info.owner.alive() is None
    assert stores["default"].release("video:1", new_token()) is False
    assert stores["default"].extend("video:1", "t" * 22, LONG) in (False, True)
    assert locks.clear("video:1") is True
    assert taken("video:1").release()


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
