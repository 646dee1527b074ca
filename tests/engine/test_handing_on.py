"""A lease is detached by one process and adopted by another."""

from __future__ import annotations

import base64
import json
import os
import signal
import threading
from typing import Any

import pytest
from django.core.cache import caches
from django.db import connections

from django_tasklock import (
    InvalidLockConfig,
    Lease,
    LeaseLost,
    StoreUnavailable,
    lock,
    locks,
    signals,
)
from django_tasklock._engine.renewal import renewal
from django_tasklock._values.handle import read_handle
from django_tasklock._values.owner_record import COOLING, MARK, owner_record
from django_tasklock.stores import stores
from django_tasklock.stores.base import BaseStore
from tests.conftest import UseCaches, UseRedis
from tests.five_methods import FiveMethodStore
from tests.interruptions import Interrupt, at_every_instruction
from tests.servers import RedisServer
from tests.steps import (
    LONG,
    RENEWED,
    Meanwhile,
    all_of,
    holder,
    in_child,
    killed_in_child,
    sent,
    taken,
    waiting,
)
from tests.waiting import until

NAME = "video:1"


@pytest.fixture
def on_redis(use_redis: UseRedis) -> None:
    use_redis()


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
        assert not lease.held
        assert lease.remaining == 0.0
        assert lease.release() is False
        assert lease.extend(LONG) is False
        with pytest.raises(LeaseLost, match="it was detached"):
            lease.assert_held()
        assert repr(lease).endswith("detached>")

        # And nobody else to get the lock
        assert holder(NAME).detached
        assert holder(NAME).token == lease.token
        assert locks.acquire(NAME) is None

        # When it is adopted I expect the same lease
        other = adopted(handle)
        assert (other.name, other.token, other.fence, other.ttl) == (
            (NAME, lease.token, lease.fence, LONG)
        )
        assert (other.held, holder(NAME).detached) == (True, False)
        assert holder(NAME).acquired_at == began
        assert other.extend(LONG)
        assert locks.adopt(handle) is None
        assert other.held
        assert other.release()
        assert locks.get(NAME) is None
        assert locks.adopt(handle) is None

    def test_of_many_with_one_handle_one_adopts_it(
        self, store: BaseStore, request: pytest.FixtureRequest
    ) -> None:
        if "file-based" in request.node.callspec.id:
            pytest.skip("its add is a look and then a write")
        handle = taken(NAME).detach()

        def adopt() -> Lease | None:
            try:
                return locks.adopt(handle)
            finally:
                caches.close_all()
                connections.close_all()

        leases = [lease for lease in all_of(*[adopt] * 8) if lease is not None]
        assert len(leases) == 1
        assert leases[0].held
        assert leases[0].release()

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
        lease = taken(NAME, ttl=LONG, renew=True)
        handle = lease.detach(ttl=1.0)
        until(lambda: not locks.is_locked(NAME))
        assert locks.adopt(handle) is None
        assert taken(NAME).release()

    def test_who_waits_hears_of_an_adopter_and_takes_over_when_that_one_dies(
        self, store: BaseStore
    ) -> None:
        lease = taken(NAME)
        waiter = Meanwhile(lambda: locks.acquire(NAME, wait=LONG, ttl=LONG))
        until(lambda: locks.waiters(NAME) or not store.supports_waiting)
        gone = in_child(owner_record)
        assert store.rewrite(NAME, lease.token, LONG, {**gone, "ttl": LONG, "renew": False})
        # Much earlier than the end of any lease.
        got = waiter.result(within=15)
        assert got is not None
        assert got.release()

    def test_it_can_be_detached_again(self, store: BaseStore) -> None:
        lease = taken(NAME)
        first = lease.detach()
        other = adopted(first, renew=True)
        second = other.detach(ttl=2 * LONG)
        assert locks.adopt(first) is None
        third = adopted(second)
        assert (third.token, third.ttl) == (lease.token, LONG)
        assert third.release()


