"""``cached_once()``: its values, who computes them, and who waits."""

from __future__ import annotations

import threading
from typing import Any
from unittest.mock import Mock

import pytest
from django.core.cache import cache

from django_tasklock import locks
from django_tasklock.caching import cached_once
from django_tasklock.signals import lock_lost
from django_tasklock.stores.base import BaseStore
from tests.conftest import UseCaches, UseRedis
from tests.steps import LONG, RENEWED, Meanwhile, orphan, sent, taken, waiting
from tests.store_cases import own_prefix, redis_cache
from tests.waiting import PATIENCE, until

NAME = "cached:default:home"

pytestmark = pytest.mark.usefixtures("on_redis")


@pytest.mark.parametrize(("value", "stale"), [({"seven": [7]}, 0), (None, LONG)])
def test_a_value_is_computed_once_on_every_cache(
    cache_store: BaseStore, value: Any, stale: float
) -> None:
    # Given a value that takes long to compute, also one that is None
    produce = Mock(return_value=value)

    # I expect it to be computed once, and again when it has gone
    for times in (1, 2):
        for _ in range(3):
            assert cached_once("home", produce, LONG, stale) == value
        assert produce.call_count == times
        # I expect other code to find it under its key
        assert cache.get("home", "nothing") == value
        cache.delete("home")
    assert not locks.is_locked(NAME)


def test_keys_and_versions_are_different_values() -> None:
    def lock_now(key: str, version: int | None = None) -> str:
        (info,) = cached_once(key, locks.list, LONG, version=version)
        return info.name

    assert lock_now("a b") == "cached:default:a%20b"
    assert lock_now("a b", version=2) == "cached:default:a%20b:2"
    # I expect the cache's own version to be no other value
    assert lock_now("größe:日本%", version=cache.version).count(":") == 2
    assert len(lock_now("x" * 300)) == 200


def test_the_stale_value_is_returned_while_one_computes() -> None:
    # Given a value that is not fresh any more, and one that computes the next
    go_on = threading.Event()
    assert cached_once("home", lambda: "old", 0.2, LONG) == "old"
    until(lambda: cache.get("home:fresh") is None)
    computing = Meanwhile(
        lambda: cached_once("home", lambda: go_on.wait(PATIENCE) and "new", LONG, LONG)
    )
    until(lambda: locks.is_locked(NAME))
    # I expect the others to get the old value, and not to wait
    assert cached_once("home", lambda: "again", LONG, LONG, wait=None) == "old"
    go_on.set()
    assert computing.result() == "new"
    assert cached_once("home", lambda: "again", LONG, LONG) == "new"


def test_of_many_callers_one_computes_and_the_next_when_its_process_is_killed() -> None:
    orphan(NAME)  # It computed.
    go_on, produce = threading.Event(), Mock(return_value="seven")
    callers = [
        Meanwhile(lambda: cached_once("home", lambda: go_on.wait(PATIENCE) and produce(), LONG))
        for _ in range(20)
    ]
    until(lambda: waiting(NAME) == 19)
    go_on.set()
    assert [caller.result() for caller in callers] == ["seven"] * 20
    assert produce.call_count == 1


def test_one_that_has_waited_in_vain_computes_unless_the_value_has_come() -> None:
    lease = taken(NAME)
    assert cached_once("home", lambda: "seven", LONG, wait=0.1) == "seven"
    assert lease.held
    cache.delete("home")
    waiter = Meanwhile(lambda: cached_once("home", lambda: "again", LONG, wait=2.0))
    until(lambda: waiting(NAME) == 1)
    cache.set("home", "seven")
    assert waiter.result() == "seven"


def test_a_value_that_was_computed_without_its_lease_is_not_stored(use_redis: UseRedis) -> None:
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


def test_an_outage_of_the_locks_is_no_outage_of_the_page(
    use_caches: UseCaches, caplog: pytest.LogCaptureFixture
) -> None:
    memory = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "LOCATION": own_prefix()}
    silent = redis_cache("redis://127.0.0.1:1/0")
    use_caches({"default": memory, "silent": silent}, {"default": {"CACHE": "silent"}})
    assert [cached_once("home", lambda: "seven", LONG) for _ in "ab"] == ["seven", "seven"]
    assert caplog.text.count(f"computing {NAME} without a lock: ") == 1


def test_an_error_is_raised_and_leaves_no_lock() -> None:
    async def coroutine() -> str:
        return "seven"

    wrong: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (ZeroDivisionError, "zero", {"produce": lambda: 1 // 0}),
        (TypeError, "pickle", {"produce": lambda: (number for number in "ab")}),
        (TypeError, "produce", {"produce": 7}),
        (TypeError, "produce", {"produce": coroutine}),
        (TypeError, "stale", {"stale": True}),
        (ValueError, "stale", {"stale": -1}),
        (ValueError, "ttl", {"ttl": 0}),
        (ValueError, "wait", {"wait": -1}),
    ]
    for error, says, argument in wrong:
        call: dict[str, Any] = {"key": "home", "produce": dict, "ttl": LONG} | argument
        with pytest.raises(error, match=says):
            cached_once(**call)
    assert not locks.is_locked(NAME)
