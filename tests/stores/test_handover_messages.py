"""What is published on a waiter's channel: anybody may do that, and only a hand-over counts."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_tasklock._values.arguments import LONGEST_TTL_SECONDS
from django_tasklock.stores import stores
from tests.conftest import UseRedis
from tests.steps import holder, members, taken, waiter

NUMBER = b"1700000000000000"
HANDED_OVER = [NUMBER, NUMBER]
NEXT_HOLDER = [b"=" + NUMBER, NUMBER, b"60000", b"value"]
NO_NUMBERS = [
    b"", b"x", b"0", b"-1", b"+1", b" 1", b"1 ", b"1\n", b"01", b"1_0", b"1.5", b"1e9", b"inf",
    b"nan", b"\xff", "٣".encode(), b"9" * 18, b"9" * 5000,
]  # fmt: skip
FOR_EVER = b"%d" % (LONGEST_TTL_SECONDS * 1000 + 1)
OTHERS = [
    NUMBER, b"=", b":", b"=:::", b":".join([*NEXT_HOLDER[:3], b""]),
    b":".join([*NEXT_HOLDER[:2], FOR_EVER, b"value"]),
]  # fmt: skip


@st.composite
def spoiled(draw: st.DrawFn) -> bytes:
    """What a release says, but for one number of it."""
    fields = list(draw(st.sampled_from([HANDED_OVER, NEXT_HOLDER])))
    at = draw(st.integers(0, min(len(fields), 3) - 1))
    start = b"=" if fields[at].startswith(b"=") else b""
    fields[at] = start + draw(st.sampled_from(NO_NUMBERS))
    return b":".join(fields)


cut_short = st.sampled_from([b":".join(NEXT_HOLDER[:count]) for count in (1, 2, 3)])
too_long = st.just(b":".join([*HANDED_OVER, NUMBER]))
anything = st.binary(max_size=40).filter(lambda said: not re.match(rb"=?\d+:\d", said))
garbage = spoiled() | cut_short | too_long | st.sampled_from(OTHERS) | anything


@st.composite
def messages(draw: st.DrawFn) -> tuple[bool, bytes]:
    """Whether it begins as a message for the waiter's question does, and the rest."""
    return draw(st.integers(0, 3)) > 0, draw(garbage)


def question_of(member: bytes) -> bytes:
    return member[:22] + member[44:].partition(b":")[0] + b":"


def test_waiter_takes_no_notice_of_garbage(use_redis: UseRedis) -> None:
    use_redis()

    @settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(messages(), min_size=1, max_size=6))
    def check(said: list[tuple[bool, bytes]]) -> None:
        store: Any = stores["default"]
        lease = taken("video:1")
        thread = waiter("video:1", 1)
        (member,) = members("default", "video:1")
        # When somebody publishes what no release says
        for for_this_question, message in said:
            start = question_of(member) if for_this_question else b""
            heard = store.client.redis.publish(
                store.keyspace.index + b":" + member[22:44], start + message
            )
            assert heard == 1
        # Then it waits on, and is handed the lock when that is released
        assert members("default", "video:1") == [member]
        assert lease.release()
        mine = thread.result()
        there = holder("video:1")
        assert (there.token, there.fence) == (mine.token, mine.fence)
        assert mine.release()

    check()
