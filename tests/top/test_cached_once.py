"""``cached_once()``: its values, who computes them, and who waits."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.core.cache import cache

from django_tasklock import locks
from django_tasklock.caching import cached_once
from django_tasklock.signals import lock_lost
from django_tasklock.stores.base import BaseStore
from tests.conftest import UseCaches, UseRedis
from tests.steps import LONG, RENEWED, Meanwhile, orphan, sent, taken, waiting
from tests.store_cases import redis_cache
from tests.waiting import PATIENCE, until

SHORT = 0.2
"""seconds after which a value is no longer fresh"""
NAME = "cached:default:home"


class Counted:
    """Something to compute, which counts how often that was done."""

    def __init__(self, *values: Any) -> None:
        self.times = 0
        self._values = values

    def __call__(self) -> Any:
        self.times += 1
        return self._values[min(self.times, len(self._values)) - 1]


@pytest.mark.parametrize(("value", "stale"), [({"seven": [7]}, 0), (None, LONG)])
def test_value_is_computed_once_on_every_cache(
    cache_store: BaseStore, value: Any, stale: float
) -> None:
    produce = Counted(value)
    for _ in range(3):
        assert cached_once("home", produce, LONG, stale) == value
    assert produce.times == 1
    # I expect other code to find it under its key
    assert cache.get("home", "nothing") == value
    cache.delete("home")
    assert cached_once("home", produce, LONG, stale) == value
    assert produce.times == 2
    assert not locks.is_locked(NAME)


@pytest.mark.usefixtures("on_redis")
def test_keys_and_versions_are_different_values() -> None:
    def lock_now(key: str, version: int | None = None) -> str:
        names = cached_once(
            key, lambda: [info.name for info in locks.list()], LONG, version=version
        )
        return " ".join(names)

    assert lock_now("a b") == "cached:default:a%20b"
    assert lock_now("a b", version=2) == "cached:default:a%20b:2"
    # I expect the cache's own version to be no other value
    assert lock_now("größe:日本%", version=cache.version).count(":") == 2
    assert len(lock_now("x" * 300)) == 200


@pytest.mark.usefixtures("on_redis")
def test_stale_value_is_returned_while_one_computes() -> None:
    # Given a value that is not fresh any more, and one that computes the next
    produce = Counted("old", "new")
    assert cached_once("home", produce, SHORT, LONG) == "old"
    until(lambda: cache.get("home:fresh") is None)
    go_on = threading.Event()
    computing = Meanwhile(
        lambda: cached_once("home", lambda: go_on.wait(PATIENCE) and produce(), LONG, LONG)
    )
    until(lambda: locks.is_locked(NAME))
    # I expect the others to get the old value, and not to wait
    for _ in range(3):
        assert cached_once("home", produce, LONG, LONG, wait=None) == "old"
    assert waiting(NAME) == 0
    go_on.set()
    assert computing.result() == "new"
    assert cached_once("home", produce, LONG, LONG) == "new"
    assert produce.times == 2


@pytest.mark.usefixtures("on_redis")
def test_caller_that_has_waited_in_vain_computes_unless_the_value_has_come() -> None:
    lease = taken(NAME)
    assert cached_once("home", lambda: "seven", LONG, wait=0.1) == "seven"
    assert lease.held
    cache.delete("home")
    waiter = Meanwhile(lambda: cached_once("home", Counted("computed twice"), LONG, wait=4.0))
    until(lambda: waiting(NAME) == 1)
    cache.set("home", "seven")
    assert waiter.result() == "seven"


@pytest.mark.usefixtures("on_redis")
def test_error_is_raised_and_leaves_no_lock() -> None:
    def fail() -> str:
        raise LookupError("no such page")

    with pytest.raises(LookupError):
        cached_once("home", fail, LONG)
    with pytest.raises(TypeError, match="pickle"):
        cached_once("home", lambda: (number for number in "ab"), LONG)
    assert not locks.is_locked(NAME)
    assert cached_once("home", lambda: "seven", LONG) == "seven"


def test_value_that_was_computed_without_its_lease_is_not_stored(use_redis: UseRedis) -> None:
    use_redis(tasklock={"TTL": RENEWED})

    def produce() -> str:
        # Given a lease that is lost while its holder computes, and another one that computes
        with sent(lock_lost) as lost:
            assert locks.clear(NAME)
            until(lambda: lost)
        cache.set("home", "newer")
        return "older"

    assert cached_once("home", produce, LONG) == "older"
    assert cache.get("home") == "newer"


def test_outage_of_the_locks_is_no_outage_of_the_page(
    use_caches: UseCaches, caplog: pytest.LogCaptureFixture
) -> None:
    memory = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "LOCATION": "pages"}
    use_caches(
        {"default": memory, "silent": redis_cache("redis://127.0.0.1:1/0")},
        {"default": {"CACHE": "silent"}},
    )
    cache.clear()
    produce = Counted("seven")
    assert [cached_once("home", produce, LONG) for _ in "ab"] == ["seven", "seven"]
    assert produce.times == 1
    assert f"computing {NAME} without a lock: " in caplog.text


def test_arguments_that_cannot_be_meant(on_locmem: None) -> None:
    async def coroutine() -> str:
        return "seven"

    wrong: Any
    for wrong in ({"ttl": 0}, {"stale": -1}, {"wait": -1}):
        with pytest.raises(ValueError):
            cached_once(**{"key": "home", "produce": dict, "ttl": LONG} | wrong)
    for wrong in ({"stale": True}, {"produce": 7}, {"produce": coroutine}):
        with pytest.raises(TypeError, match=next(iter(wrong))):
            cached_once(**{"key": "home", "produce": dict, "ttl": LONG} | wrong)


@pytest.mark.usefixtures("on_redis")
def test_of_many_callers_one_computes_and_the_next_when_its_process_is_killed() -> None:
    orphan(NAME)  # It computed.
    go_on, produce = threading.Event(), Counted("seven")
    callers = [
        Meanwhile(lambda: cached_once("home", lambda: go_on.wait(PATIENCE) and produce(), LONG))
        for _ in range(20)
    ]
    until(lambda: waiting(NAME) == 19)
    go_on.set()
    assert [caller.result() for caller in callers] == ["seven"] * 20
    assert produce.times == 1
    assert not locks.is_locked(NAME)
