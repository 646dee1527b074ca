"""``lock([...])`` and ``locks.acquire_all``: several locks, all or none."""

from __future__ import annotations

import contextlib
import dis
import gc
import random
import sys
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from django_tasklock import (
    Lease,
    LeaseLost,
    LockNotAcquired,
    LockService,
    StoreUnavailable,
    lock,
    locks,
    signals,
)
from django_tasklock._engine.all_or_none import ROUNDS_AT_ONCE
from django_tasklock.stores import stores
from django_tasklock.stores.base import BaseStore
from tests.agent import Agent
from tests.conftest import UseCaches, UseRedis
from tests.greenlets import LIBRARIES, run_in_greenlets
from tests.interruptions import (
    EVERY,
    assert_over,
    at_every_instruction,
    before_first,
    interrupted,
)
from tests.proxy import CutProxy
from tests.servers import RedisServer
from tests.steps import LONG, RENEWED, Meanwhile, Traffic, holder, sent, taken, waiting
from tests.store_cases import redis_cache
from tests.waiting import PATIENCE, until

SEATS = ["seat:3", "seat:1", "seat:2"]


@pytest.fixture
def on_redis(use_redis: UseRedis) -> None:
    use_redis()


def all_taken(names: list[str], *, ttl: float = LONG, **options: Any) -> list[Lease]:
    leases = locks.acquire_all(names, ttl=ttl, **options)
    assert leases is not None, f"some of {names} is held"
    return leases


def held() -> list[str]:
    return [name for name in sorted(SEATS) if locks.is_locked(name)]


def names_given_to(verb: str) -> list[str]:
    """The names that this method of the store gets, from now on."""
    store: Any = stores["default"]
    method, names = getattr(store, verb), []

    def noted(name: str, *rest: Any) -> Any:
        names.append(name)
        return method(name, *rest)

    setattr(store, verb, noted)
    return names


def test_every_store(each_store: BaseStore) -> None:
    with lock(SEATS, ttl=LONG) as leases:
        assert [lease.name for lease in leases] == SEATS
        assert held() == sorted(SEATS)
        assert all(holder(lease.name).token == lease.token for lease in leases)
        assert locks.acquire_all(["seat:0", "seat:2"], ttl=LONG) is None
        assert not locks.is_locked("seat:0")
    assert held() == []
    assert not any(lease.held for lease in leases)
    again = all_taken(["seat:2", "seat:0"])
    if each_store.supports_fence:
        earlier = max(lease.fence or 0 for lease in leases)
        assert {lease.fence for lease in again} == {lease.fence for lease in again if lease.fence}
        assert all((lease.fence or 0) > earlier for lease in again)
    assert [lease.release() for lease in again] == [True, True]


