"""``slots=N``: N holders at once, one wait queue, no overtaking."""

from __future__ import annotations

import time
from typing import Any

import pytest

from django_tasklock import Lease, LockNotAcquired, StoreUnavailable, lock, locks, signals
from django_tasklock.stores import stores
from django_tasklock.stores.base import BaseStore, Note
from tests.agent import Agent
from tests.conftest import UseRedis
from tests.inside import asked, owner_record
from tests.servers import RedisServer
from tests.steps import LONG, Meanwhile, Traffic, held_by, holder, members, sent, taken, waiting
from tests.waiting import PATIENCE, until


def permit(slots: int = 2, **options: Any) -> Lease:
    return taken("pool", slots=slots, **options)


def waiter(position: int, slots: int = 2, **options: Any) -> Meanwhile[Lease]:
    """One who waits for a permit, and is at this position in the queue of all who do."""
    thread = Meanwhile(lambda: permit(slots, **{"wait": None, **options}))
    if stores["default"].supports_waiting:
        until(lambda: len(locks.waiters("pool")) == position, f"waiter {position}")
    return thread


def nothing_is_left(*numbers: int) -> None:
    names = [f"pool#{number}" for number in numbers or (1, 2)]
    until(lambda: not any(map(locks.is_locked, names)), f"the end of {names}")


class TestOnEveryStore:
    def test_each_holder_has_a_permit_and_nobody_gets_one_more(self, each_store: BaseStore) -> None:
        # Given a pool of two, and two who have a permit
        first, second = permit(), permit()
        assert (first.name, first.slot, second.name, second.slot) == ("pool#1", 1, "pool#2", 2)
        # I expect a third to be refused, until a permit is given back
        assert locks.acquire("pool", slots=2) is None
        assert (holder("pool#2").slot, holder("pool#2").owner.slots) == (2, 2)
        assert first.release()
        third, again = permit(3), permit(3)
        assert [third.slot, again.slot] == [1, 3], "each caller has its own N"
        assert [lease.release() for lease in (second, third)] == [True, True]
        assert (permit().slot, again.held) == (1, True), "it runs to its end"

    def test_who_waits_gets_the_permit_that_is_released_or_cleared(self, store: BaseStore) -> None:
        leases = [permit(), permit()]
        for number in (2, 1):
            waits = waiter(1)
            assert leases[1].release() if number == 2 else locks.clear("pool#1")
            won = waits.result()
            assert (won.slot, won.held, holder(won.name).token) == (number, True, won.token)
            leases.append(won)
        assert [lease.release() for lease in leases[2:]] == [True, True]
        nothing_is_left()

    def test_a_wait_ends_at_its_deadline_and_leaves_nothing(self, store: BaseStore) -> None:
        leases = [permit(), permit(ttl=LONG / 2)]  # The second ends first, and is named.
        with sent(signals.lock_contended) as contended, pytest.raises(LockNotAcquired) as raised:
            lock("pool", slots=2, wait=0.1).__enter__()
        [about] = contended
        assert about["name"] == raised.value.name == "pool"
        assert about["holder"].name == getattr(raised.value.holder, "name", "") == "pool#2"
        assert [lease.release() for lease in leases] == [True, True]
        nothing_is_left()


@pytest.mark.usefixtures("on_locmem")
class TestArguments:
    def test_one_name_with_room_for_the_number_has_permits(self) -> None:
        for slots in (0, -1, 1001, True, 2.0, "2", None):
            options: Any = {"slots": slots}
            for take in (lock, locks.acquire):
                with pytest.raises((TypeError, ValueError), match=r"1 to 1000|whole|negative"):
                    take("pool", **options)
        with pytest.raises(ValueError, match="slots must be 1 with several"):
            lock(["a", "b"], slots=2)
        with pytest.raises(ValueError, match="at most 195"):
            locks.acquire("x" * 196, slots=2)
        leases = [locks.acquire("x" * 195, slots=2, wait=0.05) for _ in range(3)]
        assert [lease is not None for lease in leases] == [True, True, False]

    def test_plain_locks_are_other_locks_and_who_has_a_permit_enters_again_with_it(self) -> None:
        with lock("pool#1") as plain:
            assert (plain.slot, holder("pool#1").slot) == (None, None)
            assert permit(2).slot == 2, "the name of the first one is taken all the same"
        again = [lock("pool", slots=slots, reentrant=True) for slots in (3, 4)]
        with again[0] as outer, again[1] as inner:
            assert Meanwhile(lambda: permit(3).slot).result() == 3, "another thread has its own"
            with lock("pool", slots=1, reentrant=True) as plain:
                assert (inner is outer, plain.name, plain.slot) == (True, "pool", None)

    def test_who_waits_polls_where_there_is_no_queue(self) -> None:
        leases, waits = [permit(), permit()], waiter(1)
        assert [leases[1].release(), waits.result().slot] == [True, 2]


