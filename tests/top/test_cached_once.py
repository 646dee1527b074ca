"""``cached_once()``: its values, who computes them, and who waits."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis as redis_client
from django.core.cache import cache
from django_redis.exceptions import ConnectionInterrupted

from django_tasklock import locks
from django_tasklock.caching import cached_once
from django_tasklock.signals import lock_lost
from django_tasklock.stores.base import BaseStore
from tests.conftest import UseCaches, UseRedis
from tests.servers import RedisServer
from tests.steps import LONG, RENEWED, Meanwhile, all_of, holder, sent, taken, waiting
from tests.store_cases import redis_cache
from tests.waiting import PATIENCE, until

SHORT = 0.2
"""seconds after which a value is no longer fresh"""


class Counted:
    """Something to compute, which counts how often that was done."""

    def __init__(self, *values: Any) -> None:
        self.times = 0
        self._values = values

    def __call__(self) -> Any:
        self.times += 1
        return self._values[min(self.times, len(self._values)) - 1]


@pytest.fixture
def on_redis(use_redis: UseRedis) -> None:
    use_redis()


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
    assert not locks.is_locked("cached:default:home")


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
    assert lock_now("c", version=cache.version) == "cached:default:c"
    assert len(lock_now("x" * 300)) == 200


@pytest.mark.usefixtures("on_redis")
def test_stale_value_is_returned_while_one_computes() -> None:
    # Given a value that is not fresh any more
    produce = Counted("old", "new")
    assert cached_once("home", produce, SHORT, LONG) == "old"
    until(lambda: cache.get("home:fresh") is None)
    # and one that computes the next
    go_on = threading.Event()
    computing = Meanwhile(
        lambda: cached_once("home", lambda: go_on.wait(PATIENCE) and produce(), LONG, LONG)
    )
    until(lambda: locks.is_locked("cached:default:home"))
    # I expect the others to get the old value, and not to wait
    for _ in range(3):
        assert cached_once("home", produce, LONG, LONG, wait=None) == "old"
    assert waiting("cached:default:home") == 0
    go_on.set()
    assert computing.result() == "new"
    assert cached_once("home", produce, LONG, LONG) == "new"
    assert produce.times == 2


@pytest.mark.usefixtures("on_redis")
def test_value_that_other_code_has_set_is_stale() -> None:
    cache.set("home", "theirs")
    assert cached_once("home", lambda: "ours", LONG, LONG) == "ours"


@pytest.mark.usefixtures("on_redis")
def test_caller_that_has_waited_in_vain_computes() -> None:
    lease = taken("cached:default:home")
    produce = Counted("seven")
    assert cached_once("home", produce, LONG, wait=0) == "seven"
    assert lease.held
    cache.delete("home")
    assert cached_once("home", produce, LONG, wait=0.1) == "seven"
    assert produce.times == 2


@pytest.mark.usefixtures("on_redis")
def test_caller_that_was_too_late_for_the_lock_finds_the_value() -> None:
    taken("cached:default:home")
    waiter = Meanwhile(lambda: cached_once("home", Counted("computed twice"), LONG, wait=4.0))
    until(lambda: waiting("cached:default:home") == 1)
    cache.set("home", "seven")
    assert waiter.result() == "seven"


@pytest.mark.usefixtures("on_redis")
def test_error_is_raised_and_the_next_one_computes() -> None:
    def fail() -> str:
        raise LookupError("no such page")

    with pytest.raises(LookupError):
        cached_once("home", fail, LONG)
    assert not locks.is_locked("cached:default:home")
    assert cached_once("home", lambda: "seven", LONG) == "seven"


def test_value_that_was_computed_without_its_lease_is_not_stored(use_redis: UseRedis) -> None:
    use_redis(tasklock={"TTL": RENEWED})

    def produce() -> str:
        # Given a lease that is lost while its holder computes, and another one that computes
        with sent(lock_lost) as lost:
            assert locks.clear("cached:default:home")
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
    assert cached_once("home", produce, LONG) == "seven"
    assert cached_once("home", produce, LONG) == "seven"
    assert produce.times == 1
    assert "computing cached:default:home without a lock: " in caplog.text


@pytest.mark.parametrize("arguments", [{"ttl": 0}, {"ttl": -1}, {"stale": -1}, {"wait": -1}])
def test_arguments_that_cannot_be_meant(on_locmem: None, arguments: dict[str, Any]) -> None:
    everything: dict[str, Any] = {"key": "home", "produce": dict, "ttl": LONG} | arguments
    with pytest.raises(ValueError):
        cached_once(**everything)


@pytest.mark.parametrize("arguments", [{"stale": None}, {"stale": True}, {"produce": 7}])
def test_arguments_of_a_wrong_type(on_locmem: None, arguments: dict[str, Any]) -> None:
    everything: dict[str, Any] = {"key": "home", "produce": dict, "ttl": LONG} | arguments
    with pytest.raises(TypeError, match=next(iter(arguments))):
        cached_once(**everything)


def test_coroutine_function_is_refused_before_it_is_called(on_locmem: None) -> None:
    async def coroutine() -> str:
        return "seven"

    produce: Any = coroutine
    with pytest.raises(TypeError, match="not async"):
        cached_once("home", produce, LONG)


@pytest.mark.usefixtures("on_redis")
def test_value_that_cannot_be_stored_is_an_error_and_leaves_no_lock() -> None:
    with pytest.raises(TypeError, match="pickle"):
        cached_once("home", lambda: (number for number in "ab"), LONG)
    assert not locks.is_locked("cached:default:home")
    assert cached_once("home", lambda: "seven", LONG) == "seven"


@pytest.mark.usefixtures("on_redis")
@pytest.mark.parametrize("key", ["größe 日本", 7, "a:b:c", "%"])
def test_key_may_be_any_key_of_the_cache(key: Any) -> None:
    assert cached_once(key, lambda: "seven", LONG, LONG) == "seven"
    assert cache.get(key) == "seven"


def test_outage_of_the_cache_is_the_caches_own_error(
    use_caches: UseCaches, redis_server: RedisServer, own_redis_server: RedisServer
) -> None:
    # Given values in one Redis, and locks in another
    use_caches(
        {"default": redis_cache(own_redis_server.url), "locks": redis_cache(redis_server.url)},
        {"default": {"CACHE": "locks"}},
    )

    def produce() -> str:
        own_redis_server.stop()
        return "seven"

    # I expect the error of the cache that fails after the work, and no lock to be left
    failed = (ConnectionInterrupted, redis_client.ConnectionError)
    with pytest.raises(failed):
        cached_once("home", produce, LONG)
    assert not locks.is_locked("cached:default:home")
    # and the work not to be done where the cache fails before it
    never = Counted("seven")
    with pytest.raises(failed):
        cached_once("home", never, LONG)
    assert never.times == 0


def test_cache_that_ignores_its_outages_has_every_caller_compute(use_redis: UseRedis) -> None:
    use_redis("redis://127.0.0.1:1/0", IGNORE_EXCEPTIONS=True)
    produce = Counted("seven")
    assert [cached_once("home", produce, LONG, stale) for stale in (0, LONG)] == ["seven"] * 2
    assert produce.times == 2


# ------------------------------------------------------------------------------ processes

MISSES = """
import sys, threading, time
import django
django.setup()
from concurrent.futures import ThreadPoolExecutor
from django.core.cache import cache
from django_tasklock.caching import cached_once