@pytest.mark.usefixtures("on_redis")
class TestTaking:
    def test_in_sorted_order_and_back(self) -> None:
        with (
            sent(signals.lock_acquired) as acquired,
            sent(signals.lock_released) as released,
            lock(SEATS, ttl=LONG),
        ):
            pass
        assert [told["lease"].name for told in acquired] == sorted(SEATS)
        assert [told["lease"].name for told in released] == sorted(SEATS, reverse=True)

    def test_one_round_trip_for_all(self, redis_server: RedisServer) -> None:
        for lease in all_taken(["other", "another"]):
            lease.release()
        traffic = Traffic(redis_server)
        names = [f"seat:{number}" for number in range(100)]
        leases = all_taken(names)
        assert traffic.scripts() == 1
        assert [lease.name for lease in leases] == names
        assert len({lease.fence for lease in leases}) == 100
        assert {info.token for info in locks.list("seat:")} == {lease.token for lease in leases}
        for lease in leases:
            assert lease.release()

    def test_one_that_waits_in_the_queue_comes_first(self) -> None:
        """Given a holder that dies, and somebody waits: several are not taken past the waiter."""
        dead = taken("seat:2", ttl=4.0)
        waits = Meanwhile(lambda: locks.acquire("seat:2", ttl=LONG, wait=LONG))
        until(lambda: waiting("seat:2") == 1)
        until(lambda: not dead.held and locks.acquire_all(SEATS, ttl=LONG) is None)
        won = waits.result()
        assert won is not None
        assert held() == ["seat:2"]
        assert holder("seat:2").token == won.token

    def test_refused_first_one_costs_one_round_trip(self, redis_server: RedisServer) -> None:
        other = taken("seat:1")
        assert locks.acquire_all(SEATS, ttl=LONG) is None
        traffic = Traffic(redis_server)
        assert locks.acquire_all(SEATS, ttl=LONG) is None
        assert traffic.scripts() == 1
        assert other.release()

    def test_held_one_is_named_with_its_holder(self) -> None:
        other = taken("seat:2")
        with (
            sent(signals.lock_released) as released,
            pytest.raises(LockNotAcquired) as refused,
            lock(SEATS, ttl=LONG),
        ):
            pytest.fail("the block ran")  # pragma: no cover
        assert refused.value.name == "seat:2"
        assert refused.value.holder is not None
        assert refused.value.holder.token == other.token
        assert [told["lease"].name for told in released] == ["seat:1"]
        assert held() == ["seat:2"]

    def test_what_was_taken_is_released_in_reverse_order(self) -> None:
        taken("seat:3")
        with sent(signals.lock_released) as released:
            assert locks.acquire_all(SEATS, ttl=LONG) is None
        assert [told["lease"].name for told in released] == ["seat:2", "seat:1"]

    def test_name_that_comes_twice_has_one_lease(self) -> None:
        with lock(["seat:2", "seat:1", "seat:2"], ttl=LONG) as leases:
            assert [lease.name for lease in leases] == ["seat:2", "seat:1", "seat:2"]
            assert leases[0] is leases[2]
        assert held() == []

    def test_options_hold_for_each(self) -> None:
        plain, renewed = all_taken(["a", "b"], ttl=7.0), all_taken(["c", "d"], ttl=8.0, renew=True)
        assert [(lease.ttl, lease.renew) for lease in plain] == [(7.0, False)] * 2
        assert [(lease.ttl, lease.renew) for lease in renewed] == [(8.0, True)] * 2
        for lease in plain + renewed:
            lease.release()

    def test_other_store(self, use_caches: UseCaches, redis_server: RedisServer) -> None:
        use_caches(
            {"default": redis_cache(redis_server.url), "other": redis_cache(redis_server.url)},
            {"default": {}, "other": {"CACHE": "other"}},
        )
        with lock(SEATS, store="other") as leases:
            assert {lease.store for lease in leases} == {"other"}
            assert held() == []
            assert locks.using("other").count() == 3
            assert locks.using("other").acquire_all(SEATS) is None

    def test_list_that_is_changed_later_changes_nothing(self) -> None:
        names = list(SEATS)
        block = lock(names)
        names.clear()
        with block:
            assert held() == sorted(SEATS)

    @pytest.mark.parametrize("names", [[], ()])
    def test_no_names(self, names: Any) -> None:
        with pytest.raises(ValueError, match="no name in the list"):
            lock(names)
        with pytest.raises(ValueError, match="no name in the list"):
            locks.acquire_all(names)

    def test_wrong_arguments_are_said_before_anything_is_taken(
        self, redis_server: RedisServer
    ) -> None:
        taken("other").release()
        traffic = Traffic(redis_server)
        wrong: Any
        for wrong in ("seat:1", {"seat:1"}, iter(SEATS), None):
            with pytest.raises(TypeError):
                locks.acquire_all(wrong)
        for wrong in (7, ["seat:1", 7], {"seat:1"}):
            with pytest.raises(TypeError):
                lock(wrong)
        for names in (["a", ""], ["a", "b c"], ["a", "b" * 201]):
            with pytest.raises(ValueError, match="name"):
                locks.acquire_all(names)
            with pytest.raises(ValueError, match="name"), lock(names):
                pytest.fail("the block ran")  # pragma: no cover
        for wrong in ({"ttl": 0}, {"wait": -1}):
            with pytest.raises(ValueError):
                locks.acquire_all(SEATS, **wrong)
        assert traffic.scripts() == 0


