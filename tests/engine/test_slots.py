"""``slots=N`` on every store: N holders at once, one wait queue, no overtaking."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from django_tasklock import Lease, LockNotAcquired, lock, locks, signals
from django_tasklock._values.owner_record import owner_record
from django_tasklock._values.slots import gate_name
from django_tasklock._values.tokens import new_token
from django_tasklock.stores import stores
from django_tasklock.stores.base import BaseStore, Grant
from tests.conftest import UseCaches
from tests.steps import LONG, Meanwhile, all_of, holder, sent, taken
from tests.waiting import until

GATE = gate_name("pool")
FIVE_METHODS = {"default": {"BACKEND": "tests.five_methods.FiveMethodStore"}}


@pytest.fixture
def five_methods(use_caches: UseCaches) -> None:
    """A store that a user wrote, which cannot wait or list."""
    backend = "django.core.cache.backends.locmem.LocMemCache"
    use_caches({"default": {"BACKEND": backend}}, FIVE_METHODS)


def permit(slots: int = 2, **options: Any) -> Lease:
    return taken("pool", slots=slots, **options)


def waiter(position: int, slots: int = 2, **options: Any) -> Meanwhile[Lease]:
    """One who waits for a permit, and is at this position in the queue of all who do."""
    thread = Meanwhile(lambda: permit(slots, **{"wait": None, **options}))
    if stores["default"].supports_waiting:
        until(lambda: len(locks.waiters("pool")) == position, f"waiter {position}")
    else:
        until(lambda: locks.is_locked(GATE), "the first waiter")
    return thread


def nothing_is_left(*numbers: int) -> None:
    for name in (GATE, *(f"pool#{number}" for number in numbers or (1, 2))):
        until(lambda name=name: not locks.is_locked(name), f"the end of {name}")  # type: ignore[misc]


class TestOnEveryStore:
    def test_each_holder_has_a_permit_and_nobody_gets_one_more(self, each_store: BaseStore) -> None:
        first, second = permit(), permit()
        assert (first.name, first.slot) == ("pool#1", 1)
        assert (second.name, second.slot) == ("pool#2", 2)
        assert locks.acquire("pool", slots=2) is None
        assert not locks.is_locked("pool")
        assert (holder("pool#2").slot, holder("pool#2").owner.slots) == (2, 2)
        if each_store.supports_fence:
            assert first.fence
            assert second.fence
            assert second.fence > first.fence
        assert first.release()
        again = permit()
        assert again.slot == 1
        assert [again.release(), second.release()] == [True, True]
        assert locks.waiters("pool") == []
        nothing_is_left()

    def test_callers_may_give_different_numbers_also_while_it_is_in_use(
        self, store: BaseStore
    ) -> None:
        leases = [permit(2), permit(2), permit(3)]
        assert [lease.slot for lease in leases] == [1, 2, 3]
        assert locks.acquire("pool", slots=3) is None
        leases[0].release()
        leases[1].release()
        lowered = permit(2)
        assert lowered.slot == 1
        assert holder("pool#3").token == leases[2].token, "it runs to its end"
        for lease in (lowered, leases[2]):
            assert lease.release()

    def test_who_waits_gets_the_permit_that_is_released(self, store: BaseStore) -> None:
        first, second = permit(), permit()
        waits = waiter(1)
        assert second.release()
        won = waits.result()
        assert won.slot == 2
        assert won.held
        assert holder("pool#2").token == won.token
        assert [first.release(), won.release()] == [True, True]
        nothing_is_left()

    def test_a_newcomer_does_not_overtake_who_waits(self, store: BaseStore) -> None:
        # Somebody on another machine waits, whom nobody wakes.
        record = {**owner_record(), "boot": "another-machine", "waits_for": "pool"}
        token = new_token()
        assert isinstance(store.acquire(GATE, token, LONG, record), Grant)
        assert locks.acquire("pool", slots=2) is None
        assert locks.acquire("pool", slots=2, wait=0.05) is None
        [first] = locks.waiters("pool")
        assert first.waits_for == "pool"
        assert store.release(GATE, token)
        assert permit().release()

    def test_a_wait_ends_at_its_deadline_and_leaves_nothing(self, store: BaseStore) -> None:
        first, second = permit(), permit()
        with sent(signals.lock_contended) as contended:
            assert locks.acquire("pool", slots=2, wait=0.1) is None
        [about] = contended
        assert about["name"] == "pool"
        assert about["holder"].name in ("pool#1", "pool#2")
        assert about["waited"] >= 0.1
        assert [first.release(), second.release()] == [True, True]
        nothing_is_left()

    def test_a_lease_that_ends_by_itself_makes_room(self, store: BaseStore) -> None:
        first = permit()
        ends = permit(ttl=1.0)
        won = permit(wait=None)
        assert won.slot == ends.slot
        assert not ends.held
        assert [first.release(), won.release()] == [True, True]

    def test_who_clears_a_permit_hands_it_on(self, store: BaseStore) -> None:
        first, _ = permit(), permit()
        waits = waiter(1)
        assert locks.clear("pool#2")
        won = waits.result()
        assert won.slot == 2
        assert [first.release(), won.release()] == [True, True]

    def test_of_many_at_once_n_hold_it(
        self, store: BaseStore, request: pytest.FixtureRequest
    ) -> None:
        if "file-based" in request.node.callspec.id:
            pytest.skip("its add is a look and then a write")
        inside, most, guard = 0, 0, threading.Lock()

        def use() -> None:
            nonlocal inside, most
            for _ in range(3):
                with lock("pool", ttl=LONG, wait=None, slots=2) as lease:
                    with guard:
                        inside += 1
                        most = max(most, inside)
                    lease.assert_held()
                    with guard:
                        inside -= 1

        all_of(*[use] * 5)
        assert most <= 2
        nothing_is_left()


@pytest.mark.usefixtures("five_methods")
class TestOnAStoreOfFiveMethods:
    def test_it_works(self) -> None:
        first, second = permit(), permit()
        assert locks.acquire("pool", slots=2) is None
        assert holder("pool#2").slot == 2
        waits = waiter(1)
        assert locks.acquire("pool", slots=2) is None
        assert second.release()
        won = waits.result()
        assert won.slot == 2
        assert [first.release(), won.release()] == [True, True]
        nothing_is_left()


class TestArguments:
    @pytest.mark.parametrize("slots", [0, -1, 1001])
    def test_a_wrong_number_is_refused_early(self, slots: int) -> None:
        with pytest.raises(ValueError, match="from 1 to 1000"):
            lock("pool", slots=slots)
        with pytest.raises(ValueError, match="from 1 to 1000"):
            locks.acquire("pool", slots=slots)

    @pytest.mark.parametrize("slots", [True, 2.0, "2", None])
    def test_a_wrong_type_is_refused_early(self, slots: Any) -> None:
        with pytest.raises(TypeError, match="whole number"):
            lock("pool", slots=slots)
        with pytest.raises(TypeError, match="whole number"):
            locks.acquire("pool", slots=slots)

    def test_several_names_have_no_slots(self) -> None:
        with pytest.raises(ValueError, match="one name"):
            lock(["a", "b"], slots=2)  # type: ignore[call-overload]

    def test_a_name_leaves_room_for_the_number(self, on_locmem: None) -> None:
        with pytest.raises(ValueError, match="at most 195"):
            locks.acquire("x" * 196, slots=2)
        longest = "x" * 195
        first = taken(longest, slots=2)
        second = taken(longest, slots=2)
        assert locks.acquire(longest, slots=2, wait=0.05) is None
        assert [first.release(), second.release()] == [True, True]

    def test_one_slot_is_the_plain_lock(self, on_locmem: None) -> None:
        with lock("pool", slots=1) as lease:
            assert (lease.name, lease.slot) == ("pool", None)
            assert holder("pool").slot is None
            assert permit(2).slot == 1, "the permits are other locks"

    def test_a_plain_lock_named_like_a_permit_is_none(self, on_locmem: None) -> None:
        lease = taken("pool#1")
        assert lease.slot is None
        assert holder("pool#1").slot is None
        assert permit(2).slot == 2, "it is taken all the same"

    def test_the_error_has_the_name_and_a_holder(self, on_locmem: None) -> None:
        permit(), permit(ttl=5.0)
        with pytest.raises(LockNotAcquired) as raised, lock("pool", slots=2):
            pass
        assert raised.value.name == "pool"
        assert raised.value.holder is not None
        assert raised.value.holder.name == "pool#2", "the one that ends first"


class TestReentrant:
    def test_who_has_a_permit_enters_again_with_it(self, on_locmem: None) -> None:
        again = lock("pool", slots=2, reentrant=True)
        with again as outer, lock("pool", slots=3, reentrant=True) as inner:
            assert inner is outer
            assert not locks.is_locked("pool#2")
            with lock("pool", reentrant=True) as plain:
                assert plain.name == "pool"
            assert Meanwhile(lambda: permit().slot).result() == 2, "another thread has its own"
            with again as innermost:
                assert innermost is outer
        assert not locks.is_locked("pool#1")