def produce():
    cache.incr("times")
    time.sleep(float(sys.argv[2]))
    return "computed"

threads = int(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
together = threading.Barrier(threads)

def miss(_):
    together.wait()
    return cached_once("home", produce, 600, wait=60)

with ThreadPoolExecutor(threads) as pool:
    print(" ".join(pool.map(miss, range(threads))), flush=True)
"""


class Misses:
    """A process that calls `cached_once` in many threads at the same moment."""

    def __init__(self, environment: dict[str, str], threads: int, seconds: float) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", MISSES, str(threads), str(seconds)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait_until_ready(self) -> None:
        assert self.process.stdout
        assert self.process.stdout.readline() == "ready\n"

    def go(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def values(self) -> list[str]:
        return self.process.communicate(timeout=3 * PATIENCE)[0].split()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("on_redis")
def test_two_hundred_misses_in_four_processes_compute_once(
    process_env: Callable[[], dict[str, str]],
) -> None:
    cache.set("times", 0)
    processes = [Misses(process_env(), 50, 0.5) for _ in range(4)]
    try:
        for process in processes:
            process.wait_until_ready()
        for process in processes:
            process.go()
        values = [value for process in processes for value in process.values()]
    finally:
        for process in processes:
            process.end()
    assert values == ["computed"] * 200
    assert cache.get("times") == 1
    assert locks.list() == []


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("on_redis")
def test_next_one_computes_when_the_process_that_computes_is_killed(
    process_env: Callable[[], dict[str, str]],
) -> None:
    cache.set("times", 0)
    # Given a process that computes, and two that wait, longer than a lease lasts
    computing = Misses(process_env(), 1, 3600)
    try:
        computing.wait_until_ready()
        computing.go()
        until(lambda: cache.get("times") == 1, "a process that computes")
        produce = Counted("seven")
        waiters = [Meanwhile(lambda: cached_once("home", produce, LONG, wait=None)) for _ in "ab"]
        until(lambda: waiting("cached:default:home") == 2, "waiters")
        assert holder("cached:default:home").owner.pid == computing.process.pid
    finally:
        computing.end()
    # I expect one of them to compute
    assert all_of(*(waiter.result for waiter in waiters)) == ["seven", "seven"]
    assert produce.times == 1
