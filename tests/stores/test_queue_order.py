"""The wait queue's order, and which message counts for which question."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis

from django_tasklock import Lease, locks
from django_tasklock._values.owner import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores import stores
from django_tasklock.stores.base import CannotSubscribe, Grant, Question, Refusal
from django_tasklock.stores.redis.waiter import RedisWaiter
from tests.conftest import UseRedis
from tests.servers import RedisServer
from tests.steps import LONG, taken, waiting
from tests.waiting import until

BRIEF_SECONDS = 0.2
"""seconds; a lease that ends within a test"""


@pytest.fixture(autouse=True)
def on_own_redis(own_redis_server: RedisServer, use_redis: UseRedis) -> None:
    use_redis(own_redis_server.url)


@pytest.fixture
def server(own_redis_server: RedisServer) -> Any:
    return redis.Redis.from_url(own_redis_server.url)


def waits(task: str, ttl: float = LONG) -> RedisWaiter:
    """A waiter for video:1, known by its task's name."""
    store: Any = stores["default"]
    waiter: RedisWaiter = store.waiter(Question(["video:1"], new_token(), ttl, owner_record(task)))
    return waiter


def in_queue(task: str, ttl: float = LONG) -> RedisWaiter:
    """The same, after it has asked."""
    waiter = waits(task, ttl)
    assert isinstance(waiter.ask(), Refusal)
    return waiter


def queue() -> list[str | None]:
    return [owner.task for owner in locks.waiters("video:1")]


def taken_when_free() -> Lease:
    """After the end of the sleeper's lease."""
    until(lambda: not locks.is_locked("video:1"))
    return taken("video:1")


class TestNext:
    @pytest.mark.parametrize("leaves", [False, True], ids=["gets the lock", "leaves"])
    def test_who_is_the_next_after_the_first_is_told(self, leaves: bool) -> None:
        lease = taken("video:1")
        first, second, third = in_queue("first"), in_queue("second"), in_queue("third")
        assert (first.ahead, second.ahead, third.ahead) == (0, 1, 2)
        if leaves:
            first.quit()
        else:
            lease.release()
        assert isinstance(second.wait(LONG), Refusal)
        assert (second.ahead, third.ahead) == (0, 2)

    def test_who_listens_to_all_channels_keeps_no_dead_waiter_alive(self, server: Any) -> None:
        lease = taken("video:1")
        in_queue("dead")
        with server.pubsub() as monitor:
            monitor.psubscribe("*")
            until(lambda: monitor.get_message(timeout=1.0))
            server.client_kill_filter(_type="pubsub")
            until(lambda: not server.pubsub_channels(), "the end of the subscription")
            with server.pubsub() as another:
                another.psubscribe("*")
                until(lambda: another.get_message(timeout=1.0))
                assert lease.release()
                assert not locks.is_locked("video:1")

    def test_what_others_put_into_the_queue_is_no_waiter(self, server: Any) -> None:
        lease = taken("video:1")
        waiter = in_queue("first")
        for rubbish in (b"", b"x" * 50, b"x" * 44 + b"0:60000:"):
            server.zadd(stores["default"].key("video:1") + " queue", {rubbish: 0.5})
        assert queue() == ["first"]
        assert lease.release()
        assert isinstance(waiter.wait(LONG), Grant)
        assert waiting("video:1") == 0


class TestStaleMessage:
    def test_message_for_an_earlier_question_grants_nothing(self) -> None:
        """The waiter sleeps through the whole of its lease, asks again, and then reads it."""
        lease = taken("video:1")
        waiter = in_queue("first", BRIEF_SECONDS)
        lease.release()
        other = taken_when_free()
        assert isinstance(waiter.ask(), Refusal)
        assert waiter.wait(BRIEF_SECONDS) is None
        assert queue() == ["first"]
        other.release()
        grant = waiter.wait(LONG)
        assert isinstance(grant, Grant)
        assert (grant.fence or 0) > (other.fence or 0)

    def test_who_slept_through_its_turn_goes_to_the_end(self) -> None:
        """Or a waiter that is too slow for its own ttl would be handed the lock again and again."""
        lease = taken("video:1")
        first, _ = in_queue("first", BRIEF_SECONDS), in_queue("second")
        lease.release()
        until(lambda: not locks.is_locked("video:1"))
        assert isinstance(first.wait(LONG), Grant)
        in_queue("third")
        assert isinstance(first.ask(), Refusal)
        assert queue() == ["third", "first"]

    @pytest.mark.parametrize("cleared", [False, True])
    def test_hand_over_from_before_its_question_was_sent_again_grants_nothing(
        self, monkeypatch: pytest.MonkeyPatch, cleared: bool
    ) -> None:
        """The reply was lost, and meanwhile the lease that it was handed is over."""
        lease = taken("video:1")
        store: Any = stores["default"]
        ask, others = store.acquire_or_join, list[Lease]()

        def sent_again(*args: Any, **kwargs: Any) -> Any:
            monkeypatch.undo()
            ask(*args, **kwargs)
            lease.release()
            if cleared:
                assert locks.clear("video:1")
            others.append(taken_when_free())
            return ask(*args, **kwargs)

        monkeypatch.setattr(store, "acquire_or_join", sent_again)
        waiter = in_queue("first", LONG if cleared else BRIEF_SECONDS)
        assert waiter.wait(BRIEF_SECONDS) is None
        assert queue() == ["first"]
        others[0].release()
        assert isinstance(waiter.wait(LONG), Grant)
        assert queue() == []


