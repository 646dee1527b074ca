"""``slots=N`` on Redis: what it asks of the server, the order, the dead, and interruptions."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from django.core.management import CommandError

from django_tasklock import Lease, StoreUnavailable, lock, locks, signals
from django_tasklock._engine import gate as gate_module
from django_tasklock._engine import permits as permits_module
from django_tasklock._engine.permit_queue import leave_queues
from django_tasklock._values import clock
from django_tasklock._values.owner_record import owner_record
from django_tasklock._values.slots import gate_name
from django_tasklock._values.tokens import new_token
from django_tasklock.stores import stores
from django_tasklock.stores.base import Grant, Note, Refusal
from django_tasklock.stores.redis.any_of import ACQUIRE_ANY
from tests.agent import Agent
from tests.cli.test_command import run
from tests.conftest import UseRedis
from tests.engine.test_slots import GATE, nothing_is_left, permit, waiter
from tests.interruptions import at_every_instruction
from tests.proxy import CutProxy
from tests.servers import RedisServer
from tests.steps import LONG, Meanwhile, Traffic, holder, members, sent, taken, unheard, waiting
from tests.waiting import PATIENCE, until

ELSEWHERE = {"boot": "another-machine"}
PERMITS = ("pool#1", "pool#2")


@pytest.fixture(autouse=True)
def on_redis(use_redis: UseRedis) -> None:
    use_redis()


def held_elsewhere(name: str, ttl: float = LONG, **fields: Any) -> str:
    """A lease of a process on another machine, which never releases it."""
    token = new_token()
    record = {**owner_record(), "slots": 2, **ELSEWHERE, **fields}
    assert isinstance(stores["default"].acquire(name, token, ttl, record), Grant)
    return token


class TestRoundTrips:
    def test_a_free_permit_costs_one_and_so_does_its_release(
        self, own_redis_server: RedisServer, use_redis: UseRedis
    ) -> None:
        use_redis(own_redis_server.url)
        for lease in (permit(), permit(), permit(3)):  # Now the server knows the scripts.
            lease.release()
        first, traffic = permit(5), Traffic(own_redis_server)
        second = permit(5)
        assert traffic.scripts() == 1
        assert second.slot == 2
        traffic.restart()
        assert second.release()
        assert traffic.scripts() == 1
        assert first.release()

    def test_so_does_a_refusal(self, own_redis_server: RedisServer, use_redis: UseRedis) -> None:
        use_redis(own_redis_server.url)
        leases = [permit(), permit()]
        assert locks.acquire("pool", slots=2) is None
        traffic = Traffic(own_redis_server)
        assert locks.acquire("pool", slots=2) is None
        assert traffic.scripts() == 1
        assert [lease.release() for lease in leases] == [True, True]

    def test_a_permit_whose_grant_was_lost_on_the_way_is_taken_once(
        self, cut_proxy: CutProxy, use_redis: UseRedis
    ) -> None:
        use_redis(cut_proxy.url)
        for lease in (permit(), permit()):  # Now the server knows the scripts.
            lease.release()
        cut_proxy.drop_reply(ACQUIRE_ANY.sha)
        lease = permit()
        assert cut_proxy.lost_replies == 1
        assert locks.count("pool") == 1
        assert permit().slot == 2
        assert lease.held
        assert lease.slot == 1

    def test_a_permit_is_its_own_waiters_who_slept_through_the_end_of_its_lease(self) -> None:
        """Somebody waits for the lock of one permit, as for any other."""
        store: Any = stores["default"]
        held_elsewhere("pool#1", 3)
        token = new_token()
        asking = store.waiter("pool#1", token, LONG, owner_record())
        assert isinstance(asking.ask(), Refusal)
        until(lambda: store.get("pool#1") is None)
        lease = permit()
        assert lease.slot == 2
        assert holder("pool#1").token == token
        grant = asking.leave()
        assert isinstance(grant, Grant)
        assert store.release("pool#1", token, grant.proof)

    def test_the_first_waiter_asks_nothing_while_nothing_happens(
        self, own_redis_server: RedisServer, use_redis: UseRedis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(gate_module, "LONGEST_GATE_SECONDS", LONG)
        use_redis(own_redis_server.url)
        first, second = permit(), permit()
        waits = waiter(1)
        until(lambda: waiting("pool#1") == waiting("pool#2") == 1, "the waiter in both queues")
        traffic, turns = Traffic(own_redis_server), 40
        time.sleep(turns * permits_module.TURN_SECONDS)
        assert traffic.scripts() == 0
        assert second.release()
        won = waits.result()
        assert [won.slot, won.release(), first.release()] == [2, True, True]


class TestOrder:
    def test_waiters_of_all_permits_are_served_in_the_order_in_which_they_came(self) -> None:
        leases = [permit(), permit()]
        queue = [waiter(position + 1, slots=2 + position % 2) for position in range(5)]
        assert locks.acquire("pool", slots=2) is None
        order = [1, 0, 0, 1, 0]
        for thread, which in zip(queue, order, strict=True):
            # Where the third permit is free, the next waiter may take that one.
            leases.pop(which % len(leases)).release()
            leases.append(thread.result())
        assert all(lease.held for lease in leases)
        for lease in leases:
            lease.release()
        nothing_is_left(1, 2, 3)

    def test_who_leaves_the_queue_is_passed_over(self) -> None:
        leases = [permit(), permit()]
        first = Meanwhile(lambda: locks.acquire("pool", slots=2, wait=6.0))
        until(lambda: len(locks.waiters("pool")) == 1, "the first waiter")
        second = waiter(2)
        assert first.result() is None
        leases[0].release()
        won = second.result()
        assert won.slot == 1
        leases[1].release()
        won.release()
        nothing_is_left()

    def test_the_queues_of_the_permits_have_the_first_waiter_alone(self) -> None:
        leases = [permit(), permit()]
        queue = [waiter(1), waiter(2), waiter(3)]
        until(lambda: waiting("pool#1") == waiting("pool#2") == 1, "the waiter in both queues")
        assert len(locks.waiters("pool")) == 3
        assert {owner.waits_for for owner in locks.waiters("pool")} == {"pool"}
        for thread in queue:
            leases.pop(0).release()
            leases.append(thread.result())
        for lease in leases:
            lease.release()
        for name in PERMITS:
            assert members("default", name) == []
        nothing_is_left()


class TestTheDead:
    def test_the_permit_of_a_dead_process_is_taken_at_once(self) -> None:
        with Agent() as agent:
            assert agent.ask("acquire", name="pool", slots=2, ttl=LONG)
            lease = permit()
            agent.kill()
        again = locks.acquire("pool", slots=2, ttl=LONG)
        assert again is not None
        assert again.slot == 1
        assert [lease.release(), again.release()] == [True, True]

    def test_who_waits_takes_over_from_any_dead_holder(self) -> None:
        with Agent() as agent:
            lease = permit()
            assert agent.ask("acquire", name="pool", slots=2, ttl=LONG)
            waits = waiter(1)
            with sent(signals.lock_cleared) as cleared:
                agent.kill()
                won = waits.result()
        assert won.slot == 2
        assert [about["name"] for about in cleared] == ["pool#2"]
        assert [lease.release(), won.release()] == [True, True]

    def test_the_next_waiter_becomes_the_first_when_that_one_dies(self) -> None:
        leases = [permit(), permit()]
        with Agent() as agent:
            agent.ask("wait_meanwhile", name="pool", slots=2, ttl=LONG, wait=None)
            until(lambda: locks.is_locked(GATE), "the waiter")
            waits = waiter(2)
            agent.kill()
            leases[1].release()
            won = waits.result()
        assert won.slot == 2
        assert [leases[0].release(), won.release()] == [True, True]
        nothing_is_left()

    def test_a_newcomer_gets_past_a_dead_waiter(self) -> None:
        leases = [permit(), permit()]
        with Agent() as agent:
            agent.ask("wait_meanwhile", name="pool", slots=2, ttl=LONG, wait=None)
            until(lambda: locks.is_locked(GATE), "the waiter")
            agent.kill()
        # The server may not have seen the end of its connection yet, and hand the permit to it.
        leases[0].release()
        assert permit().slot == 1

    def test_a_waiter_that_died_elsewhere_is_in_the_way_for_its_short_lease_only(self) -> None:
        held_elsewhere(GATE, ttl=4.0)
        assert locks.acquire("pool", slots=2) is None
        assert permit(wait=PATIENCE).slot == 1


class TestTrouble:
    def test_a_waiter_who_lost_the_gate_waits_on(self) -> None:
        leases = [permit(), permit()]
        waits = waiter(1)
        before = holder(GATE).token
        assert locks.clear(GATE)
        until(
            lambda: (info := locks.get(GATE)) is not None and info.token != before,
            "its next turn",
            within=2 * gate_module.LONGEST_GATE_SECONDS,
        )
        leases[0].release()
        won = waits.result()
        assert [won.slot, won.release(), leases[1].release()] == [1, True, True]
        nothing_is_left()

    def test_a_cut_connection_loses_no_hand_over(
        self, cut_proxy: CutProxy, use_redis: UseRedis
    ) -> None:
        use_redis(cut_proxy.url)
        leases = [permit(), permit()]
        waits = waiter(1)
        until(lambda: waiting("pool#1") == waiting("pool#2") == 1, "the waiter in both queues")
        cut_proxy.cut()
        leases[1].release()
        won = waits.result()
        assert [won.slot, won.release(), leases[0].release()] == [2, True, True]

    def test_an_outage_is_no_refusal(
        self, own_redis_server: RedisServer, use_redis: UseRedis
    ) -> None:
        use_redis(own_redis_server.url)
        _held = [permit(), permit()]
        waits = Meanwhile(lambda: locks.acquire("pool", slots=2, wait=None))
        until(lambda: waiting("pool#1") == waiting("pool#2") == 1, "the waiter in both queues")
        own_redis_server.kill()
        with pytest.raises(StoreUnavailable):
            waits.result()
        with pytest.raises(StoreUnavailable):
            locks.acquire("pool", slots=2)

    def test_an_outage_at_the_end_of_a_wait_is_no_refusal_and_takes_no_time_for_each_permit(
        self, own_redis_server: RedisServer, use_redis: UseRedis
    ) -> None:
        use_redis(own_redis_server.url, SOCKET_TIMEOUT=1.0)
        assert len([permit(20) for _ in range(20)]) == 20
        waits = Meanwhile(lambda: locks.acquire("pool", slots=20, ttl=LONG, wait=8))
        until(lambda: waiting("pool#20") == 1, "the first waiter")
        began = time.monotonic()
        own_redis_server.pause()
        try:
            with pytest.raises(StoreUnavailable):
                waits.result()
        finally:
            own_redis_server.resume()
        assert time.monotonic() - began < 8 + 20 * 1.0 / 2

    def test_a_permit_that_was_handed_over_long_ago_is_not_held(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its lease was over when the waiter heard of it."""
        leases, store = [permit(), permit()], stores["default"]
        leave = leave_queues

        def late(queues: Any, **options: Any) -> Any:
            assert leave(queues, **options) is None
            assert leases.pop().release()
            token = queues[0]._token
            grant = store.acquire("pool#2", token, LONG, owner_record())
            assert isinstance(grant, Grant)
            return "pool#2", grant, clock.now() - 2 * LONG, None

        monkeypatch.setattr(permits_module, "leave_queues", late)
        won = locks.acquire("pool", slots=2, ttl=LONG, wait=0.3)
        assert won is not None
        assert won.held
        assert [won.release(), leases[0].release()] == [True, True]

    def test_the_run_of_a_message_gets_no_second_permit(self) -> None:
        held_elsewhere("pool#1", task="videos.process", task_id="id-1")
        won = locks.try_acquire(
            "pool", slots=2, task="videos.process", task_id="id-1", note=Note("n", "text", LONG)
        )
        assert not isinstance(won, Lease)
        assert won.name == "pool#1"
        assert not locks.is_locked("pool#2")
        other = locks.try_acquire("pool", slots=2, task="videos.process", task_id="id-2")
        assert isinstance(other, Lease)
        again = locks.try_acquire(
            "pool", slots=2, task="videos.process", task_id="id-1", wait=PATIENCE
        )
        assert not isinstance(again, Lease)
        assert again.name == "pool#1"


