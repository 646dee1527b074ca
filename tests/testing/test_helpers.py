"""`django_tasklock.testing`: what a project's own tests use."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.test.utils import override_settings

from django_tasklock import (
    LeaseLost,
    ListingNotSupported,
    LockInfo,
    LockNotAcquired,
    StoreUnavailable,
    lock,
    locks,
)
from django_tasklock.stores import stores
from django_tasklock.stores.base import BaseStore, Extension, Note, Owner
from django_tasklock.testing import (
    LocksInMemory,
    MemoryStore,
    assert_locked,
    assert_not_locked,
    held,
    locks_in_memory,
    outage,
)
from django_tasklock.testing.situations import LISTINGS
from tests.conftest import UseCaches
from tests.steps import LONG, Meanwhile, taken, waiting
from tests.waiting import until

MEMORY = {"BACKEND": "django_tasklock.stores.memory.MemoryStore"}
LOCMEM = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}


class TestHeld:
    def test_somebody_else_holds_the_lock_in_the_block(self, store: BaseStore) -> None:
        with held("video:1", by="worker-7", task="videos.process", task_id="id-7") as info:
            assert locks.acquire("video:1") is None
            assert (info.owner.host, info.owner.task, info.owner.task_id) == (
                "worker-7", "videos.process", "id-7",
            )  # fmt: skip
            assert info.owner.alive() is None
            with pytest.raises(LockNotAcquired, match="worker-7"), lock("video:1"):
                pass
        assert locks.get("video:1") is None

    def test_its_end_hands_the_lock_over(self) -> None:
        with locks_in_memory():
            with held("video:1"):
                waits = Meanwhile(lambda: locks.acquire("video:1", ttl=LONG, wait=LONG))
                until(lambda: waiting("video:1") == 1)
            assert waits.result() is not None

    def test_it_may_be_cleared_and_does_not_end_the_next_lease(self) -> None:
        with locks_in_memory():
            with held("video:1"):
                assert locks.clear("video:1")
                lease = taken("video:1")
            assert lease.extend()

    def test_it_takes_no_lock_away(self) -> None:
        with locks_in_memory():
            lease = taken("video:1")
            with pytest.raises(LockNotAcquired), held("video:1"):
                pytest.fail("the block ran")  # pragma: no cover
            assert lease.extend()

    def test_it_ends_when_the_block_raises(self) -> None:
        with locks_in_memory():
            with pytest.raises(KeyError), held("video:1"):
                raise KeyError
            assert_not_locked("video:1")

    @pytest.mark.parametrize("wrong", [{"name": "a name"}, {"ttl": 0}, {"name": ""}], ids=repr)
    def test_what_cannot_be_meant_is_an_error(self, wrong: dict[str, Any]) -> None:
        with locks_in_memory(), pytest.raises(ValueError), held(**{"name": "video:1", **wrong}):
            pass


class TestAssertions:
    def test_they_look_in_one_store(self, use_caches: UseCaches) -> None:
        use_caches(LOCMEM, {"default": MEMORY, "other": MEMORY})
        with held("video:1", store="other"):
            assert assert_locked("video:1", store="other").name == "video:1"
            assert_not_locked("video:1")
            with pytest.raises(AssertionError, match="nobody holds the lock 'video:1'"):
                assert_locked("video:1")
            with pytest.raises(AssertionError, match="is held by pid 1 on another-host"):
                assert_not_locked("video:1", store="other")

    def test_an_outage_is_neither(self) -> None:
        with locks_in_memory(), outage():
            for look in (assert_locked, assert_not_locked):
                with pytest.raises(StoreUnavailable):
                    look("video:1")


def verbs_of(store: BaseStore) -> dict[str, Callable[[], object]]:
    name, token = "video:1", "t" * 22
    return {
        "acquire": lambda: store.acquire(name, token, LONG, {}),
        "acquire_with_note": lambda: store.acquire_with_note(
            name, token, LONG, {}, Note("a", "b", LONG)
        ),
        "acquire_above": lambda: store.acquire_above(name, token, LONG, {}, 1),
        "begin_acquire_above": lambda: store.begin_acquire_above(name, token, LONG, {}, 1),
        "begin_release": lambda: store.begin_release(name, token, None),
        "acquire_all": lambda: store.acquire_all({name: token}, LONG, {}),
        "acquire_any": lambda: store.acquire_any([name], None, token, LONG, {}),
        "rewrite": lambda: store.rewrite(name, token, LONG, {}),
        "abandon_to": lambda: store.abandon_to(name, token, LONG, {}),
        "raise_fence": lambda: store.raise_fence(name, token, 1),
        "memory": store.memory,
        "extend": lambda: store.extend(name, token, LONG),
        "extend_many": lambda: store.extend_many([Extension(name, token, LONG)]),
        "release": lambda: store.release(name, token),
        "release_with_note": lambda: store.release_with_note(
            name, token, None, Note("a", "b", LONG)
        ),
        "abandon": lambda: store.abandon(name, token),
        "clear": lambda: store.clear(name),
        "clear_foreign": lambda: store.clear_foreign(name, "digest"),
        "clear_many": lambda: store.clear_many(
            [LockInfo(name, LONG, None, token, Owner(), store.alias, "")]
        ),
        "get": lambda: store.get(name),
        "get_many": lambda: store.get_many([name]),
        "held": lambda: store.held([name]),
        "get_note": lambda: store.get_note(name),
        "set_note": lambda: store.set_note(Note("a", "b", LONG)),
        "reserve": lambda: store.reserve("a", "b", LONG),
        "unreserve": lambda: store.unreserve("a", "b"),
        "waiter": lambda: store.waiter(name, token, LONG, {}),
        "waiters": lambda: store.waiters(name),
        "next_fence": store.next_fence,
        "check": lambda: list(store.check()),
        "list": store.list,
        "count": store.count,
        "scan": lambda: list(store.scan()),
        "walk": lambda: list(store.walk()),
        "endless": lambda: list(store.endless()),
        "reservations": store.reservations,
        "record": lambda: store.record([]),
        "events": store.events,
    }


def implements(store: BaseStore, verb: str) -> bool:
    return getattr(type(store), verb) is not getattr(BaseStore, verb)


class TestOutage:
    def test_these_are_all_verbs(self) -> None:
        public = {name for name in dir(BaseStore) if callable(getattr(BaseStore, name))}
        public = {name for name in public if not name.startswith("_")}
        public -= {"shard", "close_idle", "keyed", "keyed_note"}  # They ask no server.
        with locks_in_memory():
            assert verbs_of(stores["default"]).keys() == public

    def test_every_verb_raises_in_the_block_and_answers_after_it(self, store: BaseStore) -> None:
        lease = taken("video:2")
        with outage():
            for verb, call in verbs_of(store).items():
                with pytest.raises((StoreUnavailable, ListingNotSupported)) as raised:
                    pytest.fail(f"{verb} answered: {call()}")
                cannot = verb in LISTINGS and not implements(store, verb)
                assert raised.type is (ListingNotSupported if cannot else StoreUnavailable), verb
            with pytest.raises(StoreUnavailable):
                locks.acquire("video:1")
        assert locks.get("video:1") is None
        assert lease.held
        assert taken("video:1").held

    def test_it_is_of_one_store(self, use_caches: UseCaches) -> None:
        use_caches(LOCMEM, {"default": MEMORY, "other": MEMORY})
        with outage("other"):
            assert taken("video:1").held
            with pytest.raises(StoreUnavailable):
                locks.using("other").is_locked("video:1")

    def test_one_in_another_one_does_not_end_it(self) -> None:
        with locks_in_memory():
            with outage():
                with outage():
                    pass
                with pytest.raises(StoreUnavailable):
                    locks.is_locked("video:1")
            assert not locks.is_locked("video:1")

    def test_one_that_ends_after_another_one_ends_both(self) -> None:
        """As those of two threads may."""
        with locks_in_memory():
            first, second = outage(), outage()
            first.__enter__()
            second.__enter__()
            first.__exit__(None, None, None)
            with pytest.raises(StoreUnavailable):
                locks.is_locked("video:1")
            second.__exit__(None, None, None)
            assert not locks.is_locked("video:1")

    def test_a_change_of_the_settings_in_it_makes_a_store_that_answers(self) -> None:
        with locks_in_memory(), outage():
            with override_settings(TASKLOCK={"default": MEMORY}):
                assert taken("video:1").held
            assert not locks.is_locked("video:1")

    def test_a_lease_is_not_renewed_in_it(self) -> None:
        with locks_in_memory():
            lease = taken("video:1", ttl=0.3, renew=True)
            with outage():
                until(lambda: not lease.held)
            with pytest.raises(LeaseLost):
                lease.assert_held()

    def test_who_waits_hears_of_it(self) -> None:
        with locks_in_memory(), held("video:1"):
            waits = Meanwhile(lambda: locks.acquire("video:1", wait=LONG))
            until(lambda: waiting("video:1") == 1)
            with outage(), pytest.raises(StoreUnavailable):
                waits.result()

    def test_it_ends_when_the_block_raises(self) -> None:
        with locks_in_memory():
            with pytest.raises(KeyError), outage():
                raise KeyError
            assert not locks.is_locked("video:1")


class TestLocksInMemory:
    def test_every_alias_is_in_memory_and_keeps_what_can_be_kept(
        self, use_caches: UseCaches
    ) -> None:
        use_caches(
            LOCMEM,
            {
                "default": {"TTL": 7, "KEY_PREFIX": "ours", "OPTIONS": {"TAKEOVER": False}},
                "redis": {
                    "BACKEND": "django_tasklock.stores.redis.RedisStore",
                    "OPTIONS": {"REPLICAS": 1},
                },
            },
        )
        with locks_in_memory() as helpers:
            assert isinstance(helpers, LocksInMemory)
            assert {alias: type(stores[alias]) for alias in stores} == {
                "default": MemoryStore, "redis": MemoryStore,
            }  # fmt: skip
            lease = taken("video:1", ttl=None)
            assert lease.ttl == 7
            assert helpers.assert_locked("video:1").key == "ours:video:1"
            assert not stores["default"].takeover
            helpers.assert_not_locked("video:1", store="redis")
            with helpers.held("video:2"), helpers.outage("redis"):
                helpers.assert_locked("video:2")
            helpers.clear()
            helpers.assert_not_locked("video:1")
        assert not isinstance(stores["default"], MemoryStore)

    def test_it_begins_and_ends_without_locks(self, use_caches: UseCaches) -> None:
        use_caches(LOCMEM, {"default": MEMORY})
        taken("before")
        with locks_in_memory():
            assert locks.list() == []
            taken("within")
            store = stores["default"]
        assert locks.list() == []
        assert store.count() == 0

    def test_settings_that_change_meanwhile_are_kept_in_memory(self) -> None:
        with locks_in_memory(), override_settings(CACHES=LOCMEM):
            assert isinstance(stores["default"], MemoryStore)

    @locks_in_memory()
    def test_it_decorates_a_test(self) -> None:
        assert isinstance(stores["default"], MemoryStore)

    def test_it_decorates_an_async_test(self) -> None:
        @locks_in_memory()
        async def test(name: str) -> type[BaseStore]:
            await asyncio.sleep(0)
            assert (await locks.aget(name)) is None
            return type(stores["default"])

        assert asyncio.run(test("video:1")) is MemoryStore

    def test_it_decorates_nothing_that_runs_later(self) -> None:
        def fixture() -> Iterator[None]:
            yield

        class Tests:
            pass

        for wrong in (fixture, Tests):
            with pytest.raises(TypeError, match="decorates a test function"):
                locks_in_memory()(wrong)

    def test_threads_see_it(self) -> None:
        with locks_in_memory(), held("video:1"):
            seen: list[bool] = []
            thread = threading.Thread(target=lambda: seen.append(locks.is_locked("video:1")))
            thread.start()
            thread.join()
            assert seen == [True]
