"""``locks.history``: what happened, for whoever looks later. Nothing, where nobody was met."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest
import redis

from django_tasklock import Event, InvalidLockConfig, ListingNotSupported, LockInfo, locks
from django_tasklock._engine import history
from django_tasklock._values import clock
from django_tasklock._values.owner import Owner, owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores import stores
from django_tasklock.stores.memory import MemoryStore
from tests.conftest import UseCaches, UseRedis
from tests.servers import RedisServer
from tests.steps import LONG, Meanwhile, Traffic, in_child, taken, waiting
from tests.waiting import until

MEMORY = "django_tasklock.stores.memory.MemoryStore"

pytestmark = pytest.mark.usefixtures("keeping_history")


@pytest.fixture
def on_redis(use_redis: UseRedis) -> None:
    use_redis()


@pytest.fixture(params=["redis", "memory"])
def with_history(request: pytest.FixtureRequest, use_caches: UseCaches) -> None:
    if request.param == "memory":
        use_caches({}, {"default": {"BACKEND": MEMORY}})
    else:
        request.getfixturevalue("use_redis")()


def several(count: int) -> list[Event]:
    """As many events as there must be, the newest first."""
    until(lambda: len(locks.history()) >= count, f"{count} events")
    found = locks.history()
    assert len(found) == count
    return found


def only(name: str | None = None) -> Event:
    """The one event that there is."""
    (event,) = until(lambda: locks.history(name), "an event")
    return event


def kinds(name: str | None = None) -> list[str]:
    return [event.kind for event in locks.history(name)]


def dead_holder(name: str) -> Owner:
    """The owner of a lock whose process was here, and is gone."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    owner = owner_record() | {"pid": process.pid, "start": 1}
    stores["default"].acquire(name, new_token(), LONG, owner)
    return Owner.from_record(owner)


@pytest.mark.usefixtures("with_history")
class TestWhatIsWritten:
    def test_a_refusal_says_who_asked_and_who_held_it(self) -> None:
        before = datetime.now(timezone.utc)
        lease = taken("video:1")
        assert locks.acquire("video:1", wait=0.05) is None
        event = only()
        assert (event.kind, event.name, event.store) == ("refused", "video:1", "default")
        assert event.holder is not None
        for owner in (event.owner, event.holder):
            assert (owner.host, owner.pid) == (lease.owner.host, os.getpid())
            assert owner.start is None
        assert event.seconds is not None
        assert event.seconds >= 0.05
        assert abs((event.at - before).total_seconds()) < 30

    def test_a_wait_of_more_than_a_second(self) -> None:
        lease = taken("video:1")
        thread = Meanwhile(lambda: taken("video:1", wait=LONG))
        until(lambda: waiting("video:1"))
        asked = datetime.now(timezone.utc)
        until(lambda: (datetime.now(timezone.utc) - asked).total_seconds() > 1)
        lease.release()
        thread.result()
        event = only()
        assert (event.kind, event.owner.pid) == ("waited", os.getpid())
        assert event.seconds is not None
        assert event.seconds > 1

    def test_a_short_wait_is_nothing(self) -> None:
        lease = taken("video:1")
        thread = Meanwhile(lambda: taken("video:1", wait=LONG))
        until(lambda: waiting("video:1"))
        lease.release()
        thread.result()
        if thread.took < 0.9:
            assert locks.history() == []

    def test_a_clear_and_the_loss_that_follows(self) -> None:
        lease = taken("video:1")
        assert locks.clear("video:1", by="alice\n")
        assert lease.extend() is False
        lost, cleared = several(2)
        assert (lost.kind, lost.reason) == ("lost", "the store no longer has it")
        assert (cleared.kind, cleared.by) == ("cleared", "alice\\n")
        assert lost.owner.pid == cleared.owner.pid == os.getpid()

    def test_a_takeover(self) -> None:
        dead = dead_holder("video:1")
        assert locks.acquire("video:1")
        event = only()
        assert (event.kind, event.owner.pid) == ("taken over", dead.pid)
        assert event.by is not None
        assert event.by.endswith(f":{os.getpid()}")

    def test_an_adoption(self) -> None:
        handle = taken("video:1").detach()
        assert locks.adopt(handle)
        assert only().kind == "adopted"

    def test_a_lease_that_is_given_up(self) -> None:
        lease = taken("video:1")
        locks.give_up(lease)
        assert only().kind == "given up"

    def test_a_hold_and_who_it_kept_away(self) -> None:
        assert locks.hold("video:1", 90, by="alice", reason="migration")
        assert locks.acquire("video:1") is None
        refused, held = several(2)
        assert (held.kind, held.by, held.reason, held.seconds) == ("held", "alice", "migration", 90)
        assert refused.holder == held.owner == Owner(held_by="alice", reason="migration")

    def test_permits_are_in_the_history_of_their_name(self) -> None:
        held = [taken("video", slots=2) for _ in range(2)]
        assert locks.acquire("video", slots=2) is None
        assert locks.clear(held[1].name)
        until(lambda: len(locks.history()) == 2)
        assert kinds("video") == ["cleared", "refused"]
        assert kinds(held[1].name) == ["cleared"]
        assert kinds(held[0].name) == []

    def test_on_an_event_loop(self) -> None:
        async def refused() -> list[Event]:
            assert await locks.aacquire("video:1")
            assert await locks.aacquire("video:1") is None
            return await locks.ahistory("video:1", limit=1)

        assert [event.kind for event in asyncio.run(refused())] == ["refused"]

    @pytest.mark.parametrize("name", ["", "a b", 7])
    def test_a_name_that_no_lock_can_have(self, name: Any) -> None:
        with pytest.raises((TypeError, ValueError)):
            locks.history(name)

    @pytest.mark.parametrize("limit", [-1, 1.5, True, None])
    def test_a_limit_that_is_no_number(self, limit: Any) -> None:
        with pytest.raises((TypeError, ValueError)):
            locks.history(limit=limit)