@pytest.mark.nightly
class TestEveryInstruction:
    ENGINE = ("_engine/permits", "_engine/permit_queue", "_engine/gate")

    @pytest.fixture(autouse=True)
    def also_here(self, monkeypatch: pytest.MonkeyPatch) -> None:
        own = tuple(f"django_tasklock/{name}.py" for name in self.ENGINE)
        from tests import interruptions

        monkeypatch.setattr(interruptions, "ENGINE", own)

    def test_of_a_free_permit(self) -> None:
        def use_it(name: str) -> None:
            with lock("pool", ttl=LONG, slots=2):
                pass

        assert at_every_instruction(use_it, "pool#1", "use_it", ("pool#2", GATE)) > 50

    @pytest.mark.slow
    def test_of_a_wait_that_is_over_at_once(self) -> None:
        # Nobody releases it: the wait begins, and ends with the second lease.
        held_elsewhere("pool#1")

        def use_it(name: str) -> None:
            held_elsewhere("pool#2", ttl=0.01)
            with lock("pool", ttl=LONG, slots=2, wait=PATIENCE):
                pass

        assert at_every_instruction(use_it, "pool#2", "use_it", (GATE,)) > 150

    @pytest.mark.slow
    def test_of_a_wait_in_vain(self) -> None:
        held = [held_elsewhere("pool#1"), held_elsewhere("pool#2")]

        def use_it(name: str) -> None:
            assert locks.acquire("pool", ttl=LONG, slots=2, wait=0.01) is None

        assert at_every_instruction(use_it, GATE) > 150
        for name, token in zip(PERMITS, held, strict=True):
            assert holder(name).token == token
            # A hand-over passes them over.
            assert members("default", name) == unheard("default", name)


