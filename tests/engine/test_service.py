"""The service: what can be asked of the locks of a store, and what it tells the world."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from django.core.cache import cache
from django.dispatch import Signal

from django_tasklock import (
    InvalidLockConfig,
    LeaseLost,
    ListingNotSupported,
    LockService,
    lock,
    locks,
    signals,
)
from django_tasklock._values.owner import Owner
from tests.conftest import UseCaches, UseRedis
from tests.servers import RedisServer
from tests.steps import LONG, holder, sent, taken
from tests.store_cases import own_prefix, redis_cache
from tests.waiting import until


@pytest.fixture(autouse=True)
def on_redis(use_redis: UseRedis) -> None:
    use_redis()


class TestAcquire:
    def test_contention_is_none_and_not_an_error(self) -> None:
        first = locks.acquire("video:1", ttl=LONG)
        assert first is not None
        assert locks.acquire("video:1", ttl=LONG) is None
        assert first.release() is True
        assert locks.acquire("video:1", ttl=LONG) is not None

    def test_bare_acquire_takes_the_stores_ttl_and_does_not_renew(self) -> None:
        lease = taken("video:1", ttl=None)
        assert lease.ttl == 60.0
        assert lease.renew is False
        left = holder("video:1").ttl
        assert left is not None
        assert 40 < left <= 60

    def test_lease_is_released_once(self) -> None:
        lease = taken("video:1")
        assert lease.release() is True
        assert lease.release() is False
        assert lease.extend(LONG) is False
        with pytest.raises(LeaseLost, match="released"):
            lease.assert_held()

    def test_every_lease_has_a_token_and_a_greater_fence(self) -> None:
        leases = []
        for _ in range(20):
            leases.append(taken("video:1"))
            leases[-1].release()
        fences = [lease.fence or 0 for lease in leases]
        assert fences == sorted(set(fences))
        assert len({lease.token for lease in leases}) == 20

    def test_fences_are_kept_in_a_hash_table(self) -> None:
        """A list would be gone through for each lease, and the longer the more locks are held."""
        store: Any = locks.store

        def is_table() -> bool:
            for _ in range(50):  # One grant in a hundred sees to it.
                taken("video:1").release()
            kind: bytes = store.client.redis.object("encoding", store.keyspace.fences)
            return kind == b"hashtable"

        until(is_table)

    def test_fences_grow_across_the_locks_of_a_store(self) -> None:
        fences = [taken(f"video:{number}").fence or 0 for number in range(20)]
        assert fences == sorted(set(fences))


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

    def test_nothing_holds_a_lock_that_was_not_taken(self) -> None:
        assert locks.get("video:1") is None
        assert locks.is_locked("video:1") is False
        assert locks.clear("video:1") is False

    def test_task_is_recorded(self) -> None:
        locks.try_acquire("video:1", task="videos.process", task_id="id-1")
        owner = holder("video:1").owner
        assert (owner.task, owner.task_id) == ("videos.process", "id-1")

    def test_row_of_json_has_the_promised_fields(self) -> None:
        taken("video:1")
        row = holder("video:1").as_json()
        assert list(row) == ["name", "ttl", "acquired_at", "owner", "token", "store", "key"]
        assert datetime.fromisoformat(row["acquired_at"]).tzinfo is not None
        assert {"host", "pid", "task", "task_id"} <= set(row["owner"])


class TestList:
    def test_soonest_to_expire_comes_first(self) -> None:
        for name, ttl in (("a:3", 300), ("b:1", 100), ("a:2", 200), ("a:4", 400)):
            taken(name, ttl=ttl)
        assert [info.name for info in locks.list()] == ["b:1", "a:2", "a:3", "a:4"]
        assert [info.name for info in locks.list("a:")] == ["a:2", "a:3", "a:4"]
        assert [info.name for info in locks.list(limit=2)] == ["b:1", "a:2"]
        assert [info.name for info in locks.list(limit=2, offset=3)] == ["a:4"]
        assert [info.name for info in locks.list("a:", limit=1, offset=1)] == ["a:3"]
        assert locks.list(limit=0) == []
        assert locks.list("c") == []
        assert (locks.count(), locks.count("a:"), locks.count("c")) == (4, 3, 0)

    def test_extended_lease_moves_down_the_list(self) -> None:
        first, _ = taken("a", ttl=100), taken("b", ttl=200)
        assert first.extend(300)
        assert [info.name for info in locks.list()] == ["b", "a"]

    def test_listed_lock_is_what_get_says_of_it(self) -> None:
        taken("a")
        (listed,), got = locks.list(), holder("a")
        for field in ("name", "token", "fence", "owner", "store", "key", "acquired_at"):
            assert getattr(listed, field) == getattr(got, field), field

    def test_lock_deleted_by_hand_is_not_listed(self) -> None:
        for name in "abc":
            taken(name)
        cache.delete("lock:b")
        assert [info.name for info in locks.list()] == ["a", "c"]
        assert locks.count() == 2

    def test_lock_deleted_by_hand_leaves_its_place_to_the_next(self) -> None:
        for number in range(3):
            taken(f"video:{number}", ttl=LONG + number)
        cache.delete("lock:video:0")
        assert [info.name for info in locks.list("video:", limit=1)] == ["video:1"]

    def test_pages_show_each_lock_once(self) -> None:
        names = {taken(f"video:{number}", ttl=LONG + number).name for number in range(25)}
        pages = [locks.list(limit=10, offset=offset) for offset in (0, 10, 20)]
        assert [len(page) for page in pages] == [10, 10, 5]
        assert {info.name for page in pages for info in page} == names

    def test_prefix_is_no_pattern(self) -> None:
        for name in ("a*", "ab", "[a]", "é:1"):
            taken(name)
        assert [info.name for info in locks.list("a*")] == ["a*"]
        assert [info.name for info in locks.list("[a")] == ["[a]"]
        assert locks.count("é") == 1

    def test_store_that_cannot_list_says_so(self, use_caches: UseCaches) -> None:
        use_caches({"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}})
        for question in (locks.list, locks.count):
            with pytest.raises(ListingNotSupported, match="'default'"):
                question()


class TestClear:
    def test_whatever_holds_the_lock_goes(self) -> None:
        lease = taken("video:1")
        assert locks.clear("video:1") is True
        assert not locks.is_locked("video:1")
        assert lease.extend() is False
        assert lease.held is False

    def test_with_a_token_only_that_lease_goes(self) -> None:
        first = taken("video:1")
        first.release()
        second = taken("video:1")
        assert locks.clear("video:1", token=first.token) is False
        assert holder("video:1").token == second.token
        assert locks.clear("video:1", token=second.token) is True
        assert not locks.is_locked("video:1")


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
        taken("video:1")
        for alias in ("other", "memory"):
            service = locks.using(alias)
            lease = service.acquire("video:1", ttl=LONG)
            assert lease is not None
            assert lease.store == alias
            info = service.get("video:1")
            assert info is not None
            assert info.store == alias
        assert locks.count() == 1
        assert locks.using("other").count() == 1
        with lock("video:2", store="other"):
            assert locks.using("other").is_locked("video:2")
            assert not locks.is_locked("video:2")

    def test_lease_returns_to_its_own_store(self) -> None:
        mine, others = taken("video:1"), locks.using("other").acquire("video:1")
        assert others is not None
        assert others.extend(LONG)
        assert others.release()
        assert mine.held
        assert locks.is_locked("video:1")

    def test_unknown_alias_is_said_at_once(self) -> None:
        with pytest.raises(InvalidLockConfig, match=r"'nope'.*'default', 'other', 'memory'"):
            locks.using("nope")
        with pytest.raises(InvalidLockConfig, match="'nope'"), lock("video:1", store="nope"):
            pytest.fail("the block ran")  # pragma: no cover


class TestSignals:
    def test_life_of_a_lease_is_told(self) -> None:
        with (
            sent(signals.lock_acquired) as acquired,
            sent(signals.lock_contended) as contended,
            sent(signals.lock_released) as released,
        ):
            lease = taken("video:1")
            assert locks.acquire("video:1", wait=0.05) is None
            assert lease.release()
        assert [(told["lease"], told["sender"]) for told in acquired] == [(lease, LockService)]
        assert [told["lease"] for told in released] == [lease]
        (told,) = contended
        assert (told["name"], told["store"]) == ("video:1", "default")
        assert told["holder"].token == lease.token
        assert told["owner"] == Owner.current()
        assert 0.05 <= told["waited"] < LONG

    def test_loss_is_told_once(self) -> None:
        with sent(signals.lock_lost) as lost, sent(signals.lock_released) as released:
            lease = taken("video:1")
            locks.clear("video:1")
            assert not lease.extend()
            assert not lease.extend()
            assert not lease.release()
            assert not lease.held
        assert [told["lease"] for told in lost] == [lease]
        assert lost[0]["reason"]
        assert released == []

    def test_clear_is_told_with_who_held_it(self) -> None:
        lease = taken("video:1")
        with sent(signals.lock_cleared) as cleared:
            locks.clear("video:1", by="alice")
            locks.clear("video:1", by="bob")
        (told,) = cleared
        assert (told["name"], told["store"], told["by"]) == ("video:1", "default", "alice")
        assert told["holder"].token == lease.token

    @pytest.mark.parametrize(
        "name", ["lock_acquired", "lock_cleared", "lock_contended", "lock_held", "lock_lost",
                 "lock_released"]
    )  # fmt: skip
    def test_broken_receiver_stops_nothing(self, name: str) -> None:
        signal: Signal = getattr(signals, name)
        called = []

        def broken(**kwargs: Any) -> None:
            called.append(kwargs)
            raise RuntimeError("a receiver of somebody's")

        signal.connect(broken)
        try:
            with lock("video:1"):
                assert locks.acquire("video:1") is None
            assert not locks.is_locked("video:1")
            lease = taken("video:1", ttl=0.05)
            until(lambda: not lease.held)
            until(lambda: not locks.is_locked("video:1"))
            taken("video:1")
            assert locks.clear("video:1") is True
            assert locks.hold("video:1", LONG) is not None
        finally:
            signal.disconnect(broken)
        assert called
