"""The service: what can be asked of the locks of a store, what its signals tell, who waits; and how
much of the package runs for one lock."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import io
import json
import pickle
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from celery import Celery
from django.core.cache import cache
from django.core.management import call_command
from django.test import Client
from django.test.utils import override_settings

import django_tasklock
from django_tasklock import LockService, StoreUnavailable, lock, locks, signals
from django_tasklock.celery import LockedTask
from django_tasklock.signals import lock_acquired, lock_contended, lock_released, lock_unavailable
from django_tasklock.stores.base import BaseStore
from django_tasklock.testing import outage
from tests.admin.conftest import id_of, url_of, words_of
from tests.agent import Agent
from tests.inside import Owner, owner_record
from tests.pages import DOCS, code, table
from tests.steps import LONG, Meanwhile, holder, sent, taken, waiting
from tests.waiting import until


@pytest.mark.usefixtures("on_redis")
class TestGet:
    def test_it_tells_what_holds_the_lock(self) -> None:
        # Given a lease of this process
        before, lease = datetime.now(timezone.utc), taken("video:1", ttl=None)
        assert (lease.ttl, lease.renew) == (60.0, False), "as a bare acquire has it"
        # I expect its lock to tell all that is known of it
        info = holder("video:1")
        assert 40 < (info.ttl or 0) <= 60
        assert (info.name, info.token, info.fence) == ("video:1", lease.token, lease.fence)
        assert (info.store, info.key) == ("default", cache.make_key("lock:video:1"))
        assert info.owner == lease.owner == Owner.from_record(owner_record())
        assert (info.owner.alive(), info.waiters) == (True, 0)
        assert info.acquired_at is not None
        assert info.acquired_at.utcoffset() == timedelta(0)
        assert abs(info.acquired_at - before) < timedelta(seconds=30)

    def test_what_it_tells_is_a_value_and_a_text_that_is_no_token_clears_nothing(self) -> None:
        lease, (info,) = taken("video:1"), locks.list()
        again = replace(holder("video:1"), ttl=info.ttl)
        pickles = [pickle.dumps(info, protocol) for protocol in range(2, 6)]
        for same in (again, *map(pickle.loads, pickles), copy.copy(info), copy.deepcopy(info)):
            assert (same, hash(same), same.fence) == (info, hash(info), lease.fence)
        lease.release()
        taken("video:1")
        others = (again, None, holder("video:1"))
        assert [info.is_same_lease(other) for other in others] == [True, False, False]
        for no_token in ("", "token", "a" * 21):
            assert not locks.clear("video:1", token=no_token)
        assert locks.is_locked("video:1")

    def test_what_other_code_wrote_stays_in_the_process(self) -> None:
        cache.set("lock:video:1", "a secret of other code", 60)
        info = holder("video:1")
        assert "secret" not in repr(info)
        assert b"secret" not in pickle.dumps(info)
        again = pickle.loads(pickle.dumps(info))
        assert locks.clear("video:1", digest=again.digest)


class TestSignals:
    def test_calls_refusals_and_outages_tell_the_template(self, on_redis: None) -> None:
        def work(a: int, b: int) -> None:
            with lock("plain"):
                pass

        async def work_async(a: int, b: int) -> None: ...

        with sent(lock_acquired) as acquired, sent(lock_released) as released:
            asyncio.run(lock("async:{a}")(work_async)(1, 2))
            for options in ({}, {"slots": 3}, {"reentrant": True}, {"cooldown": 0.001}):
                lock("kind:{a}", **options)(work)(1, 2)
            lock(["seat:{b}", "seat:{a}", "show"])(work)(1, 2)
        told = {(str(one["lease"].name), one["template"]) for one in acquired}
        assert told == {(str(one["lease"].name), one["template"]) for one in released}
        assert told == {
            ("async:1", "async:{a}"), ("kind:1", "kind:{a}"), ("kind:1#1", "kind:{a}"),
            ("plain", None), ("seat:1", "seat:{a}"), ("seat:2", "seat:{b}"), ("show", "show"),
        }  # fmt: skip
        taken("video:1")
        with sent(lock_contended) as contended, sent(lock_unavailable) as unavailable:
            lock("video:{a}", on_conflict="skip")(work)(1, 2)
            with outage(), pytest.raises(StoreUnavailable):
                lock("video:{a}")(work)(2, 2)
        (refused,), (silent,) = contended, unavailable
        assert refused["template"] == silent["template"] == "video:{a}"
        assert (silent["name"], silent["store"]) == ("video:2", "default")
        assert isinstance(silent["error"], StoreUnavailable)

    @pytest.mark.parametrize("slots", [1, 2])
    def test_who_waited_tells_for_whom_and_how_long(self, store: BaseStore, slots: int) -> None:
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
        assert (second["holder"], first["waited"] >= 0) == (None, True)
        assert [one["lease"] for one in released] == [leases[-1], won]
        assert all(one["held"] >= 0 for one in released)

    def test_each_has_the_arguments_of_its_page_broken_receivers_or_not(
        self, on_redis: None
    ) -> None:
        page = table(DOCS / "reference/signals.md", "Signals", "Signal")
        shown = {code(name)[0]: [tuple(sorted(code(arguments)))] for name, arguments, _ in page}

        def broken(**_: Any) -> None:
            raise RuntimeError("a receiver of somebody's")

        @Celery("signals", set_as_current=False).task(base=LockedTask, lock_name="e", name="no-run")
        def no_run() -> None: ...

        with contextlib.ExitStack() as stack:
            every = {name: getattr(signals, name) for name in signals.__all__ if name.islower()}
            for signal in every.values():
                signal.connect(broken)
                stack.callback(signal.disconnect, broken)
            told = {name: stack.enter_context(sent(signal)) for name, signal in every.items()}
            with lock("a"):
                assert locks.acquire("a") is None
            lost = taken("b")
            assert locks.clear("b")
            assert lost.extend() is False
            short = taken("b", ttl=0.01)
            until(lambda: not short.held, "the end of its ttl")
            assert locks.hold("c", 60) is not None
            with outage(), pytest.raises(StoreUnavailable):
                locks.acquire("d")
            assert locks.acquire("e")
            assert no_run()["status"] == "skipped"
        assert shown == {
            name: [*{tuple(sorted(one.keys() - {"signal", "sender"})) for one in ones}]
            for name, ones in told.items()
        }
        assert [one["cause"] for one in told["lock_lost"]] == ["gone", "expired"]
        assert [one["cause"] for one in told["lock_cleared"]] == ["cleared"]
        senders = {one["sender"] for ones in told.values() for one in ones}
        assert senders == {LockService, no_run.__class__}


def said(*arguments: str) -> str:
    """What the command ``locks`` prints."""
    printed = io.StringIO()
    call_command("locks", *arguments, stdout=printed)
    return printed.getvalue()


@pytest.mark.django_db
def test_waiters_are_told_by_the_service_the_command_the_page(
    on_redis: None, admin_client: Client
) -> None:
    lease = taken("video:1")
    assert locks.waiters("video:1") == []
    with Agent() as first, Agent() as second:
        # Given two processes in the wait queue, of which the first is killed
        for position, agent in enumerate((first, second), 1):
            agent.tell("acquire", name="video:1", ttl=LONG, wait=None)
            until(lambda position=position: waiting("video:1") == position)  # type: ignore[misc]
        first.kill()
        # I expect the service to tell who they are, and who is gone
        found = locks.waiters("video:1")
        assert [owner.pid for owner in found] == [first.pid, second.pid]
        assert [owner.alive() for owner in found] == [False, True]
        assert locks.store.waiters("video:1", 1) == found[:1]
        # And the command, and the page
        sheet, table = said("show", "video:1").split("\n\n")
        assert re.search(r"^waiters: +2$", sheet, re.M)
        assert [row.split()[3] for row in table.splitlines()[2:]] == ["gone", "alive"]
        shown = json.loads(said("show", "video:1", "--format", "json"))
        assert shown["waiting"] == [owner.as_dict() for owner in found]
        (row,) = json.loads(said("list", "--format", "json"))
        since = datetime.fromisoformat(shown["waiting"][0]["waiting_since"])
        assert 0 <= row["longest_wait"] <= time.time() - since.timestamp()
        words = words_of(admin_client.get(url_of("change", id_of(holder("video:1")))))
        one, two = (rf"\S+:{agent.pid}" for agent in (first, second))
        assert re.search(rf" waits .*1 {one} .*gone.* \S+s 2 {two} ", words), words
        # And the one who lives to get the lock
        lease.release()
        assert second.answer()["token"] == holder("video:1").token
        assert locks.waiters("video:1") == []


def test_of_a_lock_with_slots_the_command_shows_the_permits_and_who_waits(on_redis: None) -> None:
    taken("pool#7")  # A plain lock.
    first, _second = [taken("pool", slots=2) for _ in range(2)]
    waits = Meanwhile(lambda: taken("pool", slots=2, wait=None))
    until(lambda: locks.waiters("pool"))
    assert "pool itself is not locked" in said("show", "pool")
    shown = json.loads(said("show", "pool", "--format", "json"))
    assert [row["slot"] for row in shown["permits"]] == [1, 2]
    assert len(shown["waiting"]) == 1
    first.release()
    assert waits.result().slot == 1


PACKAGE = Path(django_tasklock.__file__).parent
STORES = PACKAGE / "stores"


@override_settings(TASKLOCK={"default": {"BACKEND": "django_tasklock.stores.memory.MemoryStore"}})
def test_a_lock_that_is_free_takes_at_most_42_calls_in_10_files() -> None:
    # Given a block that has been entered before
    for _ in range(3):
        one_lock()

    # I expect its next use to call few functions, in few files; but once a second a process looks
    # anew who it is
    calls = min((calls_of(one_lock) for _ in range(3)), key=Counter.total)
    assert calls["_engine/lock.py"] > 0
    assert calls.total() <= 42, calls
    assert len(calls) <= 10, calls


def calls_of(work: Callable[[], None]) -> Counter[str]:
    """How many functions of each file of the package are called, but for those of the stores."""
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        caller = frame.f_back.f_code.co_filename if frame.f_back else ""
        # What the store does, and asks of others, belongs to the store.
        of_store = any(Path(by).is_relative_to(STORES) for by in (path, caller))
        if event == "call" and path.is_relative_to(PACKAGE) and not of_store:
            calls[str(path.relative_to(PACKAGE))] += 1

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def one_lock() -> None:
    with lock("a", wait=5):
        pass
