"""A hold of NAME, or whatever else holds it, keeps every newcomer from a permit of NAME."""

from __future__ import annotations

import time
from typing import Any

import pytest
from django.core.cache import cache

from django_tasklock import Lease, LockInfo, LockNotAcquired, lock, locks
from django_tasklock.stores.base import BaseStore
from tests.agent import Agent
from tests.conftest import UseRedis
from tests.servers import RedisServer
from tests.steps import LONG, SOON_SECONDS, Meanwhile, Traffic, taken
from tests.waiting import PATIENCE, until

QUIET_SECONDS = 0.3
"""in which somebody would have done what is not to be done"""


def permit(slots: int = 2, **options: Any) -> Lease:
    return taken("pool", slots=slots, **options)


def hold(ttl: float = LONG) -> LockInfo:
    info = locks.hold("pool", ttl, by="alice", reason="a migration")
    assert info is not None
    return info


def waiters(count: int, slots: int = 2) -> list[Meanwhile[Lease]]:
    """Some who wait for a permit, in this order."""
    threads = []
    for position in range(count):
        before = len(locks.waiters("pool"))
        threads.append(Meanwhile(lambda: permit(slots, wait=PATIENCE)))
        until(lambda: len(locks.waiters("pool")) == before + 1, f"waiter {position}")  # noqa: B023
    return threads


def refused(**options: Any) -> LockInfo:
    """Who is named to somebody who asks for a permit."""
    with pytest.raises(LockNotAcquired) as raised, lock("pool", slots=2, **options):
        raise AssertionError
    assert raised.value.holder is not None
    return raised.value.holder


def permits() -> list[str]:
    return [f"pool#{slot}" for slot in (1, 2, 3) if locks.is_locked(f"pool#{slot}")]


@pytest.mark.parametrize("taken_before", [0, 1, 2])
def test_no_permit_is_granted_during_a_hold(each_store: BaseStore, taken_before: int) -> None:
    # Given some permits that are taken, and a hold
    leases = [permit() for _ in range(taken_before)]
    hold()
    # I expect a newcomer to be told who holds the name, and each holder to keep its permit
    who = refused()
    assert (who.name, who.held_by, who.slot) == ("pool", "alice", None)
    for lease in leases:
        assert lease.extend(LONG)
        assert lease.release()
    # And still nobody to get one
    assert locks.acquire("pool", slots=2) is None
    assert permits() == []
    # Until the hold is over
    assert locks.clear("pool")
    assert permit().release()


@pytest.mark.usefixtures("on_locmem")
def test_who_waits_where_there_is_no_queue_begins_after_the_hold() -> None:
    hold(ttl=1.0)
    waits = Meanwhile(lambda: (permit(wait=PATIENCE), locks.is_locked("pool")))
    lease, is_held = waits.result()
    assert (lease.held, is_held) == (True, False)


