"""``lock([...])`` and ``locks.acquire_all``: several locks, all or none. ``reentrant=True``: who
holds the lock takes it again, and nobody else does."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async

from django_tasklock import Lease, LeaseLost, LockNotAcquired, StoreUnavailable, lock, locks
from django_tasklock.signals import lock_acquired, lock_contended, lock_lost, lock_released
from django_tasklock.stores import stores
from django_tasklock.stores.base import MOST_TOGETHER, BaseStore
from tests.interruptions import Interrupt, signalled
from tests.servers import RedisServer
from tests.steps import (
    LONG,
    RENEWED,
    Meanwhile,
    Traffic,
    holder,
    in_child,
    sent,
    silent,
    taken,
    waiting,
)
from tests.waiting import PATIENCE, until

SEATS = ["seat:3", "seat:1", "seat:2"]


def all_taken(names: list[str], *, ttl: float = LONG, **options: Any) -> list[Lease]:
    leases = locks.acquire_all(names, ttl=ttl, **options)
    assert leases is not None, f"some of {names} is held"
    return leases


def held() -> list[str]:
    return [name for name in sorted(SEATS) if locks.is_locked(name)]


def test_every_store(each_store: BaseStore) -> None:
    # Given a block that needs three locks
    with lock(SEATS, ttl=LONG) as leases:
        # I expect a lease on each, in their order
        assert [lease.name for lease in leases] == SEATS
        assert all(holder(lease.name).token == lease.token for lease in leases)
        # And who needs one of them to get none
        assert locks.acquire_all(["seat:0", "seat:2"], ttl=LONG) is None
        assert not locks.is_locked("seat:0")
    assert (held(), any(lease.held for lease in leases)) == ([], False)
    again = all_taken(["seat:2", "seat:0"])
    if each_store.supports_fence:
        assert min(lease.fence or 0 for lease in again) > max(lease.fence or 0 for lease in leases)
    assert [lease.release() for lease in again] == [True, True]


@pytest.mark.usefixtures("on_redis")
class TestTaking:
    def test_one_round_trip_for_all_but_where_they_are_too_many_for_a_script(
        self, redis_server: RedisServer
    ) -> None:
        all_taken(["other", "another"])
        traffic, names = Traffic(redis_server), [f"seat:{number}" for number in range(100)]
        leases = all_taken(names)
        assert traffic.scripts() == 1
        assert [lease.name for lease in leases] == names
        assert len({lease.fence for lease in leases}) == 100
        traffic.restart()
        names = [f"more:{number}" for number in range(MOST_TOGETHER + 1)]
        assert [lease.name for lease in all_taken(names)] == names
        assert traffic.scripts() >= len(names)

    def test_in_sorted_order_and_back(self) -> None:
        with sent(lock_acquired) as acquired, sent(lock_released) as released, lock(SEATS):
            pass
        assert [told["lease"].name for told in acquired] == sorted(SEATS)
        assert [told["lease"].name for told in released] == sorted(SEATS, reverse=True)
        wrong: Any
        for wrong in ("seat:1", {"seat:1"}, iter(SEATS), None, []):
            with pytest.raises((TypeError, ValueError)):
                locks.acquire_all(wrong)

    def test_held_one_is_named_and_the_others_are_released_in_reverse_order(self) -> None:
        other = taken("seat:3")
        with sent(lock_released) as released, pytest.raises(LockNotAcquired) as refused:
            lock(SEATS).__enter__()
        assert refused.value.name == "seat:3"
        assert refused.value.holder is not None
        assert refused.value.holder.token == other.token
        assert [told["lease"].name for told in released] == ["seat:2", "seat:1"]
        assert held() == ["seat:3"]

    def test_one_lost_lease_is_said_at_the_end_and_the_others_are_released(self) -> None:
        for name in SEATS:
            with pytest.raises(LeaseLost) as lost, lock(SEATS, ttl=LONG):
                assert locks.clear(name)
            assert (lost.value.name, held()) == (name, [])

    def test_decorator_fills_a_template_for_each(self) -> None:
        @lock(["account:{source}", "account:{target}"], ttl=LONG, on_conflict="skip")
        def transfer(source: int, target: int) -> list[str]:
            return sorted(info.name for info in locks.list("account:"))

        assert transfer(2, 1) == ["account:1", "account:2"]
        assert transfer(target=7, source=7) == ["account:7"], "one lease for a name that is twice"
        taken("account:1")
        assert transfer(1, 0) is None
        assert not locks.is_locked("account:0")

    def test_reentrant_names_that_are_held_are_shared_and_the_others_taken(self) -> None:
        with lock("seat:2", ttl=LONG, reentrant=True) as outer:
            with lock(SEATS, ttl=5, reentrant=True) as leases:
                assert leases[2] is outer
                assert [lease.ttl for lease in leases] == [5, 5, LONG]
                with lock(SEATS, reentrant=True) as inner, lock("seat:1", reentrant=True) as one:
                    assert (inner, one) == (leases, leases[1])
                assert held() == sorted(SEATS)
            assert held() == ["seat:2"]
            taken("seat:3")
            with pytest.raises(LockNotAcquired), lock(SEATS, reentrant=True):
                pytest.fail("the block ran")  # pragma: no cover
            assert (held(), outer.held) == (["seat:2", "seat:3"], True)


@pytest.mark.usefixtures("on_redis")
class TestWaiting:
    def test_leases_do_not_end_while_the_next_is_waited_for(self) -> None:
        """And all have their ttl before them when the last is taken."""
        other = taken("seat:3")
        thread = Meanwhile(lambda: all_taken(SEATS, ttl=RENEWED, wait=None))
        until(lambda: waiting("seat:3") == 1)
        first = holder("seat:1")
        until(lambda: (holder("seat:1").ttl or 0) < RENEWED * 0.8)
        until(lambda: (holder("seat:1").ttl or 0) > RENEWED * 0.9, "its renewal")
        until(lambda: (holder("seat:1").ttl or 0) < RENEWED * 0.8)
        assert other.release()
        leases = thread.result()
        assert (leases[1].token, holder("seat:1").acquired_at) == (first.token, first.acquired_at)
        assert not any(lease.renew for lease in leases)
        assert max(lease.remaining for lease in leases) - leases[1].remaining < RENEWED * 0.1
        until(lambda: not any(lease.held for lease in leases), "the end of what is not renewed")

    def test_lease_that_is_lost_meanwhile_is_a_refusal(self) -> None:
        other = taken("seat:3")
        with sent(lock_lost) as lost:
            thread = Meanwhile(lambda: locks.acquire_all(SEATS, ttl=RENEWED, wait=None))
            until(lambda: waiting("seat:3") == 1)
            assert locks.clear("seat:1")
            taken("seat:1")
            until(lambda: [told["lease"].name for told in lost] == ["seat:1"], "the renewal")
        assert other.release()
        assert thread.result() is None
        assert held() == ["seat:1"]

    def test_one_deadline_for_all(self) -> None:
        first, _second = taken("seat:1"), taken("seat:2")
        with sent(lock_contended) as contended:
            thread = Meanwhile(lambda: locks.acquire_all(SEATS, ttl=LONG, wait=4))
            until(lambda: waiting("seat:1") == 1)
            until(lambda: first.remaining < LONG - 2)
            assert first.release()
            assert thread.result() is None
        (told,) = contended
        assert (told["name"], told["waited"] < 3, held()) == ("seat:2", True, ["seat:2"])


@pytest.mark.usefixtures("on_redis")
class TestOutage:
    def test_midway_nothing_stays_held(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """On a store that is asked for one after the other."""
        store = stores["default"]
        acquire = store.acquire

        def third_is_lost(names: Any, *rest: Any) -> Any:
            if names[0] == "seat:3":
                raise StoreUnavailable("default", "silent")
            return acquire(names, *rest)

        monkeypatch.setattr(store, "puts_together", False)
        monkeypatch.setattr(store, "acquire", third_is_lost)
        with pytest.raises(StoreUnavailable), lock(SEATS, ttl=LONG):
            pytest.fail("the block ran")  # pragma: no cover
        until(lambda: held() == [])

    def test_at_the_end_it_is_met_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Not once for each lease: each question might hang as long as the client waits."""
        seats = [f"seat:{number}" for number in range(30)]
        with monkeypatch.context() as outage:
            with pytest.raises(StoreUnavailable), lock(seats, ttl=LONG, renew=False):
                asked = silent(outage, "release")
            assert len(asked) < 10, "the store's thread has asked as well"
        until(lambda: held() == [])

    def test_after_a_refusal_it_is_still_a_refusal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        taken("seat:3")
        with monkeypatch.context() as outage:
            silent(outage, "release")
            assert locks.acquire_all(SEATS, ttl=LONG) is None
        until(lambda: held() == ["seat:3"])


