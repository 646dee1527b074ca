"""``hold_at_least``, ``cooldown`` and ``cooldown_after_error``: a lock that stays taken."""

from __future__ import annotations

import math
from typing import Any

import pytest

from django_tasklock import Lease, LeaseLost, LockNotAcquired, lock, locks
from django_tasklock.exceptions import StoreUnavailable
from django_tasklock.signals import lock_acquired
from django_tasklock.stores import stores
from django_tasklock.stores.base import BaseStore
from tests.conftest import UseRedis
from tests.inside import clock
from tests.interruptions import Exit
from tests.proxy import CutProxy
from tests.steps import LONG, Meanwhile, holder, taken
from tests.waiting import until

NAME = "pay:7"
LATER = 300.0
"""seconds after which no test looks"""


def left(name: str = NAME) -> float:
    """How long it is still cooling."""
    info = locks.get(name)
    return (info.ttl or 0) if info is not None and info.cooling else 0


def test_the_name_stays_taken_after_a_fast_block(each_store: BaseStore) -> None:
    # Given a block that is over long before its lock may be free
    with lock(NAME, hold_at_least=LATER) as lease:
        assert not left()
    assert not lease.held
    # I expect the lock to stay taken, by nobody, and a refusal to say for how long
    # Members of a quorum keep a lease for 1 % longer.
    assert LATER - LONG < left() <= LATER * 1.02 + 1
    info = holder(NAME)
    assert (info.token, info.owner.alive()) == (lease.token, None)
    with pytest.raises(LockNotAcquired, match=r"cooling down for \d+"), lock(NAME):
        raise AssertionError
    assert locks.acquire(NAME) is None
    # And an operator to be able to clear it
    assert locks.clear(NAME, by="alice")
    assert not locks.is_locked(NAME)


def test_with_slots_it_is_a_limit_of_so_many_per_time(store: BaseStore) -> None:
    for _ in range(3):
        with lock("api", slots=3, hold_at_least=LATER) as lease:
            pass
    assert lease.name == "api#3"
    assert all(left(f"api#{number}") for number in (1, 2, 3))
    with pytest.raises(LockNotAcquired, match="cooling"), lock("api", slots=3):
        raise AssertionError
    assert locks.clear("api#2")
    with lock("api", slots=3) as lease:
        assert lease.slot == 2


def test_whoever_waits_gets_the_lock_when_it_is_cool_or_hears_why_not(store: BaseStore) -> None:
    def wait() -> None:
        with pytest.raises(LockNotAcquired, match=r"cooling down for \d+"):
            lock(NAME, wait=1.0).__enter__()

    lease = taken(NAME, hold_at_least=4.0)
    first, second = Meanwhile(wait), Meanwhile(lambda: taken(NAME, wait=LONG))
    until(lambda: len(locks.waiters(NAME)) == 2 or not store.supports_waiting)
    assert lease.release()
    first.result()
    assert second.result().release()


@pytest.mark.usefixtures("on_redis")
class TestHowLong:
    def test_only_the_outcome_with_a_cooldown_cools(self) -> None:
        with lock(NAME, cooldown_after_error=LATER):
            pass
        with pytest.raises(ZeroDivisionError), lock(NAME, cooldown=LATER):
            raise ZeroDivisionError
        with lock(NAME, cooldown=LATER) as lease:
            assert lease.release(), "by hand, which is no outcome"
        with pytest.raises(LeaseLost), lock(NAME, cooldown=LATER):
            locks.clear(NAME)
        assert not locks.is_locked(NAME)

    def test_the_longest_time_counts_and_a_longer_block_is_released(self) -> None:
        for held, cooled in ((LATER, 1.0), (1.0, LATER)):
            with lock(NAME, hold_at_least=held, cooldown=cooled):
                pass
            assert left() > 1 + LONG
            locks.clear(NAME)
        lease, began = taken(NAME, hold_at_least=0.01), clock.now()
        until(lambda: clock.now() > began + 0.01)
        assert lease.release()
        assert not locks.is_locked(NAME)

    def test_several_names(self) -> None:
        with lock(["a:1", "a:2"], hold_at_least=LATER), lock(["d"], cooldown_after_error=LATER):
            pass
        with pytest.raises(ZeroDivisionError), lock(["b:1", "b:2"], cooldown_after_error=LATER):
            raise ZeroDivisionError
        # What was taken before a refusal does not cool: its block never ran.
        with pytest.raises(LockNotAcquired), lock(["a:0", "a:1"], hold_at_least=LATER):
            raise AssertionError
        assert sorted(info.name for info in locks.list()) == ["a:1", "a:2", "b:1", "b:2"]
        assert all(info.cooling for info in locks.list())

    @pytest.mark.parametrize("names", [NAME, [NAME, "pay:8"]])
    def test_of_blocks_that_share_a_lease_the_outermost_decides(self, names: Any) -> None:
        with lock(names, reentrant=True, cooldown=LATER):
            with lock(names, reentrant=True, cooldown=3 * LATER, hold_at_least=3 * LATER):
                pass
            with pytest.raises(ZeroDivisionError), lock(names, reentrant=True):
                raise ZeroDivisionError
            assert not left()
        assert LATER - LONG < left() <= LATER

    def test_a_repeated_release_does_not_prolong(self, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize("names", [[NAME], [NAME, "pay:8"]], ids=["one", "several"])
def test_an_outage_at_the_end_cools(
    use_redis: UseRedis, cut_proxy: CutProxy, names: list[str]
) -> None:
    """A second click after the outage must not charge again."""
    use_redis(cut_proxy.url, SOCKET_TIMEOUT=0.5)
    assert not locks.is_locked(NAME)
    cut_proxy.refuse()  # This connection goes on.
    with pytest.raises(StoreUnavailable), lock(names, ttl=LONG, cooldown=LATER):
        cut_proxy.cut()
    cut_proxy.accept()
    until(lambda: all(0 < left(name) <= LATER for name in names), "the cooling of all")


@pytest.mark.parametrize("value", [True, "1", None, -1, math.nan, math.inf, 10**400, 1e12])
def test_a_wrong_number_is_an_error_at_once(value: Any) -> None:
    for option in ("hold_at_least", "cooldown", "cooldown_after_error"):
        with pytest.raises((TypeError, ValueError), match=option):
            lock(NAME, **{option: value})
    with pytest.raises((TypeError, ValueError), match="hold_at_least"):
        locks.acquire(NAME, hold_at_least=value)


@pytest.mark.parametrize("names", [[NAME], [NAME, "pay:8"]], ids=["one", "several"])
def test_what_ends_before_its_block_begins_does_not_cool(on_redis: None, names: list[str]) -> None:
    """The rate limit is not used up by what was never done."""

    def interrupt(lease: Lease, **_: Any) -> None:
        if lease.name == names[-1]:
            raise Exit

    lock_acquired.connect(interrupt)
    try:
        with pytest.raises(Exit), lock(names, hold_at_least=LATER, ttl=LONG):
            raise AssertionError
    finally:
        lock_acquired.disconnect(interrupt)
    until(lambda: not any(map(locks.is_locked, names)))
