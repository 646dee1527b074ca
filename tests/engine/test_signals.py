"""What the signals carry: the template of the name, how long it was waited for, and held."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from celery import Celery

from django_tasklock import LockService, StoreUnavailable, lock, locks, signals
from django_tasklock.celery import LockedTask
from django_tasklock.signals import (
    lock_acquired,
    lock_cleared,
    lock_contended,
    lock_lost,
    lock_released,
    lock_unavailable,
)
from django_tasklock.stores.base import BaseStore
from django_tasklock.testing import outage
from tests.conftest import UseRedis
from tests.pages import DOCS, code, table
from tests.steps import Meanwhile, sent, taken
from tests.waiting import until


def templates(told: list[dict[str, Any]]) -> list[str | None]:
    return [one["template"] for one in told]


def test_a_decorated_call_tells_its_template_and_a_plain_name_none(use_redis: UseRedis) -> None:
    use_redis()

    @lock("video:{video_id}")
    def work(video_id: int) -> None:
        with lock("video:plain"):
            pass

    @lock("video:{video_id}")
    async def work_async(video_id: int) -> None:
        await asyncio.sleep(0)

    with sent(lock_acquired) as acquired, sent(lock_released) as released:
        work(7)
        asyncio.run(work_async(8))
    assert [one["lease"].name for one in acquired] == ["video:7", "video:plain", "video:8"]
    assert templates(acquired) == ["video:{video_id}", None, "video:{video_id}"]
    assert templates(released) == [None, "video:{video_id}", "video:{video_id}"]


@pytest.mark.parametrize("options", [{"slots": 3}, {"reentrant": True}, {"cooldown": 0.001}])
def test_every_kind_of_lock_tells_its_template(
    use_redis: UseRedis, options: dict[str, Any]
) -> None:
    use_redis()

    def export(customer: str) -> None:
        pass

    with sent(lock_acquired) as acquired, sent(lock_released) as released:
        lock("export:{customer}", **options)(export)("large")
    assert templates(acquired) == templates(released) == ["export:{customer}"]


def test_of_several_locks_each_tells_its_own_template(use_redis: UseRedis) -> None:
    use_redis()

    @lock(["seat:{b}", "seat:{a}", "show"])
    def book(a: int, b: int) -> None:
        pass

    with sent(lock_acquired) as acquired:
        book(1, 2)
    told = {one["lease"].name: one["template"] for one in acquired}
    assert told == {"seat:1": "seat:{a}", "seat:2": "seat:{b}", "show": "show"}


def test_who_waited_tells_for_whom_and_how_long(store: BaseStore) -> None:
    lease = taken("video:1")
    with sent(lock_acquired) as acquired, sent(lock_released) as released:
        waiter = Meanwhile(lambda: locks.acquire("video:1", ttl=60, wait=60))
        if store.supports_waiting:
            until(lambda: locks.waiters("video:1"), "the waiter in the queue")
        assert lease.release()
        won = waiter.result()
        assert won is not None
        assert won.release()
    (got,) = acquired
    if store.supports_waiting:
        assert got["holder"].token == lease.token
    assert got["waited"] >= 0
    assert [one["lease"] for one in released] == [lease, won]
    assert all(one["held"] >= 0 for one in released)


def test_who_did_not_wait_tells_of_no_holder(store: BaseStore) -> None:
    with sent(lock_acquired) as acquired:
        taken("video:1").release()
        assert locks.acquire("video:1", ttl=60, wait=5) is not None
    assert [one["holder"] for one in acquired] == [None, None]


def test_who_waited_for_a_permit_tells_of_a_holder(use_redis: UseRedis) -> None:
    use_redis()
    first = taken("export", slots=2)
    second = taken("export", slots=2)
    with sent(lock_acquired) as acquired:
        waiter = Meanwhile(lambda: locks.acquire("export", ttl=60, wait=60, slots=2))
        until(lambda: locks.waiters("export"), "the waiter at the gate")
        assert second.release()
        assert waiter.result() is not None
    (got,) = acquired
    assert got["holder"].token in (first.token, second.token)


def test_a_refusal_and_an_outage_tell_the_template(use_redis: UseRedis) -> None:
    use_redis()

    @lock("video:{video_id}", on_conflict="skip")
    def work(video_id: int) -> None:
        pass

    with sent(lock_contended) as contended, sent(lock_unavailable) as unavailable:
        taken("video:1")
        work(1)
        with outage(), pytest.raises(StoreUnavailable):
            work(2)
    assert templates(contended) == templates(unavailable) == ["video:{video_id}"]
    (silent,) = unavailable
    assert (silent["name"], silent["store"]) == ("video:2", "default")
    assert isinstance(silent["error"], StoreUnavailable)


def test_a_loss_and_a_clear_say_their_cause(use_redis: UseRedis) -> None:
    use_redis()
    with sent(lock_lost) as lost, sent(lock_cleared) as cleared:
        lease = taken("video:1")
        assert locks.clear("video:1", by="alice")
        assert not lease.extend()
        short = taken("video:2", ttl=0.01)
        until(lambda: not short.held, "the end of its ttl")
    assert [one["cause"] for one in lost] == ["gone", "expired"]
    assert [one["cause"] for one in cleared] == ["cleared"]
    assert lost[1]["held"] >= 0.01


def test_a_receiver_that_fails_does_not_replace_the_outage(use_redis: UseRedis) -> None:
    use_redis()

    def broken(**_: Any) -> None:
        raise RuntimeError("a receiver of somebody's")

    lock_unavailable.connect(broken)
    try:
        with outage(), pytest.raises(StoreUnavailable):
            locks.acquire("video:1")
    finally:
        lock_unavailable.disconnect(broken)


def test_every_signal_has_the_arguments_that_its_page_shows(use_redis: UseRedis) -> None:
    use_redis()
    page = DOCS / "reference/signals.md"
    shown = {
        code(name)[0]: set(code(arguments)) for name, arguments in table(page, "Signals", "Signal")
    }

    @Celery("signals", set_as_current=False).task(base=LockedTask, lock_name="e", name="not-run")
    def not_run() -> None:
        pass

    with contextlib.ExitStack() as stack:
        every = {name: getattr(signals, name) for name in signals.__all__ if name.islower()}
        told = {name: stack.enter_context(sent(signal)) for name, signal in every.items()}
        with lock("a"):
            assert locks.acquire("a") is None
        lost = taken("b")
        assert locks.clear("b")
        assert lost.extend() is False
        assert locks.hold("c", 60) is not None
        with outage(), pytest.raises(StoreUnavailable):
            locks.acquire("d")
        with lock("e"):
            assert not_run()["status"] == "skipped"
    found = {
        name: {tuple(sorted(one.keys() - {"signal", "sender"})) for one in ones}
        for name, ones in told.items()
    }
    assert found == {name: {tuple(sorted(arguments))} for name, arguments in shown.items()}
    senders = {one["sender"] for ones in told.values() for one in ones}
    assert senders == {LockService, not_run.__class__}