class TestWhatOperatorsSee:
    def test_show_says_which_permits_are_held_and_who_waits(self) -> None:
        with pytest.raises(CommandError, match="pool is not locked"):
            run("show", "pool")
        taken("pool#7")  # A plain lock.
        leases = [permit(), permit()]
        said = run("show", "pool")
        assert "pool itself is not locked" in said
        assert "pool#1" in said
        assert "pool#2" in said
        assert "pool#7" not in said
        waits = waiter(1)
        shown = json.loads(run("show", "pool", "--format", "json"))
        assert [row["slot"] for row in shown["permits"]] == [1, 2]
        assert [owner["waits_for"] for owner in shown["waiting"]] == ["pool"]
        assert "POSITION" in run("show", "pool")
        assert re.search("slot: +2\n", run("show", "pool#2"))
        assert re.search("waits_for: +pool\n", run("show", GATE))
        listed = {row["name"]: row["slot"] for row in json.loads(run("list", "--format", "json"))}
        assert listed == {"pool#1": 1, "pool#2": 2, "pool#7": None}
        leases[0].release()
        waits.result().release()
        leases[1].release()

    def test_a_name_that_leaves_no_room_for_a_gate_has_one_all_the_same(self) -> None:
        name = "x" * 190
        assert len(gate_name(name)) <= 200
        leases = [taken(name, slots=2), taken(name, slots=2)]
        waits = Meanwhile(lambda: taken(name, slots=2, wait=None))
        until(lambda: len(locks.waiters(name)) == 1, "the waiter")
        assert re.search(f"waits_for: +{name}\n", run("show", gate_name(name)))
        leases[0].release()
        assert waits.result().release()
        assert leases[1].release()