@pytest.mark.usefixtures("on_redis")
class TestBlock:
    def test_one_lost_lease_is_said_at_the_end_and_the_others_are_released(self) -> None:
        for number in range(3):
            with pytest.raises(LeaseLost) as lost, lock(SEATS, ttl=LONG):
                assert locks.clear(SEATS[number])
            assert lost.value.name == SEATS[number]
            assert held() == []

    def test_what_the_block_raised_comes_first(self) -> None:
        def boom() -> None:
            assert locks.clear("seat:2")
            raise KeyError("boom")

        with pytest.raises(KeyError), lock(SEATS, ttl=LONG):
            boom()
        assert held() == []

    def test_lease_that_was_released_in_the_block_is_no_loss(self) -> None:
        with lock(SEATS, ttl=LONG) as leases:
            assert leases[1].release()
            assert held() == ["seat:2", "seat:3"]
        assert held() == []

    def test_leases_of_a_block_are_renewed(self) -> None:
        with lock(SEATS, ttl=RENEWED) as leases:
            ends = [lease._deadline for lease in leases]
            until(
                lambda: all(
                    lease._deadline > end + RENEWED for lease, end in zip(leases, ends, strict=True)
                )
            )
            assert all(lease.held for lease in leases)

    def test_stack_by_hand_and_another_thread(self) -> None:
        shared = lock(SEATS, ttl=LONG)
        with contextlib.ExitStack() as stack:
            assert [lease.name for lease in stack.enter_context(shared)] == SEATS
            moved = stack.pop_all()
        Meanwhile(moved.close).result()
        assert held() == []
        shared.__enter__()
        assert held() == sorted(SEATS)
        Meanwhile(lambda: shared.__exit__(None, None, None)).result()
        assert held() == []
        with pytest.raises(RuntimeError, match="left already, or never entered"):
            shared.__exit__(None, None, None)

    def test_leases_that_nobody_can_leave_any_more_are_given_up(self) -> None:
        leases = lock(SEATS, ttl=LONG).__enter__()
        until(lambda: held() == [])
        assert not any(lease.held for lease in leases)

    def test_which_leases_are_left_by_hand_is_not_guessed(self) -> None:
        for reentrant in (False, True):
            shared = lock(SEATS, ttl=LONG, reentrant=reentrant)
            lost = Meanwhile(shared.__enter__).result()
            for lease in lost:
                assert locks.clear(lease.name)
            leases = Meanwhile(shared.__enter__).result()
            with pytest.raises(RuntimeError, match=r"Use one lock\(\) for each use"):
                shared.__exit__(None, None, None)
            assert [(lease.held, lease.renew) for lease in leases] == [(True, False)] * 3
            for lease in leases:
                assert lease.release()

    def test_decorator_fills_a_template_for_each(self) -> None:
        @lock(["account:{source}", "account:{target}"], ttl=LONG)
        def transfer(source: int, target: int) -> list[str]:
            return sorted(info.name for info in locks.list("account:"))

        assert transfer(2, 1) == ["account:1", "account:2"]
        assert transfer(target=7, source=7) == ["account:7"]
        taken("account:1")
        with pytest.raises(LockNotAcquired) as refused:
            transfer(1, 0)
        assert refused.value.name == "account:1"
        assert not locks.is_locked("account:0")
        assert transfer.__name__ == "transfer"

    def test_decorator_that_skips(self) -> None:
        @lock(["account:{source}", "account:{target}"], ttl=LONG, on_conflict="skip")
        def transfer(source: int, target: int) -> str:
            return "done"

        assert transfer(1, 2) == "done"
        other = taken("account:2")
        assert transfer(1, 2) is None
        assert not locks.is_locked("account:1")
        assert other.release()
        assert transfer(1, 2) == "done"


