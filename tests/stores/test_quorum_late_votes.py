"""`QuorumStore`: members that answer late, or get a lease again, and what is true then."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from django_tasklock import StoreUnavailable, locks
from django_tasklock._values.owner import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores import quorum as quorum_package
from django_tasklock.stores import stores
from django_tasklock.stores.base import Grant, Refusal
from django_tasklock.stores.database import DatabaseStore
from django_tasklock.stores.quorum.quorum_lease import QuorumLease
from tests.conftest import UseCaches, database_alias
from tests.interruptions import EVERY, before_first, forget_handled
from tests.quorum import Five, quorum
from tests.servers import RedisServer
from tests.steps import LONG, holder, taken
from tests.store_cases import make_lease_table, members, quorum_store
from tests.stores.test_connections import Steps, cut_short
from tests.waiting import until

pytestmark = pytest.mark.nightly


@pytest.fixture
def three(five_servers: list[RedisServer], use_caches: UseCaches) -> None:
    caches, tasklock = members([server.url for server in five_servers[:3]])
    locmem = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    use_caches(locmem | caches, {"default": quorum_store("abc")} | tasklock)


def acquire(token: str) -> Grant | Refusal:
    return quorum().acquire("video:1", token, LONG, owner_record())


def test_a_late_grant_of_an_earlier_question_does_not_end_a_later_lease(
    three: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, b, c = (stores[alias] for alias in "abc")
    first, waiter, third = new_token(), new_token(), new_token()
    assert isinstance(acquire(first), Grant)
    # A majority is enough, so this one may answer later.
    until(lambda: c.get("video:1") is not None, "the grant of c")
    c.release("video:1", first)  # As if it had not been reached: a majority has the lease.

    # The member c answers the waiter's first question late, in its thread.
    real_above, late = c.acquire_above, threading.Event()

    def slow(*args: Any) -> Any:
        answer = real_above(*args)
        late.wait(5)
        return answer

    monkeypatch.setattr(c, "acquire_above", slow)
    # That thread is not switched to for a moment, after it has looked whether the lease is over.
    real_over, looked, go_on = QuorumLease.is_over, threading.Event(), threading.Event()

    def is_over(self: QuorumLease) -> bool:
        over = real_over(self)
        if late.is_set() and not looked.is_set() and self.token == waiter and over:
            looked.set()
            go_on.wait(10)
        return over

    # Not only its own ones: the releases that are owed are made by the same threads, in time.
    monkeypatch.setattr(QuorumLease, "is_over", is_over)
    keep = quorum().lease_of("video:1", waiter)
    assert isinstance(acquire(waiter), Refusal)
    late.set()
    assert looked.wait(5)

    assert quorum().release("video:1", first) is True
    # b is not reached for a moment.
    with monkeypatch.context() as cut:

        def unreachable(*args: Any, **more: Any) -> Any:
            raise StoreUnavailable("b", "cut off")

        cut.setattr(b, "acquire_above", unreachable)
        monkeypatch.setattr(c, "acquire_above", real_above)
        granted = acquire(waiter)
    assert isinstance(granted, Grant)
    go_on.set()
    assert keep is not None
    for _ in range(20):
        time.sleep(0.1)
        assert isinstance(acquire(third), Refusal), "two hold the lock"


def test_a_refusal_that_is_read_late_takes_no_later_vote_away(
    three: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise nobody would release that vote, if the lease is refused in the end."""
    token, b = new_token(), quorum().members[1]
    granted = acquire(token)
    assert isinstance(granted, Grant)
    lease = granted.proof
    until(lambda: len(lease.proofs) == 3)

    def refuse(*_: Any, asked_again: int) -> Refusal:
        lease.question += asked_again
        return Refusal(holder("video:1"))

    for asked_again, left in ((1, 3), (0, 2)):
        monkeypatch.setattr(b.store, "acquire_above", partial(refuse, asked_again=asked_again))
        quorum()._ask(lease, 1, b)
        assert len(lease.proofs) == left
    assert quorum().release("video:1", token, lease)