class TestOrder:
    def test_positions_are_counted_and_not_taken_from_a_clock(self, server: Any) -> None:
        """A server's clock may step back, and newcomers would come first."""
        taken("video:1")
        for task in ("first", "second", "third"):
            in_queue(task)
        key = stores["default"].key("video:1") + " queue"
        assert [score for _, score in server.zrange(key, 0, -1, withscores=True)] == [1, 2, 3]

    def test_a_waiter_that_asks_again_keeps_its_position(self) -> None:
        taken("video:1")
        waiters = [in_queue(task) for task in ("first", "second", "third")]
        for waiter in reversed(waiters):
            assert isinstance(waiter.ask(), Refusal)
        assert queue() == ["first", "second", "third"]

    def test_a_waiter_whose_connection_was_cut_gets_its_position_again(self, server: Any) -> None:
        lease = taken("video:1")
        waiters = [in_queue(task) for task in ("first", "second", "third")]
        # When none of them listens in the moment of the release, as if they were dead
        server.client_kill_filter(_type="pubsub")
        until(lambda: not server.pubsub_channels(), "the end of the subscription")
        lease.release()
        assert not locks.is_locked("video:1")
        taken("video:1")
        until(lambda: waiters[0].wait(0.1) is None and waiters[0].cut, "noticing the cut")
        in_queue("newcomer")
        # Then each has its position before those who came later, whoever is back first
        for waiter in reversed(waiters):
            assert isinstance(waiter.ask(), Refusal)
        assert queue() == ["first", "second", "third", "newcomer"]

    def test_newcomers_do_not_overtake_after_the_server_lost_its_data(self, server: Any) -> None:
        taken("video:1")
        first, second = in_queue("first"), in_queue("second")
        server.flushdb()
        taken("video:1")
        assert isinstance(second.ask(), Refusal)
        in_queue("newcomer")
        assert isinstance(first.ask(), Refusal)
        assert queue() == ["first", "second", "newcomer"]

    def test_who_cannot_listen_any_more_is_not_in_the_queue(
        self, server: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It polls, and nobody else would remove it there when it is granted the lock."""
        lease = taken("video:1")
        first, second = in_queue("first"), in_queue("second")

        def refuses(_hearing: object) -> None:
            raise CannotSubscribe

        with monkeypatch.context() as full:
            full.setattr(first._listener, "subscribe", refuses)
            with pytest.raises(CannotSubscribe):
                first.ask()
            assert queue() == ["second"]
        assert isinstance(first.ask(), Refusal)
        assert queue() == ["first", "second"]
        lease.release()
        assert isinstance(first.wait(LONG), Grant)
        second.quit()


class TestGivingUp:
    """Who leaves the queue, and does not know whether it was handed the lock."""

    def test_what_is_handed_to_a_question_that_arrives_late_is_passed_on(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It was on its way when the waiter left the queue, and stands there for nobody."""
        lease = taken("video:1")
        store: Any = stores["default"]
        ask, on_its_way = store.acquire_or_join, list[Any]()
        for in_time in (True, False):
            waiter = waits("first")

            def interrupted(*args: Any) -> Any:
                if in_time:  # noqa: B023
                    ask(*args)
                on_its_way[:] = args
                raise KeyboardInterrupt

            monkeypatch.setattr(store, "acquire_or_join", interrupted)
            with pytest.raises(KeyboardInterrupt):
                waiter.ask()
            monkeypatch.undo()
            waiter.quit()
            assert queue() == []
        assert isinstance(ask(*on_its_way)[0], Refusal)
        second = in_queue("second")
        assert queue() == ["first", "second"]
        lease.release()
        until(lambda: isinstance(second.wait(1.0), Grant), "the second one's turn")

    def test_a_lock_that_is_held_and_left_is_not_released_by_a_late_message(self) -> None:
        """It asked again, and was granted what it had been handed just before."""
        lease = taken("video:1")
        waiter = in_queue("first")
        lease.release()
        grant = waiter.ask()
        assert isinstance(grant, Grant)
        waiter.quit()
        time.sleep(BRIEF_SECONDS)  # In which the message is read.
        info = locks.get("video:1")
        assert info is not None
        assert (info.owner.task, info.fence) == ("first", grant.fence)