@pytest.mark.usefixtures("on_redis")
class TestReentrant:
    def test_names_that_are_held_are_shared_and_the_others_taken(self) -> None:
        with lock("seat:2", ttl=LONG, reentrant=True) as outer:
            with lock(SEATS, ttl=5, reentrant=True) as leases:
                assert leases[2] is outer
                assert [lease.ttl for lease in leases] == [5, 5, LONG]
                with lock(SEATS, reentrant=True) as inner, lock("seat:1", reentrant=True) as one:
                    assert inner == leases
                    assert one is leases[1]
                assert held() == sorted(SEATS)
            assert held() == ["seat:2"]
            assert outer.held
        assert held() == []

    def test_shared_lease_keeps_its_own_end(self) -> None:
        with lock("seat:1", ttl=5, renew=False, reentrant=True) as outer:
            until(lambda: outer.remaining < 4.6)
            ends = outer._deadline
            with lock(SEATS, ttl=5, renew=False, reentrant=True):
                assert outer._deadline == ends

    def test_refusal_leaves_the_outer_block_what_it_has(self) -> None:
        taken("seat:3")
        with lock("seat:2", ttl=LONG, reentrant=True) as outer:
            with pytest.raises(LockNotAcquired), lock(SEATS, reentrant=True):
                pytest.fail("the block ran")  # pragma: no cover
            assert held() == ["seat:2", "seat:3"]
            assert outer.held

    def test_recursive_call(self) -> None:
        @lock(["a:{depth}", "all"], ttl=LONG, reentrant=True)
        def count(depth: int) -> int:
            return depth + count(depth - 1) if depth else locks.count()

        assert count(3) == 3 + 2 + 1 + 5
        assert locks.count() == 0

    def test_shared_lease_that_is_lost_while_the_others_are_waited_for(self) -> None:
        other = taken("seat:3")

        def work() -> None:
            with lock("seat:1", ttl=LONG, reentrant=True) as outer:
                started.append(outer)
                with lock(SEATS, ttl=LONG, wait=PATIENCE, reentrant=True):
                    pytest.fail("the block ran")  # pragma: no cover

        started: list[Lease] = []
        thread = Meanwhile(work)
        until(lambda: waiting("seat:3") == 1)
        assert locks.clear("seat:1")
        assert started[0].extend() is False
        assert other.release()
        with pytest.raises(LeaseLost):
            thread.result()
        until(lambda: held() == [])


