"""A lease is detached by one process and adopted by another."""

from __future__ import annotations

import base64
import json
import os
import signal
import time
from typing import Any

import pytest

from django_tasklock import (
    InvalidLockConfig,
    Lease,
    LeaseLost,
    StoreUnavailable,
    lock,
    locks,
    signals,
)
from django_tasklock.stores.base import BaseStore
from tests.agent import Agent
from tests.conftest import UseCaches
from tests.inside import COOLING, read_handle
from tests.interruptions import at_every_instruction
from tests.steps import (
    LONG,
    RENEWED,
    Meanwhile,
    holder,
    in_child,
    killed_in_child,
    renewed,
    sent,
    silent,
    taken,
    waiting,
)
from tests.waiting import until

NAME = "video:1"


def adopted(handle: str, **options: Any) -> Lease:
    lease = locks.adopt(handle, **options)
    assert lease is not None, f"{NAME} is held by {locks.get(NAME)}"
    return lease


class TestOnEveryStore:
    def test_another_holder_goes_on_under_the_same_lease(self, each_store: BaseStore) -> None:
        # Given a lease that is detached
        lease = taken(NAME)
        began = holder(NAME).acquired_at
        handle = lease.detach()

        # I expect this process not to hold it
        assert (lease.held, lease.remaining, lease.release(), lease.extend(LONG)) == (
            *(False, 0.0, False, False),
        )
        with pytest.raises(LeaseLost, match="it was detached"):
            lease.assert_held()
        assert repr(lease).endswith("detached>")

        # And nobody else to get the lock
        assert holder(NAME).detached
        assert holder(NAME).token == lease.token
        assert locks.acquire(NAME) is None

        # When it is adopted I expect the same lease, also when it is handed on once more
        other = adopted(handle)
        assert (other.name, other.token, other.fence, other.ttl) == (
            *(NAME, lease.token, lease.fence, LONG),
        )
        assert (other.held, holder(NAME).detached) == (True, False)
        assert holder(NAME).acquired_at == began
        third = adopted(other.detach(ttl=2 * LONG))
        assert (third.token, third.ttl) == (lease.token, LONG)
        assert locks.adopt(handle) is None
        assert third.extend(LONG)
        assert third.release()
        assert locks.get(NAME) is None
        assert locks.adopt(handle) is None

    def test_a_block_whose_lease_was_detached_ends_and_releases_nothing(
        self, store: BaseStore
    ) -> None:
        with lock(NAME, ttl=LONG) as lease:
            handle = lease.detach()
        with lock(NAME + "b", ttl=LONG, reentrant=True), lock(NAME + "b", reentrant=True) as inner:
            second = inner.detach()
        assert holder(NAME).detached
        for each in (handle, second):
            assert adopted(each).release()

    def test_a_handle_lasts_as_long_as_it_says(self, store: BaseStore) -> None:
        handle = taken(NAME, ttl=LONG, renew=True).detach(ttl=1.0)
        until(lambda: not locks.is_locked(NAME))
        assert locks.adopt(handle) is None
        assert taken(NAME).release()


class TestHandles:
    def test_every_part_of_one_is_needed(self, on_redis: None) -> None:
        not_text: list[Any] = [None, b"1.abc", 5, ["1.abc"]]
        for each in not_text:
            with pytest.raises(TypeError, match="a handle is the str that detach"):
                locks.adopt(each)
        handle = taken(NAME).detach()
        wrong = [handle[:end] for end in range(len(handle))]
        wrong += ["abc", "1.!!", "1.bnVsbA", "x" * 5000, "1." + "[" * 99]
        said = list(read_handle(handle))
        for at, part in [(0, ""), (1, "a b"), (2, "t"), (3, -1), (4, COOLING), (5, 0), (5, "5")]:
            text = json.dumps([*said[:at], part, *said[at + 1 :]]).encode()
            wrong.append("1." + base64.urlsafe_b64encode(text).decode().rstrip("="))
        for one in wrong:
            with pytest.raises(ValueError):
                locks.adopt(one)
        with pytest.raises(ValueError, match="of version 2, and only 1 is known"):
            locks.adopt("2" + handle[1:])
        with pytest.raises(InvalidLockConfig, match="nowhere"):
            locks.adopt(str(read_handle(handle)._replace(alias="nowhere")))
        assert adopted(handle).release()

    def test_a_store_that_cannot_says_so_and_the_lease_stays_held(
        self, use_caches: UseCaches
    ) -> None:
        use_caches({}, {"default": {"BACKEND": "tests.five_methods.FiveMethodStore"}})
        lease = taken(NAME)
        with pytest.raises(InvalidLockConfig, match="cannot be detached"):
            lease.detach()
        assert lease.release()