@pytest.mark.usefixtures("on_redis")
class TestOrder:
    def test_a_permit_is_one_round_trip_and_a_wait_asks_nothing_while_nothing_happens(
        self, own_redis_server: RedisServer, use_redis: UseRedis
    ) -> None:
        use_redis(own_redis_server.url)
        for lease in (permit(), permit()):  # Now the server knows the scripts.
            lease.release()
        leases, traffic = [permit()], Traffic(own_redis_server)
        leases.append(permit())
        assert locks.acquire("pool", slots=2) is None
        assert traffic.scripts() == 2
        waits = waiter(1)
        assert waiting("pool#1") == waiting("pool#2") == 1
        traffic.restart()
        time.sleep(0.3)
        assert traffic.scripts() == 0
        assert leases[1].release()
        assert waits.result().slot == 2

    def test_who_wants_all_permits_as_plain_locks_and_who_wants_one_wait_for_each_other(
        self,
    ) -> None:
        with lock(["pool#1", "pool#2"]):
            reader = waiter(1, ttl=LONG)
        writer = Meanwhile(lambda: lock(["pool#1", "pool#2"], wait=PATIENCE).__enter__())
        until(lambda: members("default", reader.result().name), "the writer in the queue")
        assert reader.result().release()
        assert len(writer.result()) == 2


@pytest.mark.usefixtures("on_redis")
class TestTrouble:
    @pytest.mark.parametrize("wait", [0, None])
    def test_the_permit_of_a_dead_process_is_taken_at_once(self, wait: float | None) -> None:
        with Agent() as agent:
            permit()
            assert agent.ask("acquire", name="pool", slots=2, ttl=LONG)
            waits = waiter(1) if wait is None else None
            with sent(signals.lock_cleared) as cleared:
                agent.kill()
                assert (waits.result(LONG / 4) if waits else permit()).slot == 2
        assert [about["name"] for about in cleared] == ["pool#2"]

    def test_an_outage_is_no_refusal_and_takes_no_time_for_each_permit(
        self, own_redis_server: RedisServer, use_redis: UseRedis
    ) -> None:
        use_redis(own_redis_server.url, SOCKET_TIMEOUT=0.5)
        _leases = [permit(20) for _ in range(20)]
        waits = Meanwhile(lambda: locks.acquire("pool", slots=20, ttl=LONG, wait=2))
        until(lambda: locks.waiters("pool"), "the waiter")
        own_redis_server.pause()
        with pytest.raises(StoreUnavailable):
            waits.result()
        own_redis_server.resume()
        assert waits.took < 2 + 20 * 0.5 / 2

    def test_the_run_of_a_message_gets_no_second_permit(self) -> None:
        elsewhere = {**owner_record("videos.process", "id-1"), "slots": 2, "boot": "elsewhere"}
        held_by(elsewhere, "pool#1")
        kind: dict[str, Any] = {"slots": 2, "task": "videos.process"}
        for options in ({"note": Note("n", "text", LONG)}, {"wait": PATIENCE}):
            refused = asked("pool", task_id="id-1", **kind, **options)
            assert not isinstance(refused, Lease)
            assert (refused.name, locks.is_locked("pool#2")) == ("pool#1", False)
            other = asked("pool", task_id="id-2", **kind)
            assert isinstance(other, Lease)
            other.release()