@pytest.mark.usefixtures("on_redis")
class TestWaiting:
    def test_leases_do_not_end_while_the_next_is_waited_for(self) -> None:
        other = taken("seat:3")
        thread = Meanwhile(lambda: all_taken(SEATS, ttl=RENEWED, wait=None))
        until(lambda: waiting("seat:3") == 1)
        tokens = {holder("seat:1").token, holder("seat:2").token}
        threading.Event().wait(RENEWED + 1)
        assert {holder("seat:1").token, holder("seat:2").token} == tokens
        assert other.release()
        leases = thread.result()
        assert {lease.token for lease in leases} > tokens
        assert not any(lease.renew for lease in leases)
        # They are not renewed any more.
        until(lambda: not any(lease.held for lease in leases))

    def test_all_have_their_ttl_when_the_last_is_taken(self) -> None:
        """Also where the wait was too short for a renewal."""
        other = taken("seat:3")
        ttl, wait = 20.0, 5.0
        extended = names_given_to("extend")
        thread = Meanwhile(lambda: all_taken(SEATS, ttl=ttl, wait=wait))
        until(lambda: waiting("seat:3") == 1)
        until(lambda: (holder("seat:2").ttl or 0) < ttl * 0.94)
        assert other.release()
        leases = thread.result()
        assert extended == ["seat:1", "seat:2"]
        for lease in leases:
            assert ttl * 0.9 < lease.remaining <= ttl
            assert lease.release()

    def test_lease_that_is_lost_meanwhile_is_taken_again(self) -> None:
        other = taken("seat:3")
        with sent(signals.lock_lost) as lost:
            thread = Meanwhile(lambda: all_taken(SEATS, ttl=RENEWED, wait=None, renew=True))
            until(lambda: waiting("seat:3") == 1)
            first = holder("seat:1").token
            assert locks.clear("seat:1")
            thief = taken("seat:1")
            until(lambda: [told["lease"].token for told in lost] == [first], "the renewal")
        assert other.release()
        until(lambda: waiting("seat:1") == 1)
        assert held() == ["seat:1"], "nothing is held while the first of them is waited for"
        assert thief.release()
        leases = thread.result()
        assert first not in {lease.token for lease in leases}
        assert all(holder(lease.name).token == lease.token for lease in leases)
        assert [lease.release() for lease in leases] == [True] * 3

    def test_whoever_waits_for_ever_takes_them_however_often_one_is_lost(self) -> None:
        rounds: list[Lease] = []

        def clear(lease: Lease, **rest: Any) -> None:
            if lease.name == "seat:1":
                rounds.append(lease)
            # Given a lease that is lost in each of the first rounds
            if lease.name == "seat:3" and len(rounds) <= ROUNDS_AT_ONCE:
                assert locks.clear("seat:1")
                assert rounds[-1].extend() is False

        signals.lock_acquired.connect(clear)
        try:
            leases = all_taken(SEATS, ttl=LONG, wait=None)
        finally:
            signals.lock_acquired.disconnect(clear)
        assert len(rounds) == ROUNDS_AT_ONCE + 1
        assert held() == sorted(SEATS)
        assert [lease.release() for lease in leases] == [True] * 3

    def test_lease_that_is_lost_when_the_time_is_over_is_a_refusal(self) -> None:
        """Where nobody had to wait, there is no second round."""

        def clear(lease: Lease, **rest: Any) -> None:
            if lease.name == "seat:3":
                assert locks.clear("seat:1")
                assert leases[0].extend() is False
            leases.append(lease)

        leases: list[Lease] = []
        signals.lock_acquired.connect(clear)
        try:
            with pytest.raises(LockNotAcquired) as refused, lock(SEATS, ttl=LONG):
                pytest.fail("the block ran")  # pragma: no cover
        finally:
            signals.lock_acquired.disconnect(clear)
        assert (refused.value.name, refused.value.holder) == ("seat:1", None)
        assert held() == []

    @pytest.mark.slow
    def test_one_deadline_for_all(self) -> None:
        first, second = taken("seat:1"), taken("seat:2")
        with sent(signals.lock_contended) as contended:
            thread = Meanwhile(lambda: locks.acquire_all(SEATS, ttl=LONG, wait=7))
            until(lambda: waiting("seat:1") == 1)
            threading.Event().wait(3)
            assert first.release()
            assert thread.result() is None
        (told,) = contended
        assert told["name"] == "seat:2"
        assert told["waited"] < 6.5
        assert held() == ["seat:2"]
        assert second.release()

    def test_deadline_counts_while_others_come_and_go(self) -> None:
        taken("seat:2")
        assert locks.acquire_all(SEATS, ttl=LONG, wait=0.05) is None
        assert held() == ["seat:2"]

    def test_sixteen_threads_with_any_subsets_and_in_any_order(self) -> None:
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        names = [f"seat:{number}" for number in range(6)]
        inside: dict[str, list[int]] = {name: [] for name in names}
        rounds = [0] * 16

        def work(number: int) -> None:
            chance = random.Random(seed + number)
            for _ in range(12):
                chosen = chance.sample(names, chance.randint(1, 4))
                with lock(chosen, ttl=LONG, wait=None) as leases:
                    assert [lease.name for lease in leases] == chosen
                    for name in chosen:
                        inside[name].append(number)
                    for name in chosen:
                        assert inside[name] == [number], "two at once"
                    for name in chosen:
                        inside[name].pop()
                rounds[number] += 1

        threads = [Meanwhile(lambda number=number: work(number)) for number in range(16)]  # type: ignore[misc]
        for thread in threads:
            thread.result(within=120)
        assert rounds == [12] * 16
        assert locks.count() == 0


GREENLETS = """
import random
from django_tasklock import lock, locks

seed = random.randrange(2**32)
print("seed", seed, file=sys.stderr)
names = [f"seat:{number}" for number in range(5)]
inside = {name: [] for name in names}

def work(number):
    chance = random.Random(seed + number)
    for _ in range(6):
        chosen = chance.sample(names, 3)
        with lock(chosen, ttl=60, wait=None, reentrant=True):
            for name in chosen:
                inside[name].append(number)
            with lock(chosen[::-1], reentrant=True):
                sleep(0.001)
            for name in chosen:
                assert inside[name] == [number], inside
                inside[name].pop()
    return 1

print(sum(map(join, [spawn(work, number) for number in range(16)])), locks.count())
"""


@pytest.mark.slow
@pytest.mark.usefixtures("on_redis")
@pytest.mark.parametrize("library", LIBRARIES)
def test_sixteen_greenlets(library: str) -> None:
    assert run_in_greenlets(GREENLETS, library) == ["16", "0"]