@pytest.mark.slow
def test_a_late_vote_gets_the_fence_that_the_others_have_agreed_on(five: Five) -> None:
    """The clocks of the others are ahead. The next majority may count on this member."""
    assert taken("video:1").release()
    for number in (0, 2, 3, 4):
        five.plant_fence(time.time_ns() // 1000 + 10**10, number)
    five.harm("paused", 1)
    lease = taken("video:1")
    five.mend("paused", 1)

    def late() -> bool:
        held = quorum().members[1].store.get("video:1")
        return held is not None and held.fence == lease.fence

    until(late, "the fence of the others")
    assert lease.release()
    until(lambda: five.having("video:1") == set())


@pytest.mark.slow
def test_a_member_whose_threads_are_all_stuck_may_have_granted_what_it_was_asked_for(
    five: Five, monkeypatch: pytest.MonkeyPatch
) -> None:
    five.harm("paused", 1)
    lease = taken("video:1")
    with monkeypatch.context() as stuck:
        stuck.setattr(quorum().members[1].callers, "submit", lambda job: False)
        assert lease.release()
    five.mend("paused", 1)
    until(lambda: five.having("video:1") == set())


class QuorumSteps(Steps):
    @staticmethod
    def concerns(frame: FrameType) -> bool:
        return frame.f_code.co_filename.startswith(os.path.dirname(quorum_package.__file__))


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:unclosed:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_an_interruption_between_any_two_steps_leaves_nothing_behind(
    three: None, five_servers: list[RedisServer]
) -> None:
    step, missed, five = before_first(), 0, Five(five_servers[:3], [])
    assert taken("video:1").release()
    while missed < 3:
        step += EVERY
        with cut_short(), QuorumSteps(step) as steps:
            lease = locks.acquire("video:1", ttl=LONG)
            if lease is not None:
                lease.release()
        lease = None
        forget_handled()
        missed = 0 if steps.passed >= step else missed + 1
        until(lambda: five.having("video:1") == set(), f"the end of the lease after step {step}")
    assert step > 100


class Behind(DatabaseStore):
    """On a server whose clock is wrong by some seconds."""

    OFF = {"a": 0.0, "b": 5.0, "c": 0.0}

    def run(self, sql: str, parameters: Any = None) -> Any:
        off = int(self.OFF[self.alias] * 1_000_000)
        given = {**(parameters or {}), "now": time.time_ns() // 1000 + off}
        return self._connections.run(sql, given)


@pytest.fixture
def three_databases(
    tmp_path: Path, transactional_db: None, use_caches: UseCaches
) -> Iterator[None]:
    with ExitStack() as stack:
        for alias in "abc":
            configured = {
                "ENGINE": "tests.sqlite",
                "NAME": str(tmp_path / f"{alias}.sqlite3"),
                "OPTIONS": {"init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF"},
            }
            stack.enter_context(database_alias(f"sqlite_{alias}", configured))
            make_lease_table(f"sqlite_{alias}")
        tasklock: dict[str, Any] = {
            alias: {
                "BACKEND": f"{__name__}.Behind",
                "OPTIONS": {"DATABASE": f"sqlite_{alias}"},
            }
            for alias in "abc"
        }
        use_caches({}, {"default": quorum_store("abc")} | tasklock)
        yield
        stores.forget()


def test_a_lease_that_a_member_gets_again_has_its_fence_there(
    three_databases: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, c = (stores[alias] for alias in "abc")

    def unreachable(*args: Any, **more: Any) -> Any:
        raise StoreUnavailable("", "cut off")

    verbs = ("acquire_above", "acquire", "extend", "extend_many", "release", "raise_fence", "get")
    first, second = new_token(), new_token()

    def renew(member: Any, proof: Any) -> None:
        """Until the member has the lease again."""

        def again() -> bool:
            quorum().extend("video:1", first, LONG, proof)
            held = member.get("video:1")
            return held is not None and held.token == first

        until(again, "the lease at the member")

    # 1. c is cut off while the lock is granted, and gets the lease with the next renewal.
    with monkeypatch.context() as cut:
        for verb in verbs:
            cut.setattr(c, verb, unreachable)
        granted = acquire(first)
    assert isinstance(granted, Grant)
    assert granted.fence is not None
    renew(c, granted.proof)
    # 2. a is emptied: its database fails over to a replica that has not heard of the lease.
    a.run("DELETE FROM django_tasklock_lease")  # type: ignore[attr-defined]
    renew(a, granted.proof)
    # 3. b, whose clock is ahead, is cut off.
    with monkeypatch.context() as cut:
        for verb in verbs:
            cut.setattr(b, verb, unreachable)
        assert quorum().release("video:1", first) is True
        following = acquire(second)
    assert isinstance(following, Grant)
    assert following.fence is not None
    assert following.fence > granted.fence
    quorum().release("video:1", second)
    time.sleep(0.5)  # What is owed to b.
