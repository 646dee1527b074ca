"""``hold_at_least``, ``cooldown`` and ``cooldown_after_error``: a lock that stays taken."""

from __future__ import annotations

import contextlib
import gc
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from django_tasklock import InvalidLockConfig, Lease, LockNotAcquired, StoreUnavailable, lock, locks
from django_tasklock._engine.context import LockContext
from django_tasklock._values import clock
from django_tasklock.signals import lock_acquired, lock_cleared, lock_lost, lock_released
from django_tasklock.stores import stores
from django_tasklock.stores.base import BaseStore, Extension
from django_tasklock.stores.memory import MemoryStore
from tests.agent import Agent
from tests.conftest import UseCaches, UseRedis
from tests.interruptions import at_every_instruction
from tests.proxy import CutProxy
from tests.servers import RedisServer
from tests.steps import LONG, Meanwhile, holder, in_child, sent, taken
from tests.store_cases import redis_cache
from tests.waiting import until

NAME = "pay:7"
LATER = 300.0
"""seconds after which no test looks"""


@pytest.fixture
def cooling_store(store: BaseStore) -> BaseStore:
    if not store.supports_rewrite:
        pytest.skip("this store has no rewrite() yet")
    return store


@pytest.fixture
def on_redis(use_redis: UseRedis) -> None:
    use_redis()


def cooling(name: str = NAME, store: str = "default") -> bool:
    info = locks.using(store).get(name)
    return info is not None and info.cooling


def left(name: str = NAME) -> float:
    info = holder(name)
    assert info.cooling
    assert info.ttl is not None
    return info.ttl


def silence(proxy: CutProxy, how: str = "cut") -> None:
    """From now on nothing reaches the server behind it."""
    if how == "paused":
        proxy.pause()
    else:
        proxy.refuse()
        proxy.cut()


def end_silence(proxy: CutProxy) -> None:
    proxy.accept()
    proxy.resume()


# ------------------------------------------------------------------------------ on every store


def test_the_name_stays_taken_after_a_fast_block(each_store: BaseStore) -> None:
    if not each_store.supports_rewrite:
        pytest.skip("this store has no rewrite() yet")
    with lock(NAME, hold_at_least=LATER) as lease:
        assert not cooling()
    assert not lease.held
    info = holder(NAME)
    assert info.cooling
    assert (info.token, info.owner.pid) == (lease.token, lease.owner.pid)
    assert info.ttl is not None
    # Members of a quorum keep a lease for 1 % longer.
    assert LATER - LONG < info.ttl <= LATER * 1.02 + 1
    assert info.owner.alive() is None
    with pytest.raises(LockNotAcquired, match=r"cooling down for \d+"), lock(NAME):
        raise AssertionError
    assert locks.acquire(NAME) is None
    assert locks.clear(NAME, by="alice")
    assert not locks.is_locked(NAME)


def test_whoever_waits_gets_the_lock_when_it_is_cool(cooling_store: BaseStore) -> None:
    lease = locks.acquire(NAME, ttl=LONG, hold_at_least=2.0)
    assert lease is not None
    waiter = Meanwhile(lambda: locks.acquire(NAME, ttl=LONG, wait=LONG))
    assert lease.release()
    until(cooling, "what a store shows, which may be a moment behind")
    got = waiter.result()
    assert got is not None
    assert got.release()


def test_whoever_waits_in_vain_hears_that_it_cools(cooling_store: BaseStore) -> None:
    lease = locks.acquire(NAME, ttl=LONG, hold_at_least=LATER)
    assert lease is not None

    def wait() -> None:
        with pytest.raises(LockNotAcquired, match=r"cooling down for \d+"), lock(NAME, wait=3.0):
            raise AssertionError

    waiter = Meanwhile(wait)
    until(lambda: locks.waiters(NAME) or not cooling_store.supports_waiting)
    assert lease.release()
    waiter.result()


def test_a_failed_block_has_a_cooldown_of_its_own(cooling_store: BaseStore) -> None:
    for failing, seconds in ((False, LATER), (True, 2 * LATER)):
        with (
            pytest.raises(ZeroDivisionError) if failing else contextlib.nullcontext(),
            lock(NAME, cooldown=LATER, cooldown_after_error=2 * LATER),
        ):
            if failing:
                raise ZeroDivisionError
        assert seconds - LONG < left() <= seconds * 1.02 + 1
        assert locks.clear(NAME)