class TestHandles:
    def test_they_are_short_and_plain(self, on_redis: None) -> None:
        handle = taken("v" * 200).detach()
        assert handle.isascii()
        assert handle.isprintable()
        assert not set(handle) & set(" ,;\"'\\")
        assert len(handle) < 600
        assert json.loads(json.dumps({"x": handle}))["x"] == handle
        assert read_handle(handle).name == "v" * 200
        assert adopted(taken("é" * 200).detach()).release()

    @pytest.mark.parametrize("wrong", [None, b"1.abc", 5, ["1.abc"]])
    def test_what_is_no_text_is_a_type_error(self, on_redis: None, wrong: Any) -> None:
        with pytest.raises(TypeError, match="a handle is the str that detach"):
            locks.adopt(wrong)

    @pytest.mark.parametrize(
        "wrong", ["", "1.", "abc", "1.!!", "1.bnVsbA", "x" * 5000, "1." + "[" * 99]
    )
    def test_what_is_no_handle_is_a_value_error(self, on_redis: None, wrong: str) -> None:
        with pytest.raises(ValueError, match="no handle"):
            locks.adopt(wrong)

    def test_every_part_of_one_is_needed(self, on_redis: None) -> None:
        handle = taken(NAME).detach()
        for end in range(len(handle)):
            with pytest.raises(ValueError):
                locks.adopt(handle[:end])
        said = list(read_handle(handle))
        for at, wrong in [(0, ""), (1, "a b"), (2, "t"), (3, -1), (4, COOLING), (5, 0), (5, "5")]:
            other = [*said[:at], wrong, *said[at + 1 :]]
            text = base64.urlsafe_b64encode(json.dumps(other).encode()).decode().rstrip("=")
            with pytest.raises(ValueError):
                locks.adopt(f"1.{text}")
        with pytest.raises(ValueError, match="of version 2, and only 1 is known"):
            locks.adopt("2" + handle[1:])
        assert adopted(handle).release()

    def test_one_says_its_store(self, use_redis: UseRedis) -> None:
        use_redis()
        lease = taken(NAME)
        said = read_handle(lease.detach())
        with pytest.raises(InvalidLockConfig, match="nowhere"):
            locks.adopt(str(said._replace(alias="nowhere")))
        assert adopted(str(said)).store == "default"

    def test_a_store_that_cannot_says_so_and_the_lease_stays_held(
        self, use_caches: UseCaches
    ) -> None:
        use_caches(
            {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}},
            {"default": {"BACKEND": f"{FiveMethodStore.__module__}.FiveMethodStore"}},
        )
        lease = taken(NAME)
        with pytest.raises(InvalidLockConfig, match="cannot be detached"):
            lease.detach()
        assert lease.release()


class TestOnRedis:
    @pytest.fixture(autouse=True)
    def _on_redis(self, on_redis: None) -> None:
        pass

    def test_it_outlives_its_process_and_is_adopted_in_another(self) -> None:
        token, handle = in_child(lambda: [(lease := taken(NAME)).token, lease.detach()])
        assert locks.acquire(NAME, wait=0.2) is None
        assert adopted(handle).token == token

    def test_of_many_processes_one_adopts_it(self) -> None:
        handle = taken(NAME).detach()
        won = all_of(*[lambda: in_child(lambda: locks.adopt(handle) is not None)] * 6)
        assert won.count(True) == 1

    def test_an_adopted_lease_ends_with_its_process(self) -> None:
        handle = taken(NAME).detach()

        def adopt_and_die() -> None:
            adopted(handle)
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
        assert in_child(lambda: _says(taken("video:2").detach, lost)) == "LeaseLost"

    @pytest.mark.parametrize("ttl", [0, -1, "5", True])
    def test_a_wrong_ttl_leaves_the_lease_held(self, ttl: Any) -> None:
        lease = taken(NAME)
        with pytest.raises((TypeError, ValueError), match="ttl"):
            lease.detach(ttl=ttl)
        assert lease.release()

    def test_signals_say_that_it_was_acquired_and_released_once(self) -> None:
        with sent(signals.lock_acquired) as began, sent(signals.lock_released) as ended:
            handle = taken(NAME).detach()
            assert ended == []
            assert adopted(handle).release()
        assert (len(began), len(ended)) == (1, 1)

    def test_nobody_renews_a_detached_lease_and_the_adopter_renews_his(self) -> None:
        lease = taken(NAME, ttl=RENEWED, renew=True)
        handle = lease.detach(ttl=LONG)
        assert not lease.renew
        other = adopted(handle, renew=True)
        left = holder(NAME).ttl or 0
        assert left <= RENEWED
        ends = other._deadline
        until(lambda: not other.held or other._deadline > ends + RENEWED)
        assert other.held
        assert other.release()

    def test_a_cooling_lock_is_not_adopted(self) -> None:
        lease = taken(NAME)
        said = read_handle(lease.detach())
        store = stores["default"]
        assert store.rewrite(NAME, lease.token, LONG, {**owner_record(), MARK: COOLING})
        assert locks.adopt(str(said)) is None
        assert holder(NAME).cooling

    def test_who_waits_does_not_end_what_another_process_has_adopted(self) -> None:
        """The waiter has seen the process that detached it as the holder, and that one died."""
        reading, writing = os.pipe()
        done, finished = os.pipe()

        def view() -> None:
            lease = taken(NAME)
            os.write(writing, b"held")
            os.read(done, 1)
            os.write(writing, lease.detach().encode())
            os.kill(os.getpid(), signal.SIGKILL)

        process = Meanwhile(lambda: killed_in_child(view))
        assert os.read(reading, 99) == b"held"
        waiter = Meanwhile(lambda: locks.acquire(NAME, wait=LONG, ttl=LONG))
        until(lambda: waiting(NAME) == 1)
        os.write(finished, b"!")
        handle = os.read(reading, 999).decode()
        process.result()
        lease = adopted(handle)
        # It has looked for the dead owner more than once by then.
        threading.Event().wait(1.5)
        assert waiter.is_alive()
        assert lease.held
        assert holder(NAME).token == lease.token
        assert lease.release()
        assert waiter.result() is not None


