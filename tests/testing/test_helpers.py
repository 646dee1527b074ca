"""`django_tasklock.testing`: what a project's own tests use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from django.test.utils import override_settings

from django_tasklock import LeaseLost, LockNotAcquired, StoreUnavailable, lock, locks
from django_tasklock.stores import stores
from django_tasklock.stores.base import BaseStore, Extension, Note
from django_tasklock.stores.records import Held
from django_tasklock.testing import (
    LocksInMemory,
    MemoryStore,
    assert_locked,
    assert_not_locked,
    held,
    locks_in_memory,
    outage,
)
from tests.conftest import UseCaches
from tests.inside import new_token
from tests.steps import LONG, Meanwhile, taken, waiting
from tests.waiting import until

MEMORY = {"BACKEND": "django_tasklock.stores.memory.MemoryStore"}
LOCMEM = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}


@pytest.fixture
def two_stores(use_caches: UseCaches) -> None:
    use_caches(LOCMEM, {"default": MEMORY, "other": MEMORY})


def a_waiter() -> Meanwhile[Any]:
    thread = Meanwhile(lambda: locks.acquire("video:1", ttl=LONG, wait=LONG))
    until(lambda: waiting("video:1") == 1)
    return thread


def test_somebody_else_holds_the_lock_in_the_block(store: BaseStore) -> None:
    # Given a lock that a worker is said to hold
    with held("video:1", by="worker-7", task="videos.process", task_id="id-7") as info:
        # I expect it to be refused, in that worker's name
        assert locks.acquire("video:1") is None
        with pytest.raises(LockNotAcquired, match="worker-7"), lock("video:1"):
            pass
        assert (info.owner.host, info.owner.task) == ("worker-7", "videos.process")
        assert (info.owner.task_id, info.owner.alive()) == ("id-7", None)
    # And to be free after the block
    assert locks.get("video:1") is None


@locks_in_memory()
def test_its_end_hands_the_lock_over_and_ends_no_other_lease() -> None:
    with held("video:1"):
        waits = a_waiter()
    assert waits.result().release()
    with held("video:1"):
        assert locks.clear("video:1")
        lease = taken("video:1")
    assert lease.extend()
    with pytest.raises(LockNotAcquired), held("video:1"):
        pytest.fail("it took the lock away")  # pragma: no cover
    assert lease.extend()


@pytest.mark.parametrize("wrong", [{"name": "a name"}, {"ttl": 0}, {"name": ""}], ids=repr)
def test_what_cannot_be_meant_is_an_error(wrong: dict[str, Any]) -> None:
    with locks_in_memory(), pytest.raises(ValueError), held(**{"name": "video:1", **wrong}):
        pass


def test_assertions_look_in_one_store_and_an_outage_is_of_one(two_stores: None) -> None:
    with held("video:1", store="other"):
        assert assert_locked("video:1", store="other").name == "video:1"
        assert_not_locked("video:1")
        with pytest.raises(AssertionError, match="nobody holds the lock 'video:1'"):
            assert_locked("video:1")
        with pytest.raises(AssertionError, match="is held by pid 1 on another-host"):
            assert_not_locked("video:1", store="other")
    # And an outage to be of one store
    for look in (assert_locked, assert_not_locked):
        with outage(), pytest.raises(StoreUnavailable):
            look("video:1")
    with outage("other"):
        assert taken("video:1").held
        with pytest.raises(StoreUnavailable):
            locks.using("other").is_locked("video:1")


class TestOutage:
    def test_every_verb_raises_in_the_block_and_answers_after_it(self, store: BaseStore) -> None:
        lease, token = taken("video:2"), new_token()
        verbs: list[Callable[[], object]] = [
            lambda: locks.acquire("video:1"),
            lambda: locks.get("video:2"),
            lambda: locks.clear("video:2"),
            lambda: lock(["video:3", "video:4"]).__enter__(),
            lambda: store.extend_many([Extension("video:2", lease.token, LONG)]),
            lambda: store.release("video:2", lease.token, Note("key", "ended", LONG)),
            lambda: store.rewrite("video:2", Held(lease.token), LONG, {}, token),
            lambda: store.get_note("key"),
            lambda: store.set_note(Note("key", "started", LONG)),
            lambda: store.reserve("key", "id", LONG),
        ]
        if store.supports_listing:
            verbs += [locks.list, locks.count, lambda: [*store.reservations()]]
        if store.supports_waiting:
            verbs += [lambda: store.waiters("video:2")]
        with outage():
            for verb in verbs:
                with pytest.raises(StoreUnavailable):
                    pytest.fail(f"it answered: {verb()}")
        assert locks.get("video:1") is None
        assert lease.held
        assert taken("video:1").held

    @locks_in_memory()
    def test_it_ends_with_its_own_block_or_with_the_store(self) -> None:
        with outage():
            with outage():
                pass
            with pytest.raises(StoreUnavailable):
                locks.is_locked("video:1")
        assert not locks.is_locked("video:1")
        with outage():
            with override_settings(CACHES=LOCMEM):  # Which makes a new store.
                assert isinstance(stores["default"], MemoryStore)
                assert taken("video:1").held
            assert not locks.is_locked("video:1")

    @locks_in_memory()
    def test_a_lease_is_not_renewed_in_it_and_who_waits_hears_of_it(self) -> None:
        lease = taken("video:2", ttl=0.3, renew=True)
        with held("video:1"):
            waits = a_waiter()
            with outage():
                until(lambda: not lease.held)
                with pytest.raises(StoreUnavailable):
                    waits.result()
        with pytest.raises(LeaseLost):
            lease.assert_held()


@pytest.mark.parametrize("block", [outage, lambda: held("video:1")])
def test_a_block_that_raises_ends_it(block: Callable[[], AbstractContextManager[object]]) -> None:
    with locks_in_memory():
        with pytest.raises(KeyError), block():
            raise KeyError
        assert not locks.is_locked("video:1")


class TestLocksInMemory:
    def test_every_alias_is_in_memory_and_keeps_what_can_be_kept(
        self, use_caches: UseCaches
    ) -> None:
        ours = {"TTL": 7, "KEY_PREFIX": "ours", "OPTIONS": {"TAKEOVER": False}}
        redis = {"BACKEND": "django_tasklock.stores.redis.RedisStore", "OPTIONS": {"REPLICAS": 1}}
        use_caches(LOCMEM, {"default": ours, "redis": redis})
        with locks_in_memory() as helpers:
            assert isinstance(helpers, LocksInMemory)
            assert [type(stores[alias]) for alias in ("default", "redis")] == [MemoryStore] * 2
            assert taken("video:1", ttl=None).ttl == 7
            assert helpers.assert_locked("video:1").key == "ours:video:1"
            assert not stores["default"].takeover
            helpers.assert_not_locked("video:1", store="redis")
            with helpers.held("video:2"), helpers.outage("redis"):
                helpers.assert_locked("video:2")
            helpers.clear()
            helpers.assert_not_locked("video:1")
        assert not isinstance(stores["default"], MemoryStore)

    def test_it_begins_and_ends_without_locks(self, two_stores: None) -> None:
        taken("before")
        with locks_in_memory():
            assert locks.list() == []
            taken("within")
            store = stores["default"]
        assert locks.list() == []
        assert store.count() == 0

    def test_it_decorates_an_async_test_and_nothing_that_runs_later(self) -> None:
        @locks_in_memory()
        async def test(name: str) -> type[BaseStore]:
            await asyncio.sleep(0)
            assert (await locks.aget(name)) is None
            return type(stores["default"])

        def fixture() -> Iterator[None]:
            yield

        class Tests: ...

        assert asyncio.run(test("video:1")) is MemoryStore
        for wrong in (fixture, Tests):
            with pytest.raises(TypeError, match="decorates a test function"):
                locks_in_memory()(wrong)