# ------------------------------------------------------------------------------ how long


def test_the_longest_time_counts(on_redis: None) -> None:
    with lock(NAME, hold_at_least=LATER, cooldown=1):
        pass
    assert left() > 1 + LONG
    locks.clear(NAME)
    with lock(NAME, hold_at_least=1, cooldown=LATER):
        pass
    assert left() > 1 + LONG


def test_a_block_that_takes_longer_than_it_is_to_be_held_is_released(on_redis: None) -> None:
    lease = locks.acquire(NAME, hold_at_least=0.01)
    assert lease is not None
    until(lambda: lease._cooling.left() == 0, "the end of the time")
    assert lease.release()
    assert not locks.is_locked(NAME)


def test_only_the_outcome_with_a_cooldown_cools(on_redis: None) -> None:
    with lock(NAME, cooldown_after_error=LATER):
        pass
    assert not locks.is_locked(NAME)
    with pytest.raises(ZeroDivisionError), lock(NAME, cooldown=LATER):
        raise ZeroDivisionError
    assert not locks.is_locked(NAME)


def test_release_by_hand_is_no_outcome(on_redis: None) -> None:
    with lock(NAME, cooldown=LATER) as lease:
        assert lease.release()
    assert not locks.is_locked(NAME)
    with lock(NAME, hold_at_least=LATER, cooldown=2 * LATER) as lease:
        assert lease.release()
        assert not lease.release()
    assert left() <= LATER


