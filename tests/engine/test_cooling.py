"""``hold_at_least``, ``cooldown`` and ``cooldown_after_error``: a lock that stays taken."""

from __future__ import annotations

import math
from typing import Any

import pytest

from django_tasklock import (
    InvalidLockConfig,
    LeaseLost,
    LockNotAcquired,
    StoreUnavailable,
    lock,
    locks,
)
from django_tasklock.stores import stores
from django_tasklock.stores.base import BaseStore
from tests.agent import Agent
from tests.conftest import UseCaches, UseRedis
from tests.inside import clock
from tests.proxy import CutProxy
from tests.steps import LONG, Meanwhile, holder, taken
from tests.waiting import until

NAME = "pay:7"
LATER = 300.0
"""seconds after which no test looks"""


@pytest.fixture
def cooling_store(store: BaseStore) -> BaseStore:
    if not store.supports_rewrite:
        pytest.skip("this store has no rewrite() yet")
    return store


def cooling(name: str = NAME) -> bool:
    info = locks.get(name)
    return info is not None and info.cooling


def left(name: str = NAME) -> float:
    info = holder(name)
    assert info.cooling
    assert info.ttl is not None
    return info.ttl


# ------------------------------------------------------------------------------ on every store


def test_the_name_stays_taken_after_a_fast_block(each_store: BaseStore) -> None:
    if not each_store.supports_rewrite:
        pytest.skip("this store has no rewrite() yet")
    with lock(NAME, hold_at_least=LATER) as lease:
        assert not cooling()
    assert not lease.held
    # Members of a quorum keep a lease for 1 % longer.
    assert LATER - LONG < left() <= LATER * 1.02 + 1
    info = holder(NAME)
    assert (info.token, info.owner.pid) == (lease.token, lease.owner.pid)
    assert info.owner.alive() is None
    with pytest.raises(LockNotAcquired, match=r"cooling down for \d+"), lock(NAME):
        raise AssertionError
    assert locks.acquire(NAME) is None
    assert locks.clear(NAME, by="alice")
    assert not locks.is_locked(NAME)


def test_whoever_waits_gets_the_lock_when_it_is_cool_or_hears_why_not(
    cooling_store: BaseStore,
) -> None:
    lease = taken(NAME, hold_at_least=6.0)

    def wait() -> None:
        with pytest.raises(LockNotAcquired, match=r"cooling down for \d+"), lock(NAME, wait=2.0):
            raise AssertionError

    first, second = Meanwhile(wait), Meanwhile(lambda: taken(NAME, wait=LONG))
    until(lambda: len(locks.waiters(NAME)) == 2 or not cooling_store.supports_waiting)
    assert lease.release()
    first.result()
    assert second.result().release()


def test_only_the_outcome_with_a_cooldown_cools(on_redis: None) -> None:
    with lock(NAME, cooldown_after_error=LATER):
        pass
    with pytest.raises(ZeroDivisionError), lock(NAME, cooldown=LATER):
        raise ZeroDivisionError
    with lock(NAME, cooldown=LATER) as lease:
        assert lease.release(), "by hand, which is no outcome"
    assert not locks.is_locked(NAME)
    with pytest.raises(LeaseLost), lock(NAME, cooldown=LATER):
        locks.clear(NAME)
    assert not locks.is_locked(NAME)


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


# ------------------------------------------------------------------------------ how long


def test_the_longest_time_counts_and_a_longer_block_is_released(on_redis: None) -> None:
    for held, cooled in ((LATER, 1.0), (1.0, LATER)):
        with lock(NAME, hold_at_least=held, cooldown=cooled):
            pass
        assert left() > 1 + LONG
        locks.clear(NAME)
    lease, began = taken(NAME, hold_at_least=0.01), clock.now()
    until(lambda: clock.now() > began + 0.01)
    assert lease.release()
    assert not locks.is_locked(NAME)


def test_several_names(on_redis: None) -> None:
    with lock(["seat:1", "seat:2"], hold_at_least=LATER):
        pass
    with pytest.raises(ZeroDivisionError), lock(["seat:3", "seat:4"], cooldown_after_error=LATER):
        raise ZeroDivisionError
    with lock(["seat:5", "seat:6"], cooldown_after_error=LATER):
        pass
    # What was taken before a refusal does not cool: its block never ran.
    with pytest.raises(LockNotAcquired), lock(["seat:0", "seat:1"], hold_at_least=LATER):
        raise AssertionError
    assert sorted(info.name for info in locks.list()) == ["seat:1", "seat:2", "seat:3", "seat:4"]
    assert all(info.cooling for info in locks.list())