def again(name: Any = "video:1", **options: Any) -> Any:
    return lock(name, **{"ttl": LONG, "reentrant": True, **options})


def refused() -> bool:
    """Whether whoever calls this cannot take the lock again."""
    try:
        with again():
            return False
    except LockNotAcquired:
        return True


def test_reentrant_on_every_store(each_store: BaseStore) -> None:
    # Given a block that holds a lock, and blocks in it that want it again
    one = again()
    with one as outer:
        with one as inner, again() as third:
            # I expect them to share its lease, and everybody else to be refused
            assert inner is outer is third
        assert outer.held
        assert locks.acquire("video:1") is None
        assert holder("video:1").token == outer.token
    # And the outer one alone to release it
    assert not locks.is_locked("video:1")
    assert not outer.held


@pytest.mark.usefixtures("on_redis")
class TestReentrant:
    def test_inner_block_asks_the_store_nothing_if_both_sides_say_it(
        self, redis_server: RedisServer
    ) -> None:
        with again(renew=False) as outer:
            traffic = Traffic(redis_server)
            for _ in range(10):
                with again(ttl=5, renew=True, wait=None) as inner:
                    assert (inner is outer, inner.ttl, inner.renew) == (True, LONG, False)
            assert traffic.scripts() == 0
        with again(), pytest.raises(LockNotAcquired):
            lock("video:1").__enter__()
        with lock("video:1"):
            assert refused()
        with pytest.raises(TypeError, match="reentrant must be a bool"):
            lock("video:1", reentrant=1)  # type: ignore[call-overload]

    def test_a_lease_that_has_ended_is_not_shared(self) -> None:
        def block() -> Iterator[Lease]:
            with again() as lease:
                yield lease

        first, second = block(), block()
        assert next(first) is next(second)
        assert next(first, "over") == "over"
        assert not locks.is_locked("video:1")
        with pytest.raises(LeaseLost, match="has ended"):
            next(second, "over")
        with again() as outer, again() as inner:
            assert inner.release() is True
            with again() as anew:
                assert anew.token != outer.token

    def test_of_a_loss_inner_and_outer_block_both_say_it(self) -> None:
        def work() -> None:
            with again() as lease:
                with pytest.raises(LeaseLost), again():
                    assert (locks.clear("video:1"), lease.extend()) == (True, False)
                with pytest.raises(LeaseLost, match="the store no longer has it"):
                    again().__enter__()

        with pytest.raises(LeaseLost):
            work()
        with again():  # What was lost has ended.
            assert locks.is_locked("video:1")

    def test_what_was_interrupted_before_it_had_its_locks_is_no_block_around_others(self) -> None:
        other = taken("video:2", renew=True)
        try:
            with signalled(Interrupt()), again(name=["video:1", "video:2"], wait=LONG):
                raise AssertionError
        except Interrupt:  # Which refers to that block.
            until(lambda: not locks.is_locked("video:1"))
            with again() as lease:
                assert lease.held
        assert other.release()

    @pytest.mark.usefixtures("each_fork")
    def test_whatever_runs_beside_the_holder_does_not_share_its_lease(self) -> None:
        async def nested() -> bool:
            return refused()

        async def work() -> list[bool]:
            with again():
                return [
                    await nested(),
                    await asyncio.create_task(nested()),
                    *await asyncio.gather(nested(), nested()),
                    await asyncio.to_thread(refused),
                    await sync_to_async(refused)(),
                ]

        assert asyncio.run(work()) == [False, *[True] * 5]
        with again(), ThreadPoolExecutor(1) as pool:
            assert asyncio.run(nested()), "a thread does not share with the loop that it runs"
            assert async_to_sync(nested)()
            assert pool.submit(contextvars.copy_context().run, refused).result(PATIENCE)
            assert in_child(refused)
            assert locks.is_locked("video:1")
