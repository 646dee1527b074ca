"""The service: what can be asked of the locks of a store, and what it tells the world."""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from django.core.cache import cache
from django.dispatch import Signal

from django_tasklock import (
    lock,
    locks,
    signals,
)
from tests.conftest import UseCaches, UseRedis
from tests.inside import Owner
from tests.servers import RedisServer
from tests.steps import LONG, holder, taken
from tests.store_cases import own_prefix, redis_cache
from tests.waiting import until


@pytest.fixture(autouse=True)
def on_redis(use_redis: UseRedis) -> None:
    use_redis()


class TestAcquire:
    def test_bare_acquire_takes_the_stores_ttl_and_does_not_renew(self) -> None:
        lease = taken("video:1", ttl=None)
        assert lease.ttl == 60.0
        assert lease.renew is False
        left = holder("video:1").ttl
        assert left is not None
        assert 40 < left <= 60


class TestGet:
    def test_it_tells_what_holds_the_lock(self) -> None:
        before = datetime.now(timezone.utc)
        lease = taken("video:1")
        info = holder("video:1")
        assert (info.name, info.token, info.fence) == ("video:1", lease.token, lease.fence)
        assert (info.store, info.key) == ("default", cache.make_key("lock:video:1"))
        assert info.owner == lease.owner == Owner.current()
        assert info.owner.alive() is True
        assert info.waiters == 0
        assert info.acquired_at is not None
        assert info.acquired_at.utcoffset() == timedelta(0)
        assert abs(info.acquired_at - before) < timedelta(seconds=30)
        (listed,) = locks.list()
        for field in ("name", "token", "fence", "owner", "store", "key", "acquired_at"):
            assert getattr(listed, field) == getattr(info, field), field

    def test_row_of_json_has_the_promised_fields(self) -> None:
        locks.try_acquire("video:1", task="videos.process", task_id="id-1")
        row = holder("video:1").as_json()
        assert list(row) == ["name", "ttl", "acquired_at", "owner", "token", "store", "key"]
        assert datetime.fromisoformat(row["acquired_at"]).tzinfo is not None
        assert {"host", "pid"} <= set(row["owner"])
        assert (row["owner"]["task"], row["owner"]["task_id"]) == ("videos.process", "id-1")


class TestUsing:
    @pytest.fixture(autouse=True)
    def two_stores(self, use_caches: UseCaches, redis_server: RedisServer) -> None:
        use_caches(
            {"default": redis_cache(redis_server.url), "memory": {
                "BACKEND": "django.core.cache.backends.locmem.LocMemCache",
                "LOCATION": own_prefix(),
            }},
            {"default": {}, "other": {"KEY_PREFIX": "other"}, "memory": {"CACHE": "memory"}},
        )  # fmt: skip

    def test_aliases_do_not_meet(self) -> None:
        mine = taken("video:1")
        for alias in ("other", "memory"):
            service = locks.using(alias)
            lease = service.acquire("video:1", ttl=LONG)
            assert lease is not None
            info = service.get("video:1")
            assert info is not None
            assert (lease.store, info.store) == (alias, alias)
            assert lease.extend(LONG)
            assert lease.release()
        assert mine.held
        assert locks.count() == 1
        with lock("video:2", store="other"):
            assert locks.using("other").is_locked("video:2")
            assert not locks.is_locked("video:2")


class TestSignals:
    def test_broken_receivers_stop_nothing(self) -> None:
        called = set[Signal]()

        def broken(signal: Signal, **kwargs: Any) -> None:
            called.add(signal)
            raise RuntimeError("a receiver of somebody's")

        every = {signals.lock_acquired, signals.lock_cleared, signals.lock_contended}
        every |= {signals.lock_held, signals.lock_lost, signals.lock_released}
        with contextlib.ExitStack() as stack:
            for signal in every:
                signal.connect(broken)
                stack.callback(signal.disconnect, broken)
            with lock("video:1"):
                assert locks.acquire("video:1") is None
            assert not locks.is_locked("video:1")
            lease = taken("video:1", ttl=0.05)
            until(lambda: not lease.held)
            until(lambda: not locks.is_locked("video:1"))
            taken("video:1")
            assert locks.clear("video:1") is True
            assert locks.hold("video:1", LONG) is not None
        assert called == every
