"""The wait queue's order, and which message counts for which question."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis

from django_tasklock import Lease, locks
from django_tasklock._values import clock
from django_tasklock._values.owner import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores import stores
from django_tasklock.stores.base import Grant, Refusal
from django_tasklock.stores.redis.waiter import RedisWaiter
from tests.conftest import UseCaches, UseRedis
from tests.proxy import CutProxy
from tests.servers import RedisServer
from tests.steps import LONG, Meanwhile, members, taken, unheard, waiting
from tests.store_cases import redis_cache
from tests.waiting import until

BRIEF_SECONDS = 0.2
"""seconds; a lease that ends within a test"""


@pytest.fixture(autouse=True)
def on_own_redis(own_redis_server: RedisServer, use_redis: UseRedis) -> None:
    use_redis(own_redis_server.url)


@pytest.fixture
def server(own_redis_server: RedisServer) -> Any:
    return redis.Redis.from_url(own_redis_server.url)


def in_queue(task: str, ttl: float = LONG) -> RedisWaiter:
    """A waiter of video:1, known by its task's name, who has asked and stands in the queue."""
    store: Any = stores["default"]
    waiter: RedisWaiter = store.waiter("video:1", new_token(), ttl, owner_record(task))
    assert isinstance(waiter.ask(), Refusal)
    return waiter


def queue() -> list[str | None]:
    return [owner.task for owner in locks.waiters("video:1")]


def scores(server: Any) -> list[float]:
    store: Any = stores["default"]
    found = server.zrange(store.key("video:1") + " queue", 0, -1, withscores=True)
    return [score for _, score in found]


class TestNext:
    def test_who_asks_first_is_the_next(self) -> None:
        taken("video:1")
        first, second = in_queue("first"), in_queue("second")
        assert (first.ahead, second.ahead) == (0, 1)
        assert isinstance(second.ask(), Refusal)
        assert second.ahead == 1
        first.quit()
        second.quit()

    @pytest.mark.parametrize("leaves", [False, True], ids=["gets the lock", "leaves"])
    def test_who_is_the_next_after_the_first_is_told(self, leaves: bool) -> None:
        lease = taken("video:1")
        first, second, third = in_queue("first"), in_queue("second"), in_queue("third")
        if leaves:
            first.quit()
        else:
            lease.release()
        assert isinstance(second.wait(LONG), Refusal)
        assert (second.ahead, third.ahead) == (0, 2)
        second.quit()
        third.quit()