class TestOnRedis:
    @pytest.fixture(autouse=True)
    def _on_redis(self, on_redis: None) -> None:
        pass

    def test_it_outlives_its_process_and_ends_with_the_adopters(self) -> None:
        token, handle = in_child(lambda: [(lease := taken(NAME)).token, lease.detach()])
        assert locks.acquire(NAME, wait=0.2) is None

        def adopt_and_die() -> None:
            assert adopted(handle).token == token
            os.kill(os.getpid(), signal.SIGKILL)

        killed_in_child(adopt_and_die)
        assert holder(NAME).owner.alive() is False
        assert taken(NAME).release()

    def test_a_lease_that_is_not_held_cannot_be_detached(self) -> None:
        lease = taken(NAME)
        assert lease.release()
        with pytest.raises(LeaseLost, match="it was released"):
            lease.detach()
        lost = taken(NAME)
        locks.clear(NAME)
        with sent(signals.lock_lost) as losses, pytest.raises(LeaseLost, match="no longer had it"):
            lost.detach()
        assert len(losses) == 1

    def test_nobody_renews_a_detached_lease_and_the_adopter_renews_his(self) -> None:
        lease = taken(NAME, ttl=RENEWED, renew=True)
        handle = lease.detach(ttl=LONG)
        assert not lease.renew
        other = adopted(handle, renew=True)
        assert (holder(NAME).ttl or 0) <= RENEWED
        renewed(other, 3)
        assert other.release()

    def test_who_waits_does_not_end_what_another_process_has_adopted(self) -> None:
        """The waiter has seen the process that detached it as the holder, and that one died."""
        with Agent() as agent:
            agent.ask("enter", name=NAME, ttl=LONG)
            waiter = Meanwhile(lambda: taken(NAME, wait=LONG))
            until(lambda: waiting(NAME) == 1)
            lease = adopted(agent.ask("detach"))
        # It has looked for the dead owner more than once by then.
        time.sleep(1.5)
        assert waiter.is_alive()
        assert lease.held
        assert holder(NAME).token == lease.token
        assert lease.release()
        assert waiter.result().held


class TestTrouble:
    @pytest.fixture(autouse=True)
    def _on_redis(self, on_redis: None) -> None:
        pass

    def test_an_adopt_without_an_answer_ends_nobody_elses_lease(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        handle = taken(NAME).detach()
        lease = adopted(handle)
        with monkeypatch.context() as outage:
            silent(outage, "rewrite")
            with pytest.raises(StoreUnavailable):
                locks.adopt(handle)
        assert locks.adopt(handle) is None
        assert lease.held
        assert lease.release()

    @pytest.mark.nightly
    @pytest.mark.slow
    @pytest.mark.parametrize("adopts", [False, True])
    def test_an_interruption_at_any_instruction_leaves_nothing_that_outlasts_the_ttl(
        self, adopts: bool
    ) -> None:
        def hand_on(name: str) -> None:
            lease = locks.acquire(name, ttl=0.5)
            if lease is not None:
                handle = lease.detach()
                if adopts:
                    other = locks.adopt(handle, renew=True)
                    if other is not None:
                        other.release()

        assert at_every_instruction(hand_on, NAME, "hand_on") > 200
