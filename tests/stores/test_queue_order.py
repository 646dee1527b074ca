"""The wait queue in Redis: its order, which message counts for which question, and what is done at
a hand-over so that the next holder hears of it as soon as can be."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_tasklock import Lease, locks
from django_tasklock.stores import stores
from django_tasklock.stores.base import CannotSubscribe, Grant, Question, Refusal
from tests.conftest import UseRedis
from tests.inside import LONGEST_TTL_SECONDS, has_arrived, new_token, owner_record
from tests.servers import RedisServer
from tests.steps import LONG, holder, members, taken, waiter, waiting
from tests.waiting import until

BRIEF_SECONDS = 0.2
"""seconds; a lease that ends within a test"""


@pytest.fixture(autouse=True)
def server(redis_of_file: RedisServer, use_redis: UseRedis) -> Iterator[Any]:
    """A client of the server on which the locks are."""
    use_redis(redis_of_file.url)
    with redis.Redis.from_url(redis_of_file.url) as client:
        client.flushall()
        yield client


def waits(task: str, ttl: float = LONG) -> Any:
    """A waiter for video:1, known by its task's name."""
    question = Question(["video:1"], new_token(), ttl, owner_record(task))
    return stores["default"].waiter(question)


def in_queue(task: str, ttl: float = LONG) -> Any:
    """The same, after it has asked."""
    asks = waits(task, ttl)
    assert isinstance(asks.ask(), Refusal)
    return asks


def three_in_queue() -> tuple[Lease, list[Any]]:
    """A lease, and who waits for its end."""
    return taken("video:1"), [in_queue(task) for task in ("first", "second", "third")]


def queue() -> list[str | None]:
    return [owner.task for owner in locks.waiters("video:1")]


def taken_when_free() -> Lease:
    """After the end of the sleeper's lease."""
    until(lambda: not locks.is_locked("video:1"))
    return taken("video:1")


@pytest.mark.parametrize("leaves", [False, True], ids=["gets the lock", "leaves"])
def test_who_is_the_next_after_the_first_is_told(leaves: bool) -> None:
    # Given three that wait
    lease, (first, second, third) = three_in_queue()
    assert (first.ahead, second.ahead, third.ahead) == (0, 1, 2)

    # When the first has the lock, or waits no more
    if leaves:
        first.quit()
    else:
        lease.release()

    # I expect the second to hear at once that it is the next
    assert isinstance(second.wait(LONG), Refusal)
    assert (second.ahead, third.ahead) == (0, 2)


def cut(server: Any) -> None:
    """Nobody listens any more, as if all waiters were dead."""
    server.client_kill_filter(_type="pubsub")
    until(lambda: not server.pubsub_channels(), "the end of the subscription")


def test_neither_rubbish_in_the_queue_nor_a_monitor_is_a_waiter(server: Any) -> None:
    lease = taken("video:1")
    first = in_queue("first")
    for rubbish in (b"", b"x" * 50, b"x" * 44 + b"0:60000:"):
        server.zadd(stores["default"].key("video:1") + " queue", {rubbish: 0.5})
    assert queue() == ["first"]
    assert lease.release()
    assert isinstance(first.wait(LONG), Grant)
    assert waiting("video:1") == 0
    assert locks.clear("video:1")
    lease = taken("video:1")
    in_queue("dead")
    cut(server)
    with server.pubsub() as monitor:
        monitor.psubscribe("*")
        until(lambda: monitor.get_message(timeout=1.0))
        assert lease.release()
        assert not locks.is_locked("video:1")


class TestStaleMessage:
    def test_message_for_an_earlier_question_grants_nothing(self) -> None:
        """The waiter sleeps through the whole of its lease, asks again, and then reads it."""
        lease = taken("video:1")
        first = in_queue("first", BRIEF_SECONDS)
        lease.release()
        other = taken_when_free()
        assert isinstance(first.ask(), Refusal)
        assert first.wait(BRIEF_SECONDS) is None
        assert queue() == ["first"]
        other.release()
        grant = first.wait(LONG)
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


