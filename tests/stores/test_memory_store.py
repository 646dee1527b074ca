"""The store in memory: what a project's own tests do with it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import time_machine
from django.core.checks import run_checks
from django.test.utils import override_settings
from freezegun import freeze_time

from django_tasklock import LeaseLost, locks
from django_tasklock.signals import lock_lost
from django_tasklock.stores import stores
from django_tasklock.stores.base import Grant, Note, Question, Refusal
from django_tasklock.stores.memory import TIDY_CHANCE
from django_tasklock.testing import MemoryStore
from tests.conftest import UseCaches, UseRedis
from tests.eager_task import assert_an_eager_task_locks_and_guards
from tests.inside import longest_silence, new_token
from tests.interruptions import interrupted
from tests.steps import LONG, Meanwhile, holder, in_child, sent, taken, waiter
from tests.waiting import PATIENCE, until

DUMMY = {"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}}
IN_MEMORY = {"default": {"BACKEND": "django_tasklock.stores.memory.MemoryStore"}}
HOUR = 3600.0
NOON = datetime(2030, 6, 1, 12, tzinfo=timezone.utc)

Move = Callable[[float], object]
"""moves the time by so many seconds"""


@pytest.fixture(autouse=True)
def in_memory(use_caches: UseCaches) -> Iterator[None]:
    """Beside a cache that would grant every lock."""
    use_caches(DUMMY, IN_MEMORY)
    yield
    MemoryStore.clear_all()


@pytest.fixture(params=["freezegun", "time-machine"])
def move(request: pytest.FixtureRequest) -> Iterator[Move]:
    """It is noon, and stays noon until somebody moves the time."""
    if request.param == "freezegun":
        with freeze_time(NOON) as frozen:
            yield lambda seconds: frozen.tick(timedelta(seconds=seconds))
    else:
        with time_machine.travel(NOON, tick=False) as traveller:
            yield traveller.shift


def test_a_lease_is_over_after_its_ttl_which_may_be_extended(move: Move) -> None:
    # Given a test that moves the time, I expect a lease to go by that
    lease = taken("video:1", ttl=60)
    assert holder("video:1").acquired_at == NOON
    for extended in (True, False):
        move(45)
        for left in (lease.remaining, holder("video:1").ttl, locks.list()[0].ttl):
            assert left == pytest.approx(15, abs=0.01)
        assert not extended or lease.extend()

    # And to hold the lock to its very end
    move(14)
    assert lease.held
    assert not locks.acquire("video:1")
    move(1)
    assert locks.list() == []
    taken("video:1")


def test_the_holder_knows_that_its_lease_is_over(move: Move) -> None:
    """As if the process had stood still: nobody has renewed the lease in that hour."""
    lease = taken("video:1", ttl=60, renew=True)
    with sent(lock_lost) as lost:
        move(HOUR)
        assert not lease.held
    assert lease.remaining == 0.0
    assert not lease.extend()
    assert not lease.release()
    with pytest.raises(LeaseLost, match="its ttl ran out"):
        lease.assert_held()
    assert [signal["lease"] for signal in lost] == [lease]


def test_who_waits_gets_the_lock(move: Move) -> None:
    taken("video:1", ttl=60)
    waits = waiter("video:1", 1)
    move(60)
    lease = waits.result()
    assert lease.held
    assert lease.remaining > LONG / 2
    assert holder("video:1").token == lease.token


def test_notes_and_reservations_end(move: Move) -> None:
    store = stores["default"]
    store.set_note(Note("run 1", "ended", 60))
    assert store.reserve("queued a", "id-1", 60) is None
    assert store.reserve("queued b", "id-2", 90) is None
    move(45)
    assert [reserved.ttl for reserved in store.reservations()] == [15, 45]
    move(15)
    assert store.get_note("run 1") is None
    assert [reserved.key for reserved in store.reservations()] == ["queued b"]
    assert store.reserve("queued a", "id-3", 60) is None


def test_a_lease_of_a_time_that_stands_still_or_was_left_ends() -> None:
    """`Lease.held` goes by the real clock, and so does the store."""
    with time_machine.travel(NOON, tick=False):
        lease = taken("video:1", ttl=0.05)
        until(lambda: not lease.held)
        until(lambda: not locks.is_locked("video:1"))
        taken("video:1", ttl=1)
        assert locks.is_locked("video:1")
    until(lambda: not locks.is_locked("video:1"))


def test_leases_in_redis_go_by_the_real_time(use_redis: UseRedis, move: Move) -> None:
    use_redis()
    lease = taken("video:1", ttl=LONG)
    move(HOUR)
    assert lease.held
    assert locks.is_locked("video:1")
    assert lease.extend()
    assert lease.release()


def test_clear_all_leaves_nothing_and_who_waits_asks_again() -> None:
    lease, store = taken("video:1"), stores["default"]
    store.set_note(Note("run 1", "ended", LONG))
    assert store.reserve("queued a", "id-1", LONG) is None
    waits = waiter("video:1", 1)
    MemoryStore.clear_all()
    assert store.get_note("run 1") is None
    assert list(store.reservations()) == []
    assert lease.release() is False
    assert waits.result().release()
    assert locks.list() == []


def test_settings_that_are_overridden_bring_an_empty_store() -> None:
    lease = taken("video:1")
    with override_settings(TASKLOCK=IN_MEMORY | {"other": IN_MEMORY["default"]}):
        assert not locks.is_locked("video:1")
        inner = taken("video:1")
        assert not locks.using("other").is_locked("video:1")
    assert lease.fence is not None
    assert inner.fence is not None
    # Or a row that keeps the fence of the one would refuse the other.
    assert inner.fence > lease.fence


def test_fences_grow_though_time_goes_back() -> None:
    with freeze_time(NOON):
        first = taken("video:1").fence
    with freeze_time(NOON - timedelta(days=1)):
        assert (taken("video:2").fence or 0) > (first or 0)


def test_what_is_over_takes_no_memory() -> None:
    store: Any = stores["default"]
    with time_machine.travel(NOON, tick=False) as traveller:
        store.set_note(Note("run 0", "ended", 60))
        traveller.shift(60)
        for number in range(20 * round(1 / TIDY_CHANCE)):
            store.set_note(Note("run 1", f"ended {number}", 60))
    assert len(store._kept) == 1


@pytest.mark.skipif(
    sys.version_info >= (3, 12),
    reason="Python does not always report their opcodes from 3.12 on, and never from 3.13 on",
)
@pytest.mark.parametrize("step", ["_make", "_hand_over", "_keep", "ring"])
def test_the_waiter_has_the_lock_soon_wherever_its_hand_over_was_interrupted(step: str) -> None:
    """By a handler of a signal that raises in one of its steps."""
    number, where = 0, [""]
    while where:
        number += 1
        # Given a lock for which somebody waits
        lease = taken("video:1")
        waits = waiter("video:1", 1)

        # When its release is interrupted
        with interrupted(number, step) as where:
            stores["default"].release("video:1", lease.token)
        # And its token is given up, as the keeper does it
        stores["default"].release("video:1", lease.token)

        # I expect the waiter to get it long before it would ask again by itself, and just once
        assert waits.result(longest_silence() / 2).release(), where
        assert not locks.is_locked("video:1"), where
    assert number > 5


def test_the_waiter_has_the_lock_if_it_leaves_at_that_moment() -> None:
    """Or nobody would know of its lease, until that ends by itself."""
    store, where = stores["default"], list[str]()
    while not where:  # Python 3.13 does not trace a function's first call.
        lease, token = taken("video:1"), new_token()
        asking = store.waiter(Question(["video:1"], token, LONG, {}))
        assert asking is not None
        assert isinstance(asking.ask(), Refusal)
        with interrupted(1, "ring") as where:
            store.release("video:1", lease.token)
        assert isinstance(asking.leave(), Grant)
        store.release("video:1", token)


@pytest.mark.usefixtures("each_fork")
def test_a_child_is_forked_while_another_thread_uses_the_store() -> None:
    store: Any = stores["default"]
    entered, leave = threading.Event(), threading.Event()

    def use() -> None:
        with store.guard:
            entered.set()
            leave.wait(PATIENCE)

    thread = Meanwhile(use)
    assert entered.wait(PATIENCE)
    assert in_child(lambda: locks.acquire("video:1") is not None) is True
    leave.set()
    thread.result()


def test_check_deploy_says_that_it_excludes_in_one_process_only() -> None:
    assert run_checks(tags=["tasklock"]) == []
    (message,) = run_checks(tags=["tasklock"], include_deployment_checks=True)
    assert message.id == "django_tasklock.memory"
    assert "one process only" in message.msg


def test_an_eager_task_locks_and_guards(transactional_db: None) -> None:
    assert_an_eager_task_locks_and_guards()