@pytest.mark.usefixtures("on_redis")
class TestQueue:
    @pytest.mark.parametrize("end", ["clear", "release", "expiry"])
    def test_no_waiter_gets_a_permit_before_the_end_which_wakes_all_in_their_order(
        self, own_redis_server: RedisServer, use_redis: UseRedis, end: str
    ) -> None:
        # Given two permits that are taken, two who wait, and then a hold, or a plain lease
        use_redis(own_redis_server.url)
        hold()
        assert locks.clear("pool")
        assert permit().release()  # Now the server knows the scripts.
        leases = [permit(), permit()]
        first, *others = waiters(3)
        gate = (
            taken("pool") if end == "release" else hold(SOON_SECONDS if end == "expiry" else LONG)
        )
        traffic = Traffic(own_redis_server)
        # When the permits are released, I expect nobody to poll
        assert [lease.release() for lease in leases] == [True, True]
        time.sleep(QUIET_SECONDS)
        # (The first one is told, and asks, when the gate is taken and after each of the releases.)
        assert traffic.scripts() <= 2 + 3
        assert permits() == []
        # And at the end the first two to have them, though only the first was told
        traffic.restart()
        if end == "release":
            assert gate.release()  # type: ignore[union-attr]
        elif end == "clear":
            assert locks.clear("pool", token=gate.token)
        within = PATIENCE if end == "expiry" else SOON_SECONDS
        won = [first.result(within), others[0].result(within)]
        assert [lease.slot for lease in won] == [1, 2]
        # (A clear reads first; at the end of a lease all ask; who is told to be the next asks too.)
        assert traffic.scripts() <= {"release": 1, "clear": 2, "expiry": 0}[end] + 3
        assert won[1].release()
        assert others[1].result(SOON_SECONDS).slot == 2

    def test_a_permit_that_is_cleared_is_handed_over_unless_there_is_a_hold(self) -> None:
        leases = [permit(), permit()]
        first, second = waiters(2)
        assert locks.clear("pool#1", token=leases[0].token)
        assert first.result(SOON_SECONDS).slot == 1
        hold()
        assert locks.clear("pool#2", token=leases[1].token)
        # A hand-over takes the waiter out of the queue in the same step.
        assert len(locks.waiters("pool")) == 1
        assert permits() == ["pool#1"]
        assert locks.clear("pool")
        assert second.result(SOON_SECONDS).slot == 2

    def test_though_the_first_one_dies_under_the_hold_the_others_begin_at_its_end(self) -> None:
        leases = [permit(), permit()]
        with Agent() as agent:
            agent.tell("acquire", name="pool", slots=2, wait=PATIENCE, ttl=LONG)
            until(lambda: len(locks.waiters("pool")) == 1, "the first one")
            others = waiters(2)
            hold(2.0)
            agent.kill()
        assert [lease.release() for lease in leases] == [True, True]
        assert {each.result(PATIENCE / 2).slot for each in others} == {1, 2}

    def test_who_waits_for_the_lock_itself_comes_first_and_others_learn_of_it(self) -> None:
        # Given a holder of the gate, one who waits for it, and one who waits for a permit
        gate, reader = taken("pool"), waiters(1)[0]
        with Agent() as agent:
            agent.tell("acquire", name="pool", wait=PATIENCE, ttl=LONG)
            until(lambda: len(locks.waiters("pool")) == 2, "both in the queue")
            assert gate.release()
            assert agent.answer()
            assert permits() == []
            # When the next holder of the gate dies, I expect the waiter to notice
            agent.kill()
            assert reader.result(SOON_SECONDS).slot == 1

    def test_a_plain_lock_of_the_name_of_a_permit_is_handed_over_during_a_hold(self) -> None:
        lease, other = permit(), permit()
        (reader,) = waiters(1)
        writer = Meanwhile(lambda: taken("pool#1", wait=PATIENCE))
        until(lambda: locks.waiters("pool#1"), "the writer")
        hold()
        assert lease.release()
        assert writer.result(SOON_SECONDS).release()
        assert other.release()
        assert permits() == []
        assert locks.clear("pool")
        assert reader.result(SOON_SECONDS).slot == 1

    @pytest.mark.parametrize("wait", [0, PATIENCE])
    def test_a_dead_holder_of_the_gate_keeps_nobody_out(self, wait: float) -> None:
        with Agent() as agent:
            assert agent.ask("acquire", name="pool", ttl=LONG)
            waits = waiters(1) if wait else []
            agent.kill()
        won = waits[0].result(SOON_SECONDS) if waits else permit()
        assert won.slot == 1

    def test_a_key_that_other_code_has_set_keeps_newcomers_out_too(self) -> None:
        assert cache.add("lock:pool", "somebody's", LONG)
        assert (refused().name, refused().token) == ("pool", None)
        assert cache.delete("lock:pool")
        assert permit().release()


@pytest.mark.usefixtures("on_redis")
def test_a_block_that_holds_the_lock_itself_waits_for_no_permit_of_it() -> None:
    with lock("pool"):
        before = time.monotonic()
        assert refused(wait=PATIENCE).name == "pool"
        assert time.monotonic() - before < SOON_SECONDS