def _says(_: Any, lease: Lease) -> str:
    """A child owns none of its parent's leases."""
    try:
        lease.detach()
    except Exception as error:
        return type(error).__name__
    return "detached"


class TestInterruptions:
    @pytest.fixture(autouse=True)
    def _on_redis(self, on_redis: None) -> None:
        pass

    @pytest.mark.parametrize("when", ["before", "after"])
    def test_an_interrupted_detach_gives_the_lease_up(
        self, monkeypatch: pytest.MonkeyPatch, when: str
    ) -> None:
        store, lease = stores["default"], taken(NAME)
        rewrite = type(store).rewrite

        def cut_short(*args: Any, **kwargs: Any) -> Any:
            if when == "after":
                rewrite(*args, **kwargs)
            raise Interrupt

        monkeypatch.setattr(type(store), "rewrite", cut_short)
        with pytest.raises(Interrupt):
            lease.detach(ttl=2 * LONG)
        assert not lease.held
        until(lambda: not locks.is_locked(NAME))
        assert lease.release() is True

    def test_a_call_of_adopt_that_is_made_again_gets_the_lease(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its reply was lost: the store has this process as the holder, which does not know."""
        store, handle = stores["default"], taken(NAME).detach()
        rewrite = type(store).rewrite

        def silent(*args: Any, **kwargs: Any) -> Any:
            rewrite(*args, **kwargs)
            raise StoreUnavailable("default", "no reply")

        with monkeypatch.context() as patched:
            patched.setattr(type(store), "rewrite", silent)
            with pytest.raises(StoreUnavailable):
                locks.adopt(handle)
        # Nobody else, and nobody of this process who asks with another record.
        assert in_child(lambda: locks.adopt(handle) is None)
        leases = [lease for lease in all_of(*[lambda: locks.adopt(handle)] * 4) if lease]
        assert len(leases) == 1
        assert leases[0].release()

    def test_one_that_is_refused_ends_nobody_elses_lease(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store, handle = stores["default"], taken(NAME).detach()
        lease = adopted(handle)

        def silent(*args: Any, **kwargs: Any) -> Any:
            raise StoreUnavailable("default", "no reply")

        with monkeypatch.context() as patched:
            patched.setattr(type(store), "rewrite", silent)
            with pytest.raises(StoreUnavailable):
                locks.adopt(handle)
        assert locks.adopt(handle) is None
        assert not [entry for entry in renewal.entries() if getattr(entry, "token", 0)]
        assert lease.held
        assert lease.release()

    def test_a_silent_store_gives_the_lease_up(
        self, use_redis: UseRedis, own_redis_server: RedisServer
    ) -> None:
        use_redis(own_redis_server.url, SOCKET_TIMEOUT=0.3)
        lease = taken(NAME)
        own_redis_server.pause()
        try:
            with pytest.raises(StoreUnavailable):
                lease.detach()
            assert not lease.held
        finally:
            own_redis_server.resume()
        until(lambda: not locks.is_locked(NAME))


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("adopts", [False, True])
def test_an_interruption_at_any_instruction_leaves_nothing_that_outlasts_the_ttl(
    on_redis: None, adopts: bool
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


def test_a_permit_that_is_handed_on_is_still_that_permit(on_redis: None) -> None:
    first, second = locks.acquire("pool", slots=2), locks.acquire("pool", slots=2)
    assert first is not None
    assert second is not None
    adopted = locks.adopt(second.detach())
    assert adopted is not None
    info = locks.get("pool#2")
    assert info is not None
    assert (adopted.slot, info.slot) == (2, 2)
    assert locks.acquire("pool", slots=2) is None
    assert adopted.release()
    assert first.release()
