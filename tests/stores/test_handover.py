"""What a hand-over does so that the next holder hears of it as soon as can be."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_tasklock import locks
from django_tasklock._compat.redis import arrives
from django_tasklock._values.arguments import LONGEST_TTL_SECONDS
from django_tasklock._values.owner import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores import stores
from django_tasklock.stores.base import Grant, Question, Refusal
from tests.conftest import UseRedis
from tests.steps import LONG, holder, members, server, taken, waiter
from tests.waiting import until


@pytest.fixture(autouse=True)
def on_redis(use_redis: UseRedis) -> None:
    use_redis()


def in_queue(token: str, ttl: float = LONG) -> Any:
    waiter = stores["default"].waiter(Question(["video:1"], token, ttl, owner_record()))
    assert waiter is not None
    assert isinstance(waiter.ask(), Refusal)
    return waiter


def test_the_next_holder_gets_its_message_before_the_releaser_gets_its_reply(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In one process the second would keep the interpreter from the first."""
    store: Any = stores["default"]
    for turn in range(100):
        lease = taken("video:1")
        with server().pubsub() as other:
            asking = in_queue(new_token())
            channel = store.keys.channels + store.listeners[0].id
            other.subscribe(channel)
            until(lambda: other.get_message(timeout=1.0))
            lease.release()
            assert arrives(other.connection, 0), f"not in turn {turn}"
        grant = asking.wait(LONG)
        assert isinstance(grant, Grant)
        assert locks.clear("video:1")


def test_a_waiter_that_leaves_in_the_moment_it_is_handed_the_lock_has_it() -> None:
    """Nobody else would release it."""
    lease, token = taken("video:1"), new_token()
    asking = in_queue(token)
    assert lease.release()
    grant = asking.leave()
    assert isinstance(grant, Grant)
    assert holder("video:1").fence == grant.fence
    assert stores["default"].release("video:1", token)


def test_a_lock_that_was_handed_over_is_listed_until_its_new_lease_ends() -> None:
    """Not until the end of the lease before."""
    store: Any = stores["default"]
    lease = taken("video:1", ttl=5)
    asking = in_queue(new_token(), 100 * LONG)
    assert lease.release()
    ends = server().zscore(store.keys.index, "video:1") / 1000
    assert ends > time.time() + 99 * LONG
    assert isinstance(asking.leave(), Grant)
    assert locks.clear("video:1")


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


def test_waiter_takes_no_notice_of_garbage() -> None:
    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(spoiled | st.sampled_from(OTHERS) | anything, min_size=1, max_size=6))
    def check(said: list[bytes]) -> None:
        store: Any = stores["default"]
        lease = taken("video:1")
        thread = waiter("video:1", 1)
        (member,) = members("default", "video:1")
        # When somebody publishes what no release says
        for message in said:
            assert server().publish(store.keys.channels + member[22:44], member[:22] + message)
        # Then it waits on, and is handed the lock when that is released
        assert members("default", "video:1") == [member]
        assert lease.release()
        mine = thread.result()
        there = holder("video:1")
        assert (there.token, there.fence) == (mine.token, mine.fence)
        assert mine.release()

    check()