class TestStaleMessage:
    def test_message_for_an_earlier_question_grants_nothing(self) -> None:
        """The waiter sleeps through the whole of its lease, asks again, and then reads it."""
        lease = taken("video:1")
        waiter = in_queue("first", BRIEF_SECONDS)
        lease.release()
        until(lambda: not locks.is_locked("video:1"), "the end of the sleeper's lease")
        other = taken("video:1")
        assert isinstance(waiter.ask(), Refusal)
        assert waiter.wait(BRIEF_SECONDS) is None
        assert queue() == ["first"]
        other.release()
        grant = waiter.wait(LONG)
        assert isinstance(grant, Grant)
        assert (grant.fence or 0) > (other.fence or 0)

    def test_grant_that_is_read_late_is_known_to_be_over(self) -> None:
        lease = taken("video:1")
        waiter = in_queue("first", BRIEF_SECONDS)
        lease.release()
        until(lambda: not locks.is_locked("video:1"), "the end of the sleeper's lease")
        grant = waiter.wait(LONG)
        assert isinstance(grant, Grant)
        assert grant.started is not None
        assert grant.started + BRIEF_SECONDS <= clock.now()

    def test_who_slept_through_its_turn_goes_to_the_end(self) -> None:
        """Or a waiter that is too slow for its own ttl would be handed the lock again and again."""
        lease = taken("video:1")
        first, _ = in_queue("first", BRIEF_SECONDS), in_queue("second")
        lease.release()
        until(lambda: not locks.is_locked("video:1"), "the end of the sleeper's lease")
        assert isinstance(first.wait(LONG), Grant)
        third = in_queue("third")
        assert isinstance(first.ask(), Refusal)
        assert queue() == ["third", "first"]
        third.quit()

    def test_hand_over_from_before_its_question_was_sent_again_grants_nothing(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The reply was lost, and meanwhile the lease that it was handed has ended."""
        lease = taken("video:1")
        waiter, others = self.sends_twice(monkeypatch, lease, until_free)
        assert isinstance(waiter.wait(BRIEF_SECONDS), Refusal | None)
        assert isinstance(waiter.ask(), Refusal)
        assert queue() == ["first"]
        waiter.quit()
        assert queue() == []
        others[0].release()
        assert not locks.is_locked("video:1")

    def test_hand_over_that_was_cleared_before_its_question_was_sent_again_grants_nothing(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lease = taken("video:1")
        waiter, others = self.sends_twice(monkeypatch, lease, clear, ttl=LONG)
        assert not isinstance(waiter.wait(BRIEF_SECONDS), Grant)
        others[0].release()
        assert isinstance(waiter.wait(LONG), Grant)
        assert queue() == []

    def test_hand_over_after_the_clock_of_the_server_was_set_back_counts(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lease = taken("video:1")
        waiter = in_queue("first")
        waiter._server_then += 3_600_000_000
        lease.release()
        assert isinstance(waiter.wait(LONG), Grant)
        assert queue() == []

    def test_hand_over_read_late_after_the_clock_was_set_forward_grants_nothing(self) -> None:
        """By the server's clock it was a moment ago, and its lease is over."""
        lease = taken("video:1")
        waiter = in_queue("first", BRIEF_SECONDS)
        waiter._server_then -= 3_600_000_000
        lease.release()
        until_free()
        other = taken("video:1")
        assert not isinstance(waiter.wait(BRIEF_SECONDS), Grant)
        assert other.held
        waiter.quit()

    def sends_twice(
        self, monkeypatch: pytest.MonkeyPatch, lease: Lease, end: Any, ttl: float = BRIEF_SECONDS
    ) -> tuple[RedisWaiter, list[Lease]]:
        """A waiter whose question is sent again, and who got the lock, and lost it, in between."""
        store: Any = stores["default"]
        ask, others = store.ask, []

        def sent_again(*args: Any, **kwargs: Any) -> Any:
            monkeypatch.undo()
            ask(*args, **kwargs)
            lease.release()
            end()
            others.append(taken("video:1"))
            return ask(*args, **kwargs)

        monkeypatch.setattr(store, "ask", sent_again)
        return in_queue("first", ttl), others


def until_free() -> None:
    until(lambda: not locks.is_locked("video:1"), "the end of the sleeper's lease")


def clear() -> None:
    assert locks.clear("video:1")


class TestOrder:
    def test_positions_are_counted_and_not_taken_from_a_clock(self, server: Any) -> None:
        """A server's clock may step back, and newcomers would come first."""
        taken("video:1")
        for task in ("first", "second", "third"):
            in_queue(task)
        assert scores(server) == [1, 2, 3]

    def test_a_waiter_that_asks_again_keeps_its_position(self) -> None:
        taken("video:1")
        waiters = [in_queue(task) for task in ("first", "second", "third")]
        for waiter in reversed(waiters):
            assert isinstance(waiter.ask(), Refusal)
        assert queue() == ["first", "second", "third"]

    def test_a_waiter_whose_channel_was_cut_gets_its_position_again(self, server: Any) -> None:
        lease = taken("video:1")
        waiters = [in_queue(task) for task in ("first", "second", "third")]
        # When none of them listens in the moment of the release, as if they were dead
        server.client_kill_filter(_type="pubsub")
        lease.release()
        assert not locks.is_locked("video:1")
        taken("video:1")
        self.notice_the_cut(waiters[0])
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

    def test_who_leaves_after_a_question_without_a_reply_leaves_nothing(
        self, server: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whichever of its two members stands in the queue."""
        taken("video:1")
        store: Any = stores["default"]
        for carried_out in (True, False):
            waiter = in_queue("first")
            ask = store.ask

            def no_reply(*args: Any) -> Any:
                if carried_out:  # noqa: B023
                    ask(*args)  # noqa: B023
                raise KeyboardInterrupt

            monkeypatch.setattr(store, "ask", no_reply)
            with pytest.raises(KeyboardInterrupt):
                waiter.ask()
            monkeypatch.undo()
            waiter.quit()
            assert queue() == []

    def test_question_that_arrives_after_its_waiter_was_interrupted_gets_no_lock(self) -> None:
        """It was on its way when the waiter left the queue, and stands there for nobody."""
        lease = taken("video:1")
        store: Any = stores["default"]
        waiter = in_queue("first")
        member, value = waiter._member, waiter._value
        waiter.quit()
        late = store.ask("video:1", value, int(LONG * 1000), member)
        assert not isinstance(late, Grant)
        assert queue() == ["first"]
        lease.release()
        assert not locks.is_locked("video:1")

    @staticmethod
    def notice_the_cut(waiter: RedisWaiter) -> None:
        until(lambda: waiter.wait(0.1) is None and waiter.cut, "noticing the cut")

    def test_waiters_whose_connection_was_cut_keep_their_order(
        self, own_redis_server: RedisServer, proxy_to: Any, use_caches: UseCaches
    ) -> None:
        proxy: CutProxy = proxy_to(own_redis_server.port)
        # A machine that is busy delays what the proxy passes on by seconds.
        through = redis_cache(proxy.url, SOCKET_TIMEOUT=LONG)
        use_caches(
            {"default": through, "direct": through | {"LOCATION": own_redis_server.url}},
            {"default": {}, "direct": {"CACHE": "direct"}},
        )
        direct = locks.using("direct")
        lease = direct.acquire("video:1", ttl=LONG)
        assert lease is not None
        threads = []
        for number in range(1, 13):
            threads.append(Meanwhile(lambda: taken("video:1", wait=None).release()))
            until(lambda number=number: waiting("video:1") == number)  # type: ignore[misc]
        names = [thread.name for thread in threads]

        def all_back() -> bool:
            for thread in threads:
                if not thread.is_alive():
                    thread.result()  # What it has raised.
            return len(direct.waiters("video:1")) == len(names)

        for _ in range(3):
            before = set(members("direct", "video:1"))
            proxy.cut()

            def all_anew(before: set[bytes] = before) -> bool:
                found = set(members("direct", "video:1"))
                return not before & found and not unheard("direct", "video:1")

            until(all_anew, "all of them asking again, on a channel that is heard")
            until(all_back, "all in the queue again")
            waiters = [owner.thread for owner in direct.waiters("video:1")]
            assert [str(name).rpartition("-")[0] for name in waiters] == names
        lease.release()


class TestOtherPrefixes:
    def test_no_two_stores_share_what_they_keep_beside_the_locks(
        self, own_redis_server: RedisServer, use_caches: UseCaches
    ) -> None:
        use_caches(
            {"default": redis_cache(own_redis_server.url)},
            {"default": {"KEY_PREFIX": ""}, "other": {"KEY_PREFIX": "tasklock"}},
        )
        other = locks.using("other")
        taken("video:1")
        assert other.acquire("order:1", ttl=LONG) is not None
        for _ in range(2):
            assert [info.name for info in locks.list()] == ["video:1"]
            assert [info.name for info in other.list()] == ["order:1"]
        stores["default"].reserve("queued task", "id", LONG)
        assert stores["other"].get_note("queued task") is None


def test_stores_on_a_plain_cache_share_no_notes(use_caches: UseCaches) -> None:
    backend = "django.core.cache.backends.locmem.LocMemCache"
    use_caches(
        {"default": {"BACKEND": backend, "LOCATION": f"notes-{time.monotonic_ns()}"}},
        {"default": {"KEY_PREFIX": ""}, "other": {"KEY_PREFIX": "tasklock"}},
    )
    stores["default"].reserve("queued task", "id", LONG)
    assert stores["other"].get_note("queued task") is None