class TestOutage:
    @pytest.fixture(autouse=True)
    def through_a_proxy(self, use_redis: UseRedis, cut_proxy: CutProxy) -> None:
        use_redis(cut_proxy.url, SOCKET_TIMEOUT=10.0, SOCKET_CONNECT_TIMEOUT=10.0)

    @pytest.fixture
    def one_by_one(self) -> None:
        """The store is asked for each, as one that has no other way."""
        store: Any = stores["default"]
        store.acquire_all = partial(BaseStore.acquire_all, store)

    @pytest.fixture
    def cut_after_two(self, cut_proxy: CutProxy) -> Iterator[None]:
        def cut(lease: Lease, **rest: Any) -> None:
            if lease.name == "seat:2":
                cut_proxy.refuse()
                cut_proxy.cut()

        signals.lock_acquired.connect(cut)
        yield
        signals.lock_acquired.disconnect(cut)

    @pytest.mark.usefixtures("one_by_one")
    def test_midway_nothing_stays_held(self, cut_proxy: CutProxy, cut_after_two: None) -> None:
        with pytest.raises(StoreUnavailable), lock(SEATS, ttl=LONG):
            pytest.fail("the block ran")  # pragma: no cover
        cut_proxy.accept()
        until(lambda: held() == [])

    @pytest.mark.usefixtures("one_by_one")
    def test_midway_of_a_call(self, cut_proxy: CutProxy, cut_after_two: None) -> None:
        with pytest.raises(StoreUnavailable):
            locks.acquire_all(SEATS, ttl=LONG)
        cut_proxy.accept()
        until(lambda: held() == [])

    def test_reply_for_all_that_is_lost_leaves_nothing_held(self, cut_proxy: CutProxy) -> None:
        taken("other").release()
        cut_proxy.drop_reply(b"seat:2", times=10)
        with pytest.raises(StoreUnavailable):
            locks.acquire_all(SEATS, ttl=LONG)
        assert cut_proxy.lost_replies > 0
        cut_proxy.drop_reply(times=0)
        until(lambda: held() == [])

    def test_reply_for_all_that_is_lost_once_is_asked_for_again(
        self, cut_proxy: CutProxy, redis_server: RedisServer
    ) -> None:
        for lease in all_taken(["other", "another"]):
            lease.release()
        cut_proxy.drop_reply(b"seat:2")
        traffic = Traffic(redis_server)
        leases = all_taken(SEATS)
        assert cut_proxy.lost_replies == 1
        assert traffic.scripts() == 2, "the server has granted them to these values"
        assert [holder(lease.name).fence for lease in leases] == [lease.fence for lease in leases]
        assert [lease.release() for lease in leases] == [True] * 3

    @pytest.mark.parametrize("name", sorted(SEATS))
    def test_reply_for_all_that_is_lost_before_another_takes_one_leaves_the_others_free(
        self,
        use_caches: UseCaches,
        cut_proxy: CutProxy,
        redis_server: RedisServer,
        monkeypatch: pytest.MonkeyPatch,
        name: str,
    ) -> None:
        """Granted to nobody who knows: when it is asked for again, it is a refusal."""
        through_proxy = redis_cache(cut_proxy.url)
        use_caches(
            {"default": through_proxy, "direct": through_proxy | {"LOCATION": redis_server.url}},
            {"default": {}, "direct": {"CACHE": "direct"}},
        )
        for lease in all_taken(["other", "another"]):
            lease.release()
        direct, lost = locks.using("direct"), cut_proxy._lost_one

        # Given an operator who clears one of the locks, which another takes, as the reply is lost
        def take_one() -> None:
            assert direct.clear(name)
            assert direct.acquire(name, ttl=LONG) is not None
            lost()

        monkeypatch.setattr(cut_proxy, "_lost_one", take_one)
        cut_proxy.drop_reply(b"seat:2")

        # I expect a refusal, after which only that one is held
        assert locks.acquire_all(SEATS, ttl=LONG) is None
        assert cut_proxy.lost_replies == 1
        assert held() == [name]

    def test_at_the_end_it_is_met_once(self, cut_proxy: CutProxy) -> None:
        """Not once for each lease: each question might hang as long as the client waits."""
        asked: list[list[str]] = []

        def work() -> None:
            with lock(SEATS, ttl=LONG, renew=False):
                cut_proxy.refuse()
                cut_proxy.cut()
                asked.append(names_given_to("release"))

        with pytest.raises(StoreUnavailable):
            work()
        assert asked == [["seat:3"]]
        cut_proxy.accept()
        until(lambda: held() == [])

    def test_after_a_refusal_it_is_still_a_refusal(self, cut_proxy: CutProxy) -> None:
        other = taken("seat:3")

        def cut(**rest: Any) -> None:
            cut_proxy.refuse()
            cut_proxy.cut()

        signals.lock_contended.connect(cut)
        try:
            assert locks.acquire_all(SEATS, ttl=LONG) is None
        finally:
            signals.lock_contended.disconnect(cut)
        cut_proxy.accept()
        until(lambda: held() == ["seat:3"])
        assert other.release()