class TestOrder:
    def test_a_waiter_that_asks_again_keeps_its_position(self, server: Any) -> None:
        for each in reversed(three_in_queue()[1]):
            assert isinstance(each.ask(), Refusal)
        assert queue() == ["first", "second", "third"]
        # It is counted: a server's clock may step back, and newcomers would come first.
        key = stores["default"].key("video:1") + " queue"
        assert [score for _, score in server.zrange(key, 0, -1, withscores=True)] == [1, 2, 3]

    def test_a_waiter_whose_connection_was_cut_gets_its_position_again(self, server: Any) -> None:
        lease, waiters = three_in_queue()
        # When none of them listens in the moment of the release
        cut(server)
        lease.release()
        assert not locks.is_locked("video:1")
        taken("video:1")
        until(lambda: waiters[0].wait(0.1) is None and waiters[0].cut, "noticing the cut")
        in_queue("newcomer")
        # Then each has its position before those who came later, whoever is back first
        for each in reversed(waiters):
            assert isinstance(each.ask(), Refusal)
        assert queue() == ["first", "second", "third", "newcomer"]

    def test_who_cannot_listen_any_more_is_not_in_the_queue(
        self, monkeypatch: pytest.MonkeyPatch
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
            first = waits("first")

            def interrupted(*args: Any) -> Any:
                if in_time:  # noqa: B023
                    ask(*args)
                on_its_way[:] = args
                raise KeyboardInterrupt

            monkeypatch.setattr(store, "acquire_or_join", interrupted)
            with pytest.raises(KeyboardInterrupt):
                first.ask()
            monkeypatch.undo()
            first.quit()
            assert queue() == []
        assert isinstance(ask(*on_its_way)[0], Refusal)
        second = in_queue("second")
        assert queue() == ["first", "second"]
        lease.release()
        until(lambda: isinstance(second.wait(1.0), Grant), "the second one's turn")

    def test_a_lock_that_is_held_and_left_is_not_released_by_a_late_message(self) -> None:
        """It asked again, and was granted what it had been handed just before."""
        lease = taken("video:1")
        first = in_queue("first")
        lease.release()
        grant = first.ask()
        assert isinstance(grant, Grant)
        first.quit()
        time.sleep(BRIEF_SECONDS)  # In which the message is read.
        assert (holder("video:1").owner.task, holder("video:1").fence) == ("first", grant.fence)


class TestHandOver:
    def test_the_next_holder_gets_its_message_before_the_releaser_gets_its_reply(
        self, server: Any
    ) -> None:
        """In one process the second would keep the interpreter from the first."""
        store: Any = stores["default"]
        for turn in range(100):
            lease = taken("video:1")
            with server.pubsub() as other:
                asking = in_queue("first")
                other.subscribe(store.keys.channels + store.listeners.own()[0].id)
                until(lambda: other.get_message(timeout=1.0))
                lease.release()
                assert has_arrived(other), f"not in turn {turn}"
            assert isinstance(asking.wait(LONG), Grant)
            assert locks.clear("video:1")

    def test_a_lock_that_was_handed_over_is_listed_until_its_new_lease_ends(
        self, server: Any
    ) -> None:
        """Not until the end of the lease before."""
        store: Any = stores["default"]
        lease = taken("video:1", ttl=5)
        in_queue("first", 100 * LONG)
        assert lease.release()
        assert server.zscore(store.keys.index, "video:1") / 1000 > time.time() + 99 * LONG


# What is published on a waiter's channel: anybody may do that, and only a hand-over counts.

NUMBER = b"1700000000000000"
NO_NUMBERS = [
    b"", b"x", b"-1", b"+1", b" 1", b"1\n", b"01", b"1_0", b"1.5", b"1e9", b"nan", b"\xff",
    "٣".encode(), b"9" * 18, b"9" * 5000,
]  # fmt: skip
OTHERS = [
    b"+", b"=", b"+:", b"=:::", b"+%b:1" % NUMBER, b"+%b" % NUMBER, b"=%b:60000:" % NUMBER,
    b"=%b:%d:value" % (NUMBER, LONGEST_TTL_SECONDS * 1000 + 1),
]  # fmt: skip
FORMS = [b"+%b:0", b"=%b:60000:value", b"+%b:%%b" % NUMBER, b"=%b:%%b:value" % NUMBER]
spoiled = st.builds(bytes.__mod__, st.sampled_from(FORMS), st.sampled_from(NO_NUMBERS))
anything = st.binary(max_size=40).filter(lambda said: not re.match(rb"[+=]\d+:\d", said))


def test_waiter_takes_no_notice_of_garbage(server: Any) -> None:
    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(spoiled | st.sampled_from(OTHERS) | anything, min_size=1, max_size=6))
    def check(said: list[bytes]) -> None:
        store: Any = stores["default"]
        lease = taken("video:1")
        thread = waiter("video:1", 1)
        (member,) = members("default", "video:1")
        # When somebody publishes what no release says
        for message in said:
            assert server.publish(store.keys.channels + member[22:44], member[:22] + message)
        # Then it waits on, and is handed the lock when that is released
        assert members("default", "video:1") == [member]
        assert lease.release()
        mine = thread.result()
        assert (holder("video:1").token, holder("video:1").fence) == (mine.token, mine.fence)
        assert mine.release()

    check()
