"""``slots=N``: N holders at once, one wait queue, no overtaking; on Redis also what it asks of the
server, the order, the dead, and interruptions."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from django_tasklock import Lease, LockNotAcquired, StoreUnavailable, lock, locks, signals
from django_tasklock._engine import permits as permits_module
from django_tasklock._engine.waiting import Attempt
from django_tasklock._values.slots import gate_name
from django_tasklock.stores import stores
from django_tasklock.stores.base import BaseStore, Grant, Note
from django_tasklock.stores.redis.any_of import ACQUIRE_ANY
from tests import interruptions
from tests.agent import Agent
from tests.cli.test_command import run
from tests.conftest import UseCaches, UseRedis
from tests.inside import new_token, owner_record
from tests.interruptions import at_every_instruction
from tests.proxy import CutProxy
from tests.servers import RedisServer
from tests.steps import (
    LONG,
    Meanwhile,
    Traffic,
    holder,
    members,
    sent,
    taken,
    unheard,
    waiting,
)  # fmt: skip
from tests.waiting import PATIENCE, until

GATE, PERMITS = gate_name("pool"), ("pool#1", "pool#2")


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


def first_waits(**options: Any) -> Meanwhile[Lease]:
    """The first waiter, once it is in the queues of both permits."""
    waits = waiter(1, **options)
    until(lambda: waiting("pool#1") == waiting("pool#2") == 1, "the waiter in both queues")
    return waits


def nothing_is_left(*numbers: int) -> None:
    names = [GATE, *(f"pool#{number}" for number in numbers or (1, 2))]
    until(lambda: not any(map(locks.is_locked, names)), f"the end of {names}")


def held_elsewhere(name: str, ttl: float = LONG, **fields: Any) -> str:
    """A lease of a process on another machine, which never releases it."""
    token, record = new_token(), {**owner_record(), "slots": 2, "boot": "elsewhere", **fields}
    assert isinstance(stores["default"].acquire(name, token, ttl, record), Grant)
    return token


class TestOnEveryStore:
    def test_each_holder_has_a_permit_and_nobody_gets_one_more(self, each_store: BaseStore) -> None:
        first, second = permit(), permit()
        assert (first.name, first.slot, second.name, second.slot) == ("pool#1", 1, "pool#2", 2)
        assert locks.acquire("pool", slots=2) is None
        assert (holder("pool#2").slot, holder("pool#2").owner.slots) == (2, 2)
        assert first.release()
        third, again = permit(3), permit(3)
        assert [third.slot, again.slot] == [1, 3], "each caller has its own N"
        assert [lease.release() for lease in (second, third)] == [True, True]
        assert permit().slot == 1
        assert again.held, "it runs to its end"

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

    def test_a_newcomer_does_not_overtake_who_waits(self, store: BaseStore) -> None:
        token = held_elsewhere(GATE, waits_for="pool")
        assert locks.acquire("pool", slots=2) is None
        assert locks.acquire("pool", slots=2, wait=0.05) is None
        assert [owner.waits_for for owner in locks.waiters("pool")] == ["pool"]
        assert store.release(GATE, token)
        assert permit().release()

    def test_a_wait_ends_at_its_deadline_and_leaves_nothing(self, store: BaseStore) -> None:
        leases = [permit(), permit()]
        with sent(signals.lock_contended) as contended:
            assert locks.acquire("pool", slots=2, wait=0.1) is None
        [about] = contended
        assert (about["name"], about["holder"].name in PERMITS) == ("pool", True)
        assert [lease.release() for lease in leases] == [True, True]
        nothing_is_left()


def test_a_store_of_five_methods_polls(use_caches: UseCaches) -> None:
    backend = "django.core.cache.backends.locmem.LocMemCache"
    five_methods = {"default": {"BACKEND": "tests.five_methods.FiveMethodStore"}}
    use_caches({"default": {"BACKEND": backend}}, five_methods)
    leases, waits = [permit(), permit()], waiter(1)
    assert [leases[1].release(), waits.result().slot] == [True, 2]


class TestArguments:
    @pytest.mark.parametrize("slots", [0, -1, 1001, True, 2.0, "2", None])
    @pytest.mark.parametrize("take", [lock, locks.acquire])
    def test_a_wrong_number_is_refused_early(self, take: Callable[..., Any], slots: Any) -> None:
        with pytest.raises((TypeError, ValueError), match=r"from 1 to 1000|whole number|negative"):
            take("pool", slots=slots)

    def test_one_name_with_room_for_the_number_has_a_gate(self, on_locmem: None) -> None:
        with pytest.raises(ValueError, match="one name"):
            lock(["a", "b"], slots=2)
        with pytest.raises(ValueError, match="at most 195"):
            locks.acquire("x" * 196, slots=2)
        longest = "x" * 195
        taken(longest, slots=2), taken(longest, slots=2)
        assert locks.acquire(longest, slots=2, wait=0.05) is None

    def test_plain_locks_are_other_locks(self, on_locmem: None) -> None:
        with lock("pool", slots=1) as lease, lock("pool#1") as plain:
            assert (lease.name, lease.slot, plain.slot) == ("pool", None, None)
            assert holder("pool#1").slot is None
            assert permit(2).slot == 2, "the name of the first one is taken all the same"

    def test_the_error_has_the_name_and_the_holder_that_ends_first(self, on_locmem: None) -> None:
        permit(), permit(ttl=5.0)
        with pytest.raises(LockNotAcquired) as raised, lock("pool", slots=2):
            pass
        met = raised.value.holder
        assert (raised.value.name, met and met.name) == ("pool", "pool#2")

    def test_who_has_a_permit_enters_again_with_it(self, on_locmem: None) -> None:
        again = [lock("pool", slots=slots, reentrant=True) for slots in (2, 3)]
        with again[0] as outer, again[1] as inner, lock("pool", reentrant=True) as plain:
            assert inner is outer
            assert plain.name == "pool"
            assert Meanwhile(lambda: permit().slot).result() == 2, "another thread has its own"


@pytest.mark.usefixtures("on_redis")
class TestOrder:
    def test_a_free_permit_costs_one_round_trip_and_so_do_its_release_and_a_refusal(
        self, own_redis_server: RedisServer, use_redis: UseRedis
    ) -> None:
        use_redis(own_redis_server.url)
        for lease in (permit(), permit()):  # Now the server knows the scripts.
            lease.release()
        _first, traffic = permit(), Traffic(own_redis_server)
        second, refused = permit(), locks.acquire("pool", slots=2)
        assert (refused, second.release(), traffic.scripts()) == (None, True, 3)

    def test_the_first_waiter_asks_nothing_while_nothing_happens(
        self, own_redis_server: RedisServer, use_redis: UseRedis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(permits_module, "LONGEST_GATE_SECONDS", LONG)
        use_redis(own_redis_server.url)
        leases, waits = [permit(), permit()], first_waits()
        traffic = Traffic(own_redis_server)
        time.sleep(40 * permits_module.TURN_SECONDS)
        assert traffic.scripts() == 0
        assert leases[1].release()
        assert waits.result().slot == 2

    def test_waiters_of_all_permits_are_served_in_the_order_in_which_they_came(self) -> None:
        leases = [permit(), permit()]
        queue = [first_waits(), *(waiter(position, 2 + position % 2) for position in (2, 3, 4))]
        assert waiting("pool#1") == waiting("pool#2") == 1, "the first one alone"
        for thread, which in zip(queue, [1, 0, 0, 1], strict=True):
            # Where the third permit is free, the next waiter may take that one.
            leases.pop(which % len(leases)).release()
            leases.append(thread.result())
        for lease in leases:
            assert lease.release()
        assert [members("default", name) for name in PERMITS] == [[], []]
        nothing_is_left(1, 2, 3)

    def test_operators_see_which_permits_are_held_and_who_waits(self) -> None:
        taken("pool#7")  # A plain lock.
        permit(), permit(), waiter(1)
        assert "pool itself is not locked" in run("show", "pool")
        shown = json.loads(run("show", "pool", "--format", "json"))
        assert [row["slot"] for row in shown["permits"]] == [1, 2]
        assert [owner["waits_for"] for owner in shown["waiting"]] == ["pool"]


@pytest.mark.usefixtures("on_redis")
class TestTrouble:
    @pytest.mark.parametrize("wait", [0, None])
    def test_the_permit_of_a_dead_process_is_taken_at_once(self, wait: float | None) -> None:
        with Agent() as agent:
            permit()
            assert agent.ask("acquire", name="pool", slots=2, ttl=LONG)
            waits = first_waits() if wait is None else None
            with sent(signals.lock_cleared) as cleared:
                agent.kill()
                assert (waits.result() if waits else permit()).slot == 2
        assert [about["name"] for about in cleared] == ["pool#2"]

    @pytest.mark.parametrize("others", [0, 1])
    def test_a_waiter_that_died_is_in_nobodys_way(self, others: int) -> None:
        leases = [permit(), permit()]
        with Agent() as agent:
            agent.ask("wait_meanwhile", name="pool", slots=2, ttl=LONG, wait=None)
            until(lambda: locks.is_locked(GATE), "the waiter")
            waits = [waiter(2) for _ in range(others)]
            agent.kill()
            # The server may not have seen the end of its connection yet, and hand it to the dead.
            leases[0].release()
            assert (waits[0].result() if waits else permit()).slot == 1

    def test_a_waiter_who_lost_the_gate_waits_on(self) -> None:
        leases, waits = [permit(), permit()], first_waits()
        before = holder(GATE).token
        assert locks.clear(GATE)
        until(
            lambda: (info := locks.get(GATE)) is not None and info.token != before,
            "its next turn",
            within=2 * permits_module.LONGEST_GATE_SECONDS,
        )
        leases[0].release()
        assert waits.result().slot == 1

    def test_a_lost_reply_and_a_cut_connection_lose_no_permit(
        self, cut_proxy: CutProxy, use_redis: UseRedis
    ) -> None:
        use_redis(cut_proxy.url)
        for lease in (permit(), permit()):  # Now the server knows the scripts.
            lease.release()
        cut_proxy.drop_reply(ACQUIRE_ANY.sha)
        leases = [permit(), permit()]
        assert (cut_proxy.lost_replies, [lease.slot for lease in leases]) == (1, [1, 2])
        waits = first_waits()
        cut_proxy.cut()
        leases[1].release()
        assert waits.result().slot == 2

    def test_an_outage_is_no_refusal_and_takes_no_time_for_each_permit(
        self, own_redis_server: RedisServer, use_redis: UseRedis
    ) -> None:
        use_redis(own_redis_server.url, SOCKET_TIMEOUT=1.0)
        assert len([permit(20) for _ in range(20)]) == 20
        waits = Meanwhile(lambda: locks.acquire("pool", slots=20, ttl=LONG, wait=8))
        until(lambda: waiting("pool#20") == 1, "the first waiter")
        own_redis_server.pause()
        try:
            with pytest.raises(StoreUnavailable):
                waits.result()
        finally:
            own_redis_server.resume()
        assert waits.took < 8 + 20 * 1.0 / 2

    def test_a_grant_that_is_over_once_the_other_queues_are_left_is_no_permit(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def stalls(attempt: Attempt) -> Grant | None:
            time.sleep(1.5)
            return leave(attempt)

        leases, leave, waits = [permit(), permit()], Attempt.leave, first_waits(ttl=1.4)
        monkeypatch.setattr(Attempt, "leave", stalls)
        leases[1].release()
        with pytest.raises(StoreUnavailable):
            waits.result()
        nothing_is_left(2)

    def test_a_permit_that_is_handed_over_in_the_last_moment_is_held(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def late(attempt: Attempt) -> Grant | None:
            """Both are handed over while the queues are left; one of them is passed on."""
            while leases:
                assert leases.pop().release()
            return leave(attempt)

        leases, leave = [permit(), permit()], Attempt.leave
        monkeypatch.setattr(Attempt, "leave", late)
        won = permit(wait=2, ttl=100 * LONG)
        assert holder(won.name).token == won.token
        assert won.release()
        nothing_is_left()

    def test_the_run_of_a_message_gets_no_second_permit(self) -> None:
        held_elsewhere("pool#1", task="videos.process", task_id="id-1")
        kind: dict[str, Any] = {"slots": 2, "task": "videos.process"}
        for options in ({"note": Note("n", "text", LONG)}, {"wait": PATIENCE}):
            refused = locks.try_acquire("pool", task_id="id-1", **kind, **options)
            assert not isinstance(refused, Lease)
            assert (refused.name, locks.is_locked("pool#2")) == ("pool#1", False)
            other = locks.try_acquire("pool", task_id="id-2", **kind)
            assert isinstance(other, Lease)
            other.release()


@pytest.mark.nightly
@pytest.mark.usefixtures("on_redis")
class TestEveryInstruction:
    @pytest.fixture(autouse=True)
    def of_permits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(interruptions, "ENGINE", ("django_tasklock/_engine/permits.py",))

    def test_of_a_wait_that_is_over_at_once(self) -> None:
        # Nobody releases it: the wait begins, and ends with the second lease.
        held_elsewhere("pool#1", 100 * LONG)

        def use_it(name: str) -> None:
            held_elsewhere("pool#2", ttl=0.01)
            with lock("pool", ttl=LONG, slots=2, wait=PATIENCE):
                pass

        assert at_every_instruction(use_it, "pool#2", "use_it", (GATE,)) > 150

    def test_of_a_wait_in_vain(self) -> None:
        held = [held_elsewhere(name, 100 * LONG) for name in PERMITS]

        def use_it(name: str) -> None:
            assert locks.acquire("pool", ttl=LONG, slots=2, wait=0.01) is None

        assert at_every_instruction(use_it, GATE) > 150
        assert [holder(name).token for name in PERMITS] == held
        # A hand-over passes them over.
        assert all(members("default", name) == unheard("default", name) for name in PERMITS)