@pytest.mark.nightly
@pytest.mark.usefixtures("on_redis")
class TestEveryInstruction:
    NAMES = ("seat:1", "seat:2")

    @pytest.mark.parametrize("renew", [True, False], ids=["renewed", "not renewed"])
    @pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "plain"])
    def test_of_a_block(self, renew: bool, reentrant: bool) -> None:
        def use_it(name: str) -> None:
            with lock(self.NAMES, ttl=LONG, renew=renew, reentrant=reentrant):
                pass

        assert at_every_instruction(use_it, "seat:1", "use_it", ("seat:2",)) > 200

    def test_of_a_decorated_call(self) -> None:
        @lock(self.NAMES, ttl=LONG)
        def use_it() -> None: ...

        assert at_every_instruction(lambda name: use_it(), "seat:1", "use_it", ("seat:2",)) > 200

    def test_of_a_refusal(self) -> None:
        other = taken("seat:3")

        def use_it(name: str) -> None:
            assert locks.acquire_all([*self.NAMES, "seat:3"], ttl=LONG) is None

        assert at_every_instruction(use_it, "seat:1", "use_it", ("seat:2",)) > 200
        assert other.held
        assert holder("seat:3").token == other.token

    @pytest.mark.parametrize("renew", [True, False], ids=["renewed", "not renewed"])
    def test_of_a_call(self, renew: bool) -> None:
        def acquire() -> list[Lease]:
            leases = locks.acquire_all(self.NAMES, ttl=LONG, renew=renew)
            sys.settrace(None)
            assert leases is not None
            return leases

        def returns(where: str) -> bool:
            function, _, offset = where.partition("+")
            code = LockService.acquire_all.__code__.co_code
            return function == "acquire_all" and "RETURN" in dis.opname[code[int(offset)]]

        number, missed = before_first(), 0
        while missed < 3:
            number += EVERY
            with interrupted(number) as where:
                for lease in acquire():
                    lease.release()
            missed = 0 if where else missed + 1
            if where and returns(where[0]):
                # There no signal is looked for.
                for name in self.NAMES:
                    locks.clear(name)
            assert_over("seat:1", where, "seat:2")
        assert number > 200

    def test_of_a_block_inside_leaves_the_outer_one_what_it_has(self) -> None:
        def use_it() -> None:
            with lock(self.NAMES, ttl=LONG, reentrant=True):
                pass

        number, missed = before_first(), 0
        while missed < 3:
            number += EVERY
            with lock("seat:2", ttl=LONG, reentrant=True) as outer:
                with interrupted(number, "use_it") as where:
                    use_it()
                missed = 0 if where else missed + 1
                assert outer.held, where
                assert holder("seat:2").token == outer.token, where
            assert not locks.is_locked("seat:2"), where
            assert_over("seat:1", where)
        assert number > 150


@pytest.mark.usefixtures("on_redis")
def test_all_locks_of_a_killed_process_are_taken_over() -> None:
    with Agent() as agent:
        assert agent.ask("acquire_all", names=SEATS, ttl=LONG) == 3
        assert locks.acquire_all(SEATS) is None
        agent.kill()
        for lease in all_taken(SEATS):
            assert lease.release()
    gc.collect()
