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
from tests.pages import DOCS, code, table
from tests.steps import Meanwhile, sent, taken
from tests.waiting import until


def templates(told: list[dict[str, Any]]) -> list[str | None]:
    return [one["template"] for one in told]


def test_a_call_tells_its_template_and_a_plain_name_none(on_redis: None) -> None:
    def work(a: int, b: int) -> None:
        with lock("plain"):
            pass

    async def work_async(a: int, b: int) -> None:
        await asyncio.sleep(0)

    with sent(lock_acquired) as acquired, sent(lock_released) as released:
        lock("async:{a}")(work_async)
        asyncio.run(lock("async:{a}")(work_async)(1, 2))
        for options in ({}, {"slots": 3}, {"reentrant": True}, {"cooldown": 0.001}):
            lock("kind:{a}", **options)(work)(1, 2)
        lock(["seat:{b}", "seat:{a}", "show"])(work)(1, 2)
    told = {(str(one["lease"].name), one["template"]) for one in acquired}
    assert told == {(str(one["lease"].name), one["template"]) for one in released}
    assert told == {
        ("async:1", "async:{a}"), ("kind:1", "kind:{a}"), ("kind:1#1", "kind:{a}"), ("plain", None),
        ("seat:1", "seat:{a}"), ("seat:2", "seat:{b}"), ("show", "show"),
    }  # fmt: skip


@pytest.mark.parametrize("slots", [1, 2])
def test_who_waited_tells_for_whom_and_how_long(store: BaseStore, slots: int) -> None:
    leases = [taken("export", slots=slots) for _ in range(slots)]
    with sent(lock_acquired) as acquired, sent(lock_released) as released:
        waiter = Meanwhile(lambda: taken("export", wait=60, slots=slots))
        if store.supports_waiting:
            until(lambda: locks.waiters("export"), "the waiter in the queue")
        assert leases[-1].release()
        won = waiter.result()
        assert won.release()
        assert taken("export", wait=5, slots=slots).held  # Who did not wait tells of no holder.
    first, second = acquired
    if store.supports_waiting:
        assert first["holder"].token in {lease.token for lease in leases}
    assert second["holder"] is None
    assert first["waited"] >= 0
    assert [one["lease"] for one in released] == [leases[-1], won]
    assert all(one["held"] >= 0 for one in released)


def test_a_refusal_and_an_outage_tell_the_template(on_redis: None) -> None:
    @lock("video:{video_id}", on_conflict="skip")
    def work(video_id: int) -> None:
        pass

    def broken(**_: Any) -> None:
        raise RuntimeError("a receiver of somebody's, which does not replace the outage")

    lock_unavailable.connect(broken)
    try:
        with sent(lock_contended) as contended, sent(lock_unavailable) as unavailable:
            taken("video:1")
            work(1)
            with outage(), pytest.raises(StoreUnavailable):
                work(2)
    finally:
        lock_unavailable.disconnect(broken)
    assert templates(contended) == templates(unavailable) == ["video:{video_id}"]
    (silent,) = unavailable
    assert (silent["name"], silent["store"]) == ("video:2", "default")
    assert isinstance(silent["error"], StoreUnavailable)


def test_a_loss_and_a_clear_say_their_cause(on_redis: None) -> None:
    with sent(lock_lost) as lost, sent(lock_cleared) as cleared:
        lease = taken("video:1")
        assert locks.clear("video:1", by="alice")
        assert not lease.extend()
        short = taken("video:2", ttl=0.01)
        until(lambda: not short.held, "the end of its ttl")
    assert [one["cause"] for one in lost] == ["gone", "expired"]
    assert [one["cause"] for one in cleared] == ["cleared"]
    assert lost[1]["held"] >= 0.01


def test_every_signal_has_the_arguments_that_its_page_shows(on_redis: None) -> None:
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
        assert locks.acquire("e")
        assert not_run()["status"] == "skipped"
    found = {
        name: {tuple(sorted(one.keys() - {"signal", "sender"})) for one in ones}
        for name, ones in told.items()
    }
    assert found == {name: {tuple(sorted(arguments))} for name, arguments in shown.items()}
    senders = {one["sender"] for ones in told.values() for one in ones}
    assert senders == {LockService, not_run.__class__}