class TestWhereThereIsNone:
    def test_a_store_that_keeps_none_says_so(self, on_locmem: None) -> None:
        taken("video:1")
        assert locks.acquire("video:1") is None
        with pytest.raises(ListingNotSupported, match="cannot keep a history of its locks"):
            locks.history()

    def test_it_can_be_turned_off(self, use_redis: UseRedis, own_redis_server: RedisServer) -> None:
        use_redis(own_redis_server.url, {"OPTIONS": {"HISTORY": 0}})
        traffic = Traffic(own_redis_server)
        taken("video:1")
        assert locks.acquire("video:1") is None
        assert "default" not in history._queues or not history._queues["default"].events
        with pytest.raises(ListingNotSupported, match="its option HISTORY is 0"):
            locks.history()
        assert traffic.batches() == 0

    @pytest.mark.parametrize("wrong", [-1, True, "100", 1.5, 10**7])
    def test_a_wrong_number_of_events(self, use_redis: UseRedis, wrong: Any) -> None:
        use_redis(tasklock={"OPTIONS": {"HISTORY": wrong}})
        with pytest.raises(InvalidLockConfig, match="HISTORY"):
            locks.history()


class TestWhatItCosts:
    def test_nothing_where_nobody_is_met(
        self, use_redis: UseRedis, own_redis_server: RedisServer
    ) -> None:
        use_redis(own_redis_server.url)
        taken("video:0").release()
        traffic = Traffic(own_redis_server)
        for number in range(10):
            assert taken(f"video:{number}", wait=5).release()
        assert not history._queues["default"].events if "default" in history._queues else True
        assert traffic.scripts() == 20
        assert traffic.batches() == 0
        assert locks.history() == []
        assert not stores["default"].client.redis.exists(  # type: ignore[attr-defined]
            stores["default"].keyspace.history  # type: ignore[attr-defined]
        )

    def test_a_storm_of_refusals_is_a_few_batches(
        self, use_redis: UseRedis, own_redis_server: RedisServer
    ) -> None:
        use_redis(own_redis_server.url)
        taken("video:1")
        assert locks.acquire("video:1") is None
        assert len(locks.history()) == 1
        traffic = Traffic(own_redis_server)
        for _ in range(1000):
            assert locks.acquire("video:1") is None
        assert traffic.scripts() == 1000
        queue = history._queues["default"]
        until(lambda: not queue.events)
        # As many as fifths of a second, on a machine however busy, and none for most of them.
        until(lambda: len(locks.history(limit=2000)) + queue.dropped == 1001)
        assert 1 <= traffic.batches() <= 100

    def test_a_crowd_of_events_is_dropped_and_counted_once(
        self, use_redis: UseRedis, own_redis_server: RedisServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        use_redis(own_redis_server.url)
        taken("video:1")
        caplog.set_level(logging.INFO, "django_tasklock")
        own_redis_server.pause()
        try:
            for _ in range(3 * history.MOST_QUEUED):
                history.note_event("default", "refused", "video:1", owner_record())
        finally:
            own_redis_server.resume()
        lines = until(lambda: [line for line in caplog.messages if "were dropped" in line])
        history._write("default", history._queues["default"])
        assert len(lines) == 1
        assert len(history._queues["default"].events) <= history.MOST_QUEUED
        assert len(locks.history(limit=10**6)) <= 2 * history.MOST_QUEUED

    def test_the_newest_events_are_kept(self, use_redis: UseRedis) -> None:
        use_redis(tasklock={"OPTIONS": {"HISTORY": 300}})
        assert locks.history() == []
        for number in range(50):
            for _ in range(20):
                history.note_event("default", "refused", f"video:{number}", owner_record())
            found = locks.history(limit=10**6)
            assert found[0].name == f"video:{number}"
            assert len(found) <= 300 + 100  # The server removes whole nodes of its list.
        assert len(found) >= 300

    def test_clearing_all_locks_leaves_it(self, use_redis: UseRedis) -> None:
        from django.core.management import call_command

        use_redis()
        taken("video:1")
        assert locks.acquire("video:1") is None
        assert only().kind == "refused"
        assert [info.name for info in locks.list()] == ["video:1"]
        assert locks.count() == 1
        assert [info.name for info in stores["default"].scan()] == ["video:1"]
        call_command("locks", "clear", "--all", "--noinput", stdout=io.StringIO())
        assert kinds() == ["cleared", "refused"]


class TestWhatCanGoWrong:
    def test_an_outage_costs_the_events_and_nothing_else(
        self, use_redis: UseRedis, own_redis_server: RedisServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        use_redis(own_redis_server.url, SOCKET_TIMEOUT=0.5)
        lease = taken("video:1")
        caplog.set_level(logging.DEBUG, "django_tasklock")
        own_redis_server.pause()
        try:
            history.note_event("default", "refused", "video:1", owner_record())
            until(lambda: any("was not written" in line for line in caplog.messages))
        finally:
            own_redis_server.resume()
        assert lease.extend()
        assert locks.acquire("video:1") is None
        until(lambda: "refused" in kinds())
        assert lease.release()

    def test_a_mistake_of_the_store_is_not_the_callers(
        self, use_caches: UseCaches, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        use_caches({}, {"default": {"BACKEND": MEMORY}})
        asked: list[int] = []

        def record(self: MemoryStore, events: list[Event]) -> None:
            asked.append(len(events))
            raise RuntimeError("a mistake")

        monkeypatch.setattr(MemoryStore, "record", record)
        taken("video:1")
        assert locks.acquire("video:1") is None
        until(lambda: asked)

    def test_a_writer_that_was_never_asked_for_is_asked_for_again(
        self, on_redis: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As if an exception had been raised between the two lines."""
        taken("video:1")
        monkeypatch.setattr(history, "LOST_WRITER_SECONDS", 0.1)
        with monkeypatch.context() as patch:
            patch.setattr(history, "lanes_of", raise_interrupt)
            with pytest.raises(KeyboardInterrupt):
                locks.acquire("video:1")
        queue = history._queues["default"]
        assert len(queue.events) == 1
        until(lambda: clock.now() >= queue.due)
        assert locks.acquire("video:1") is None
        until(lambda: "refused" in kinds())

    def test_a_fork_forgets_what_its_parent_has_queued(self, on_redis: None) -> None:
        taken("video:1")
        queued = history._Queue()
        history._queues["default"] = queued
        now = datetime.now(timezone.utc)
        queued.events.append(
            history._Happened(
                stores["default"], "refused", "parent", now, Owner(), None, None, None, None
            )
        )

        def work() -> list[str]:
            assert locks.acquire("video:1") is None
            return [event.name for event in until(lambda: locks.history())]

        assert in_child(work) == ["video:1"]
        assert [event.name for event in locks.history()] == ["parent", "video:1"]

    def test_what_is_queued_is_written_when_the_process_ends(
        self, use_redis: UseRedis, process_env: Callable[[], dict[str, str]]
    ) -> None:
        use_redis(tasklock={"OPTIONS": {"HISTORY": 1000}})
        taken("video:1")
        program = (
            "import django; django.setup(); from django_tasklock import locks; "
            "assert locks.acquire('video:1') is None"
        )
        subprocess.run([sys.executable, "-c", program], env=process_env(), check=True)
        assert kinds() == ["refused"]


def raise_interrupt(*_: Any) -> Any:
    raise KeyboardInterrupt


class TestStrangersEntries:
    def add(self, **fields: Any) -> None:
        store: Any = stores["default"]
        store.client.redis.xadd(store.keyspace.history, fields)

    def test_what_somebody_else_wrote_is_skipped(self, on_redis: None) -> None:
        good = {"kind": "refused", "name": "video:1", "owner": {"host": "a", "pid": 7}}
        wrong: list[dict[str, Any]] = [
            {"kind": "other"}, {"kind": 7}, {"name": ""}, {"name": "a b"}, {"name": 7},
            {"name": "a" * 300}, {"owner": None}, {"owner": []}, {"owner": {"pid": "x"}},
            {"owner": {"host": "a" * 3000}}, {"holder": 7}, {"holder": {"host": "\x1b[2J"}},
            {"seconds": "1"}, {"seconds": True}, {"seconds": -1}, {"seconds": float("nan")},
            {"seconds": 1e30}, {"by": "\x1b[2J"}, {"by": "a" * 300}, {"reason": 7},
            {"reason": "\ud800"},
        ]  # fmt: skip
        for fields in wrong:
            self.add(name="video:1", event=f"0 {json.dumps(good | fields)}")
        texts = ["", "0", "0 ", "x {}", "0 []", "0 7", "0 {", "0 " + "[" * 8000, "0 " + "9" * 8000]
        texts += [f"{ago} {json.dumps(good)}" for ago in ("-1", "9999999", "1" * 20, "", "1.5")]
        for text in texts:
            self.add(name="video:1", event=text)
        self.add(name="video:1", event=b"\x80\x04cos\nsystem\n(S'false'\ntR.")
        self.add(name="video:1", event="0 " + " " * 9000 + json.dumps(good))
        self.add(event=f"0 {json.dumps(good)}", name="video:1")
        self.add(name="video:1")
        self.add(a="b", c="d")
        self.add(name="video:1", event=f"0 {json.dumps(good)}", more="x")
        self.add(name=b"\xff", event=f"0 {json.dumps(good | {'name': 'other'})}")
        assert locks.history("video:1") == []
        assert [event.name for event in locks.history()] == ["other"]
        self.add(name="video:1", event=f"0 {json.dumps(good | {'more': [1]})}")
        assert only("video:1").owner == Owner(host="a", pid=7)

    def test_another_type_under_its_key_is_removed(self, on_redis: None) -> None:
        store: Any = stores["default"]
        store.client.redis.set(store.keyspace.history, "x")
        taken("video:1")
        assert locks.acquire("video:1") is None
        assert only().kind == "refused"

    def test_a_foreign_key_is_a_holder_without_an_owner(self, on_redis: None) -> None:
        from django.core.cache import cache

        cache.add("lock:video:1", "theirs", 60)
        assert isinstance(locks.get("video:1"), LockInfo)
        assert locks.acquire("video:1") is None
        assert only().holder == Owner()


def test_it_is_one_stream(use_redis: UseRedis, own_redis_server: RedisServer) -> None:
    use_redis(own_redis_server.url)
    taken("video:1")
    assert locks.acquire("video:1") is None
    assert only().kind == "refused"
    with redis.Redis.from_url(own_redis_server.url) as client:
        streams = [key for key in client.keys("*") if client.type(key) == b"stream"]
    assert [key.rpartition(b":")[2] for key in streams] == [b"lock history"]