def test_without_the_options_a_release_is_one_call_as_before(
    on_redis: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rewrite(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("rewritten")

    monkeypatch.setattr(type(stores["default"]), "rewrite", rewrite)
    with lock(NAME, hold_at_least=0, cooldown=0, cooldown_after_error=0):
        pass
    assert not locks.is_locked(NAME)


# ------------------------------------------------------------------------------ kinds of lock()


def test_a_decorator(on_redis: None) -> None:
    @lock("report:{day}", cooldown=LATER, cooldown_after_error=LATER, on_conflict="skip")
    def report(day: int) -> str:
        return f"{1 // day}"

    assert report(1) == "1"
    assert report(1) is None
    assert cooling("report:1")
    with pytest.raises(ZeroDivisionError):
        report(0)
    assert report(0) is None


def test_several_names(on_redis: None) -> None:
    with lock(["seat:1", "seat:2"], hold_at_least=LATER):
        pass
    assert cooling("seat:1")
    assert cooling("seat:2")


def test_several_names_after_an_error(on_redis: None) -> None:
    with pytest.raises(ZeroDivisionError), lock(["seat:1", "seat:2"], cooldown_after_error=LATER):
        raise ZeroDivisionError
    assert cooling("seat:1")
    assert cooling("seat:2")
    with lock(["seat:3", "seat:4"], cooldown_after_error=LATER):
        pass
    assert locks.count("seat:") == 2


def test_what_was_taken_before_a_refusal_does_not_cool(on_redis: None) -> None:
    """Its block never ran."""
    other = taken("seat:2")
    with pytest.raises(LockNotAcquired), lock(["seat:1", "seat:2"], hold_at_least=LATER):
        raise AssertionError
    assert not locks.is_locked("seat:1")
    assert other.release()


@pytest.mark.parametrize("names", ["stock:1", ["stock:1", "stock:2"]])
def test_of_blocks_that_share_a_lease_the_outermost_decides(on_redis: None, names: Any) -> None:
    with lock(names, reentrant=True, cooldown=LATER):
        with lock(names, reentrant=True, cooldown=3 * LATER, hold_at_least=3 * LATER):
            pass
        with pytest.raises(ZeroDivisionError), lock(names, reentrant=True):
            raise ZeroDivisionError
        assert not cooling("stock:1")
    assert LATER - LONG < left("stock:1") <= LATER
    locks.clear("stock:1")
    locks.clear("stock:2")
    with lock(names, reentrant=True), lock(names, reentrant=True, cooldown=LATER):
        pass
    assert not locks.is_locked("stock:1")


def test_enter_and_exit_by_hand(on_redis: None) -> None:
    shared = lock(NAME, cooldown=LATER)
    shared.__enter__()
    shared.__exit__(None, None, None)
    assert cooling()


# ------------------------------------------------------------------------------ what others see


def test_signals_of_a_release(on_redis: None) -> None:
    with sent(lock_released) as released, sent(lock_lost) as lost:
        lease = locks.acquire(NAME, hold_at_least=LATER)
        assert lease is not None
        assert lease.release()
        assert not lease.release()
    assert [each["lease"] for each in released] == [lease]
    assert lost == []
    with sent(lock_cleared) as cleared:
        assert locks.clear(NAME, by="alice")
    assert (cleared[0]["by"], cleared[0]["holder"].cooling) == ("alice", True)


def test_a_cleared_lock_is_free_at_once_for_who_waits(on_redis: None) -> None:
    lease = locks.acquire(NAME, hold_at_least=LATER)
    assert lease is not None
    lease.release()
    got: list[Lease | None] = []
    waiter = threading.Thread(target=lambda: got.append(locks.acquire(NAME, wait=LONG)))
    waiter.start()
    until(lambda: locks.waiters(NAME), "the waiter")
    locks.clear(NAME)
    waiter.join(LONG)
    assert got[0] is not None
    got[0].release()


def test_nobody_takes_over_from_a_process_that_has_released_and_ended(on_redis: None) -> None:
    def child() -> None:
        lease = locks.acquire(NAME, ttl=LONG, hold_at_least=LATER)
        assert lease is not None
        assert lease.release()

    in_child(child)
    assert cooling()
    assert locks.acquire(NAME) is None
    assert left() > LONG


def test_a_waiter_that_was_there_before_the_release_does_not_take_over(on_redis: None) -> None:
    """It was told of the holder as it was, whose process is gone soon after."""
    with Agent() as agent:
        agent.ask("acquire", name=NAME, ttl=LONG, hold_at_least=LATER)
        got: list[Lease | None] = []
        waiter = threading.Thread(target=lambda: got.append(locks.acquire(NAME, wait=3)))
        waiter.start()
        until(lambda: locks.waiters(NAME), "the waiter")
        assert agent.ask("release")
    waiter.join(LONG)
    assert got == [None]
    assert cooling()


# ------------------------------------------------------------------------------ trouble


def test_a_lost_lease_does_not_cool(on_redis: None) -> None:
    lease = locks.acquire(NAME, hold_at_least=LATER)
    assert lease is not None
    locks.clear(NAME)
    other = taken(NAME)
    assert not lease.release()
    assert holder(NAME).token == other.token
    assert not cooling()
    assert other.release()


def test_a_dropped_use_holds_for_the_rest(on_redis: None) -> None:
    """A generator that nobody goes on with: the garbage collector closes its block."""

    def block() -> Iterator[None]:
        with lock(NAME, ttl=LONG, hold_at_least=LATER):
            yield

    generator = block()
    next(generator)
    del generator
    gc.collect()
    until(cooling, "the cooling")
    assert left() <= LATER


@pytest.mark.parametrize("how", ["cut", "paused"])
def test_an_outage_at_the_release_ends_in_cooling(
    use_caches: UseCaches, redis_server: RedisServer, cut_proxy: CutProxy, how: str
) -> None:
    """A second click after the outage must not charge again."""
    use_caches({"default": redis_cache(cut_proxy.url, SOCKET_TIMEOUT=0.5)})
    with pytest.raises(StoreUnavailable), lock(NAME, ttl=LONG, cooldown=LATER) as lease:
        silence(cut_proxy, how)
    assert not lease.held
    end_silence(cut_proxy)
    until(cooling, "the cooling")
    assert left() <= LATER
    assert lease.release()
    assert not lease.release()
    assert cooling()


def test_a_lost_reply_of_the_release(
    use_caches: UseCaches, redis_server: RedisServer, cut_proxy: CutProxy
) -> None:
    use_caches({"default": redis_cache(cut_proxy.url)})
    with lock(NAME, ttl=LONG, cooldown=LATER):
        cut_proxy.drop_reply(b"EVALSHA")
    assert cut_proxy.lost_replies == 1
    assert left() <= LATER


def test_an_outage_at_the_release_of_several(
    use_caches: UseCaches, redis_server: RedisServer, cut_proxy: CutProxy
) -> None:
    use_caches({"default": redis_cache(cut_proxy.url)})
    names = ["seat:1", "seat:2", "seat:3"]
    with pytest.raises(StoreUnavailable), lock(names, ttl=LONG, cooldown=LATER):
        silence(cut_proxy)
    cut_proxy.accept()
    for name in names:
        until(lambda name=name: cooling(name), f"the cooling of {name}")  # type: ignore[misc]


class SlowToExtend(MemoryStore):
    """Extensions arrive when the test says so."""

    sent = threading.Event()
    arrives = threading.Event()

    def extend_many(self, batch: Sequence[Extension]) -> Sequence[bool | None]:
        self.sent.set()
        self.arrives.wait(LONG)
        return super().extend_many(batch)


def test_a_renewal_under_way_does_not_change_when_it_is_cool(use_caches: UseCaches) -> None:
    use_caches(
        {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}},
        {"default": {"BACKEND": f"{__name__}.SlowToExtend"}},
    )
    lease = taken(NAME, ttl=6.0, renew=True, hold_at_least=LATER)
    until(SlowToExtend.sent.is_set, "the renewal")
    released = Meanwhile(lease.release)
    until(lambda: not lease.held, "the release")
    SlowToExtend.arrives.set()
    assert released.result()
    until(lambda: not lease._extensions(), "the end of the renewal")
    assert left() > LONG


def test_a_release_that_is_repeated_does_not_prolong(on_redis: None) -> None:
    lease = locks.acquire(NAME, ttl=LONG, hold_at_least=LATER)
    assert lease is not None
    ends = lease._cooling._until
    lease._cooling.ended(failed=False)
    lease._keeper.give_up(lease)
    until(cooling, "the cooling")
    lease._cooling.ended(failed=True)
    assert lease._cooling._until == ends
    assert lease.release()
    assert left() <= LATER


@pytest.mark.nightly
@pytest.mark.slow
def test_an_interruption_anywhere(on_redis: None) -> None:
    """If its block has begun, the lock is taken for its time; and in no case for longer."""
    seconds = 0.05

    def work(name: str) -> None:
        began: list[float] = []
        try:
            with lock(name, ttl=LONG, hold_at_least=seconds):
                began.append(clock.now())
        finally:
            if began and not locks.is_locked(name):
                assert clock.now() > began[0] + seconds

    assert at_every_instruction(work, "cooling:interrupted") > 50


# ------------------------------------------------------------------------------ wrong arguments

OPTIONS = ("hold_at_least", "cooldown", "cooldown_after_error")


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize(
    ("value", "error"),
    [
        (True, TypeError),
        ("1", TypeError),
        (None, TypeError),
        (-1, ValueError),
        (math.nan, ValueError),
        (math.inf, ValueError),
        (10**400, ValueError),
        (1e12, ValueError),
    ],
)
def test_a_wrong_number_is_an_error_at_once(option: str, value: Any, error: type) -> None:
    with pytest.raises(error, match=option):
        lock(NAME, **{option: value})
    if option == "hold_at_least":
        with pytest.raises(error, match=option):
            locks.acquire(NAME, hold_at_least=value)


def test_a_store_that_cannot_do_it_says_so_before_it_takes_the_lock(use_caches: UseCaches) -> None:
    use_caches(
        {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}},
        {"default": {"BACKEND": "tests.five_methods.FiveMethodStore"}},
    )
    made: list[Callable[[], Any]] = [
        lambda: locks.acquire(NAME, hold_at_least=1),
        lambda: lock(NAME, cooldown=1).__enter__(),
        lambda: lock([NAME], cooldown=1).__enter__(),
        lambda: lock(NAME, reentrant=True, cooldown_after_error=1).__enter__(),
        lambda: lock(NAME, hold_at_least=1)(lambda: None)(),
    ]
    for make in made:
        with sent(lock_acquired) as acquired, pytest.raises(InvalidLockConfig, match="rewrite"):
            make()
        assert acquired == []
    assert not locks.is_locked(NAME)


def test_a_lock_that_cools_is_an_ordinary_context() -> None:
    assert isinstance(lock(NAME, cooldown=1), LockContext)


# ------------------------------------------------------------------------------ permits


def test_with_slots_it_is_a_limit_of_so_many_per_time(cooling_store: BaseStore) -> None:
    for _ in range(3):
        with lock("api", slots=3, hold_at_least=LATER) as lease:
            pass
    assert lease.name == "api#3"
    permits = [holder(f"api#{number}") for number in (1, 2, 3)]
    assert [(permit.slot, permit.cooling) for permit in permits] == [(n, True) for n in (1, 2, 3)]
    with pytest.raises(LockNotAcquired, match="cooling"), lock("api", slots=3):
        raise AssertionError
    assert locks.clear("api#2")
    with lock("api", slots=3) as lease:
        assert lease.slot == 2