@pytest.mark.parametrize("names", ["stock:1", ["stock:1", "stock:2"]])
def test_of_blocks_that_share_a_lease_the_outermost_decides(on_redis: None, names: Any) -> None:
    with lock(names, reentrant=True, cooldown=LATER):
        with lock(names, reentrant=True, cooldown=3 * LATER, hold_at_least=3 * LATER):
            pass
        with pytest.raises(ZeroDivisionError), lock(names, reentrant=True):
            raise ZeroDivisionError
        assert not cooling("stock:1")
    assert LATER - LONG < left("stock:1") <= LATER


# ------------------------------------------------------------------------------ what others see


def test_nobody_takes_over_from_a_process_that_has_released_and_ended(on_redis: None) -> None:
    """Nor a waiter that was there before, and was told of the holder as it was."""
    with Agent() as agent:
        agent.ask("acquire", name=NAME, ttl=LONG, hold_at_least=LATER)
        waiter = Meanwhile(lambda: locks.acquire(NAME, wait=3))
        until(lambda: locks.waiters(NAME), "the waiter")
        assert agent.ask("release")
    assert waiter.result() is None
    assert locks.acquire(NAME) is None
    assert left() > LONG


# ------------------------------------------------------------------------------ trouble


@pytest.mark.parametrize("names", [NAME, [NAME, "pay:8"]], ids=["one", "several"])
def test_an_outage_at_the_release_ends_in_cooling(
    use_redis: UseRedis, cut_proxy: CutProxy, names: Any
) -> None:
    """A second click after the outage must not charge again."""
    use_redis(cut_proxy.url, SOCKET_TIMEOUT=0.5)

    def silence() -> None:
        cut_proxy.refuse()
        cut_proxy.cut()

    with pytest.raises(StoreUnavailable), lock(names, ttl=LONG, cooldown=LATER):
        silence()
    cut_proxy.accept()
    for name in (NAME,) if names == NAME else names:
        until(lambda name=name: cooling(name), f"the cooling of {name}")  # type: ignore[misc]
        assert left(name) <= LATER


def test_a_release_that_is_repeated_does_not_prolong(
    on_redis: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first call has reached the store, and its answer has not come back."""
    store: Any = stores["default"]
    rewrite, began = store.rewrite, clock.now()

    def unanswered(*args: Any, **kwargs: Any) -> Any:
        rewrite(*args, **kwargs)
        raise StoreUnavailable("default", "no reply")

    with monkeypatch.context() as outage:
        outage.setattr(store, "rewrite", unanswered)
        with pytest.raises(StoreUnavailable), lock(NAME, ttl=LONG, cooldown=LATER) as lease:
            pass
        returned = clock.now()
        assert not lease.held
    lease.release()
    until(lambda: clock.now() > returned + 1)
    assert began + LATER - 1 < clock.now() + left() < returned + LATER + 0.5


# ------------------------------------------------------------------------------ wrong arguments


def test_a_store_that_cannot_do_it_says_so_before_it_takes_the_lock(use_caches: UseCaches) -> None:
    use_caches({}, {"default": {"BACKEND": "tests.five_methods.FiveMethodStore"}})
    with pytest.raises(InvalidLockConfig, match="rewrite"):
        locks.acquire(NAME, hold_at_least=1)
    for names in (NAME, [NAME]):
        with pytest.raises(InvalidLockConfig, match="rewrite"), lock(names, cooldown=1):
            raise AssertionError
    assert not locks.is_locked(NAME)


@pytest.mark.parametrize("option", ["hold_at_least", "cooldown", "cooldown_after_error"])
def test_a_wrong_number_is_an_error_at_once(option: str) -> None:
    values: list[Any] = [True, "1", None, -1, math.nan, math.inf, 10**400, 1e12]
    for value in values:
        error = TypeError if value is True or not isinstance(value, int | float) else ValueError
        with pytest.raises(error, match=option):
            lock(NAME, **{option: value})
        if option == "hold_at_least":
            with pytest.raises(error, match=option):
                locks.acquire(NAME, hold_at_least=value)
