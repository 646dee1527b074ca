"""An exception that comes between any two instructions, as from the handler of a signal, leaves no
lock behind."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from celery.exceptions import WorkerShutdown

from django_tasklock import Lease, LeaseLost, StoreUnavailable, lock, locks, signals
from django_tasklock._engine.renewal import renewal
from django_tasklock._values import clock
from django_tasklock._values.owner_record import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores import stores
from django_tasklock.stores.base import Grant
from django_tasklock.stores.redis import RedisStore
from tests.conftest import UseRedis
from tests.interruptions import (
    EVERY,
    Exit,
    Interrupt,
    assert_over,
    at_every_instruction,
    before_first,
    interrupted,
)
from tests.mailroom import Mailroom, mailroom
from tests.proxy import CutProxy
from tests.servers import RedisServer
from tests.steps import LONG, Meanwhile, sent, taken
from tests.waiting import until


@pytest.fixture(autouse=True)
def on_redis(use_redis: UseRedis) -> None:
    use_redis()


@pytest.fixture(params=[True, False], ids=["renewed", "not renewed"])
def renew(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


class TestEveryInstruction:
    def test_of_a_block(self, renew: bool) -> None:
        def use_it(name: str) -> None:
            with lock(name, ttl=LONG, renew=renew):
                pass

        assert at_every_instruction(use_it, "video:1", "use_it") > 100

    def test_of_a_block_of_a_shared_lock(self, renew: bool) -> None:
        shared = lock("video:1", ttl=LONG, renew=renew)

        def use_it(name: str) -> None:
            with shared:
                pass

        assert at_every_instruction(use_it, "video:1", "use_it") > 100

    def test_of_a_decorated_call(self, renew: bool) -> None:
        @lock("video:1", ttl=LONG, renew=renew)
        def use_it() -> None: ...

        assert at_every_instruction(lambda name: use_it(), "video:1", "use_it") > 100

    def test_of_a_release(self, renew: bool) -> None:
        """It is still referred to."""
        leases: list[Lease] = []

        def prepared(name: str) -> None:
            lease = taken(name, ttl=LONG, renew=renew)
            leases.append(lease)

        number, missed = 0, 0
        while missed < 3:
            number += 1
            prepared("video:1")
            with interrupted(number) as where:
                leases[-1].release()
            missed = 0 if where else missed + 1
            assert_over("video:1", where)
            assert leases[-1].held is False
        assert number > 25

    def test_of_an_acquire(self, renew: bool) -> None:
        def acquire(name: str) -> None:
            lease = locks.acquire(name, ttl=LONG, renew=renew)
            sys.settrace(None)
            assert lease is not None
            lease.release()

        number, missed = before_first(), 0
        while missed < 3:
            number += EVERY
            with interrupted(number) as where:
                acquire("video:1")
            missed = 0 if where else missed + 1
            if where and where[0].startswith(("acquire+", "_taken+")):
                # Its last instructions: there no signal is looked for.
                locks.clear("video:1")
            assert_over("video:1", where)
        assert number > 100


class OfTheWorker(WorkerShutdown):
    """What a worker raises to end a process."""


class TestRunOfATask:
    @pytest.fixture
    def room(self, on_redis: None, redis_server: RedisServer) -> Iterator[Mailroom]:
        with mailroom(redis_server.url) as room:
            yield room

    @pytest.mark.parametrize("error", [pytest.param(Interrupt, marks=pytest.mark.nightly), Exit])
    def test_its_beginning(self, room: Mailroom, renew: bool, error: type[BaseException]) -> None:
        def begun(task: Any, job: Any) -> None:
            sys.settrace(None)

        room.task(begun, acks_late=True, lock_ttl=LONG, lock_renew=renew).delay(1)
        message = room.take()
        number, missed = before_first(), 0
        while missed < 3:
            number += EVERY
            with interrupted(number, error=error) as where:
                room.deliver(message)
            missed = 0 if where else missed + 1
            assert_over("job:1", where)
        assert number > 100


class TestReleaseThatFailed:
    @pytest.fixture(autouse=True)
    def through_a_proxy(self, use_redis: UseRedis, cut_proxy: CutProxy) -> None:
        use_redis(cut_proxy.url, SOCKET_TIMEOUT=10.0, SOCKET_CONNECT_TIMEOUT=10.0)

    def fail(self, lease: Lease, proxy: CutProxy) -> None:
        proxy.refuse()
        proxy.cut()
        with pytest.raises(StoreUnavailable):
            lease.release()

    def test_lease_is_not_held_any_more(self, cut_proxy: CutProxy) -> None:
        lease = taken("video:1", ttl=LONG, renew=True)
        self.fail(lease, cut_proxy)
        assert (lease.held, lease.remaining, lease.extend()) == (False, 0.0, False)
        with pytest.raises(LeaseLost, match="its release was interrupted"):
            lease.assert_held()
        cut_proxy.accept()

    def test_lock_is_free_once_the_store_answers(self, cut_proxy: CutProxy) -> None:
        with sent(signals.lock_released) as released, sent(signals.lock_lost) as lost:
            lease = taken("video:1", ttl=LONG)
            self.fail(lease, cut_proxy)
            cut_proxy.accept()
            until(lambda: not locks.is_locked("video:1"))
            until(lambda: [told["lease"] for told in released] == [lease])
        assert lost == []

    def test_later_call_says_once_that_it_was_ours(self, cut_proxy: CutProxy) -> None:
        lease = taken("video:1", ttl=LONG)
        self.fail(lease, cut_proxy)
        cut_proxy.accept()
        until(lambda: not locks.is_locked("video:1"))
        until(lambda: "released" in repr(lease))
        assert (lease.release(), lease.release()) == (True, False)

    def test_later_call_need_not_wait_for_that(self, cut_proxy: CutProxy) -> None:
        lease = taken("video:1", ttl=LONG)
        for _ in range(5):
            self.fail(lease, cut_proxy)
        cut_proxy.accept()
        assert lease.release() is True
        assert not locks.is_locked("video:1")

    def test_later_call_after_its_end_is_false(self, cut_proxy: CutProxy) -> None:
        lease = taken("video:1", ttl=2.0)
        self.fail(lease, cut_proxy)
        until(lambda: lease._deadline < clock.now())
        assert lease.release() is False
        cut_proxy.accept()

    def test_block_gives_it_up_as_well(self, cut_proxy: CutProxy) -> None:
        def use_it() -> None:
            with lock("video:1", ttl=LONG):
                cut_proxy.refuse()
                cut_proxy.cut()

        with pytest.raises(StoreUnavailable):
            use_it()
        cut_proxy.accept()
        until(lambda: not locks.is_locked("video:1"))


class SlowReply(RedisStore):
    """The renewal thread gets the reply to its release when the test allows it."""

    released, go_on = threading.Event(), threading.Event()
    fail = True

    def release(self, name: str, token: str, proof: Any = None) -> bool:
        if SlowReply.fail:
            SlowReply.fail = False
            raise StoreUnavailable(self.alias, "as the test wants it")
        return super().release(name, token, proof)

    def abandon(self, name: str, token: str) -> bool:
        was_held = super().abandon(name, token)
        SlowReply.released.set()
        assert SlowReply.go_on.wait(LONG)
        return was_held


def test_release_that_is_tried_again_knows_what_the_renewal_thread_has_released(
    use_redis: UseRedis,
) -> None:
    """Also before that thread has its reply."""
    use_redis(tasklock={"BACKEND": f"{__name__}.SlowReply"})
    lease = taken("video:1", ttl=LONG)
    with pytest.raises(StoreUnavailable):
        lease.release()
    assert SlowReply.released.wait(LONG)
    again = Meanwhile(lease.release)
    until(lambda: not locks.is_locked("video:1"))
    again.join(0.2)
    SlowReply.go_on.set()
    assert again.result() is True
    assert lease.release() is False


def test_question_that_arrives_after_its_caller_was_interrupted_leaves_no_lock() -> None:
    """It was overtaken by the first look whether the lease was granted."""
    token, store = new_token(), stores["default"]
    renewal.abandon("video:1", token, LONG, store)
    entries = renewal.of(store).entries
    until(lambda: all(entry.delay > 0 for entry in entries()), "the first look")
    assert isinstance(store.acquire("video:1", token, LONG, owner_record()), Grant)
    until(lambda: not locks.is_locked("video:1"), "another look")


def test_abandoned_lease_is_looked_for_a_few_times_only() -> None:
    store = stores["default"]
    renewal.abandon("video:1", new_token(), LONG, store)
    until(lambda: not renewal.of(store).entries(), "the last look")
