"""``locks.history``: what happened, for whoever looks later. Nothing, where nobody was met."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest
import redis

from django_tasklock import Event, ListingNotSupported, StoreUnavailable, locks
from django_tasklock.stores import stores
from tests.conftest import UseCaches, UseRedis
from tests.inside import (
    Owner,
    asked,
    clock,
    keep_events_for,
    note,
    owner_record,
    write_events,
    write_some,
)
from tests.servers import RedisServer
from tests.steps import LONG, Traffic, held_by, in_child, taken, waiter
from tests.waiting import PATIENCE, until

Caplog = pytest.LogCaptureFixture
REFUSED = (
    "import sys, django; django.setup(); from django_tasklock import locks; "
    "assert locks.acquire('video:1') is None; print('refused', flush=True); sys.stdin.readline()"
)


def refused(name: str = "video:1", times: int = 1) -> None:
    for _ in range(times):
        assert locks.acquire(name) is None


def only(name: str | None = None) -> Event:
    (event,) = until(lambda: locks.history(name), "an event")
    return event


@pytest.fixture
def server(use_redis: UseRedis, own_redis_server: RedisServer) -> RedisServer:
    use_redis(own_redis_server.url, SOCKET_TIMEOUT=2.0)
    return own_redis_server


@pytest.mark.usefixtures("with_history")
class TestWhatIsWritten:
    @pytest.fixture(params=["redis", "memory"])
    def with_history(self, request: pytest.FixtureRequest, use_caches: UseCaches) -> None:
        if request.param == "redis":
            request.getfixturevalue("on_redis")
        else:
            use_caches({}, {"default": {"BACKEND": "django_tasklock.stores.memory.MemoryStore"}})

    def test_a_refusal_and_a_wait_of_more_than_a_second_say_who_asked_and_who_held_it(self) -> None:
        # Given a lock that is held, and a caller who waits for it in vain
        before, lease = datetime.now(timezone.utc), taken("video:1")
        assert locks.acquire("video:1", wait=0.05) is None
        # I expect one event, with both
        event = only()
        assert (event.kind, event.name, event.store) == ("refused", "video:1", "default")
        for owner in (event.owner, event.holder):
            assert owner is not None
            assert (owner.host, owner.pid) == (lease.owner.host, os.getpid())
        assert (event.seconds or 0) >= 0.05
        assert abs((event.at - before).total_seconds()) < 30
        slow = taken("video:2")
        thread, asked_at = waiter("video:2", 1), clock.now()
        until(lambda: clock.now() > asked_at + 1)
        slow.release()
        thread.result()
        event = only("video:2")
        assert (event.kind, event.owner.pid) == ("waited", os.getpid())
        assert (event.seconds or 0) > 1

    def test_what_somebody_did_to_a_lock_says_who(self) -> None:
        lease, dead = taken("cleared"), in_child(owner_record)
        assert locks.clear("cleared", by="alice\n")
        assert lease.extend() is False
        held_by(dead, "dead")
        assert locks.acquire("dead")
        assert locks.adopt(taken("adopted").detach())
        assert locks.hold("held", 90, by="alice", reason="migration")
        refused("held")
        until(lambda: len(locks.history()) == 6, "all events")
        lost, cleared = locks.history("cleared")
        assert (lost.kind, lost.reason) == ("lost", "the store no longer has it")
        assert (cleared.kind, cleared.by) == ("cleared", "alice\\n")
        assert lost.owner.pid == cleared.owner.pid == os.getpid()
        takeover = only("dead")
        assert (takeover.kind, takeover.owner.pid) == ("taken over", dead["pid"])
        assert (takeover.by or "").endswith(f":{os.getpid()}")
        assert only("adopted").kind == "adopted"
        refusal, held = locks.history("held")
        assert (held.kind, held.by, held.reason, held.seconds) == ("held", "alice", "migration", 90)
        assert refusal.holder == held.owner == Owner(held_by="alice", reason="migration")

    def test_of_an_owner_there_is_what_people_read(self) -> None:
        """What identifies a process for ever would take half of the room."""
        lease = taken("video:1")
        refused()
        event = only("video:1")
        assert lease.owner.boot
        for owner in (event.owner, event.holder):
            assert owner is not None
            assert (owner.host, owner.pid) == (lease.owner.host, lease.owner.pid)
            programs = owner.boot, owner.pidns, owner.timens, owner.start, owner.group
            assert {*programs} == {None}

    def test_what_happened_to_a_task_is_found_by_its_id(self) -> None:
        for task_id in ("id-1", "id-2", "id-3"):
            asked("video:1", task="videos.run", task_id=task_id)
        # What others met because it had the lock did not happen to it.
        assert locks.history(task_id="id-1") == []
        assert locks.clear("video:1")
        assert [event.kind for event in locks.history(task_id="id-1")] == ["cleared"]
        (event,) = locks.history(task_id="id-2")
        assert (event.kind, event.name, event.owner.task_id) == ("refused", "video:1", "id-2")
        assert event.holder is not None
        assert event.holder.task_id == "id-1"
        assert locks.history("video:1", "id-2") == [event]
        assert locks.history("video:2", "id-2") == locks.history(task_id="id") == []
        wrong: Any
        for wrong in ({"name": "a b"}, {"task_id": ""}, {"task_id": 7}, {"limit": -1}):
            with pytest.raises((TypeError, ValueError)):
                locks.history(**wrong)

    def test_equal_refusals_are_one_with_a_count(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """For each second. Another lock or task is another event."""
        keep_events_for(monkeypatch, LONG)
        taken("video:0")
        refused("video:0", 36)
        assert locks.acquire("video:0", wait=0.3) is None
        event = only("video:0")
        assert (event.kind, event.count) == ("refused", 37)
        assert event.since is not None
        assert min(event.seconds or 0, (event.at - event.since).total_seconds()) >= 0.3
        first = taken("video:1")
        taken("video:2")
        for _ in range(2):
            refused()
            refused("video:2")
            asked("video:1", task="videos.run", task_id="id-1")
        first.release()
        asked("video:1", task="videos.run", task_id="second")
        refused()
        found = [
            (event.name, event.count, event.owner.task_id, event.holder and event.holder.task_id)
            for event in locks.history()
        ]
        assert found[:-1] == [
            ("video:1", 3, None, "second"), ("video:1", 2, "id-1", None), ("video:2", 2, None, None)
        ]  # fmt: skip


class TestWhatItCosts:
    def test_nothing_where_nobody_is_met(self, server: RedisServer) -> None:
        taken("video:0").release()
        traffic = Traffic(server)
        for number in range(10):
            assert taken(f"video:{number}", wait=5).release()
        write_events()
        assert (traffic.scripts(), traffic.batches(), locks.history()) == (20, 0, [])

    def test_the_newest_events_are_kept(self, use_redis: UseRedis) -> None:
        use_redis(tasklock={"OPTIONS": {"HISTORY": 300}})
        for number in range(50):
            for _ in range(20):
                note("given up", f"video:{number}", owner_record())
            found = locks.history(limit=10**6)
            assert found[0].name == f"video:{number}"
            assert len(found) <= 300 + 100  # The server removes whole nodes of its list.
        assert len(found) >= 300

    def test_they_are_kept_for_a_week_after_the_last_one(self, on_redis: None) -> None:
        note("lost", "video:1", owner_record())
        note("waited", "video:1", owner_record())
        until(lambda: len(locks.history()) == 2)
        store: Any = stores["default"]
        for key in (store.keys.history, store.keys.rare):
            assert 7 * 86400 - 60 < store.client.command("TTL", key) <= 7 * 86400

    @pytest.mark.parametrize("off", [True, False])
    def test_one_that_is_off_says_so(self, on_locmem: None, use_redis: UseRedis, off: bool) -> None:
        if off:
            use_redis(tasklock={"OPTIONS": {"HISTORY": 0}})
        taken("video:1")
        refused()
        write_events()
        says = "its option HISTORY is 0" if off else "cannot keep a history of its locks"
        with pytest.raises(ListingNotSupported, match=says):
            locks.history()


class TestWhatCanGoWrong:
    def test_an_outage_costs_only_the_events(self, server: RedisServer, caplog: Caplog) -> None:
        caplog.set_level(logging.DEBUG, "django_tasklock")
        lease = taken("video:1")
        server.pause()
        note("waited", "video:1", owner_record())
        until(lambda: any("was not written" in line for line in caplog.messages))
        server.resume()
        assert lease.extend()
        refused()
        until(lambda: "refused" in [event.kind for event in locks.history()])

    def test_many_are_written_in_parts_between_which_leases_are_looked_after(
        self, on_redis: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        keep_events_for(monkeypatch, LONG)
        for number in range(5):
            note("waited", f"video:{number}", Owner())
        assert [write_some(2) for _ in range(3)] == [0.0, 0.0, None]
        assert len(locks.history()) == 5

    def test_what_the_thread_is_writing_is_waited_for(
        self, on_redis: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store: Any = stores["default"]
        begun, may_end, record = threading.Event(), threading.Event(), store.record

        def slow(events: Any) -> None:
            begun.set()
            assert may_end.wait(PATIENCE)
            record(events)

        monkeypatch.setattr(store, "record", slow)
        note("waited", "video:1", Owner())
        assert begun.wait(PATIENCE)
        threading.Timer(0.2, may_end.set).start()
        assert [event.name for event in locks.history()] == ["video:1"]

    @pytest.mark.usefixtures("each_fork")
    def test_a_fork_forgets_what_its_parent_has_queued(
        self, on_redis: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def child() -> list[str]:
            refused()
            return [event.name for event in until(lambda: locks.history())]

        taken("video:1")
        keep_events_for(monkeypatch, LONG)
        note("waited", "parent", Owner())
        assert in_child(child) == ["video:1"]
        assert [event.name for event in locks.history()] == ["video:1", "parent"]

    @pytest.mark.parametrize("silent", [False, True])
    def test_a_process_that_ends_writes_what_is_queued_unless_the_server_is_silent(
        self, server: RedisServer, process_env: Callable[[], dict[str, str]], silent: bool
    ) -> None:
        taken("video:1")
        process: Any
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        command = [sys.executable, "-c", REFUSED]
        with subprocess.Popen(command, env=process_env(), **pipes) as process:
            assert process.stdout.readline() == b"refused\n"
            if silent:
                server.pause()
            process.stdin.close()
            assert process.wait(PATIENCE) == 0
        server.resume()
        assert silent or only().kind == "refused"

    def test_of_a_server_that_refuses_to_keep_it_who_asks_is_told(
        self, server: RedisServer, use_redis: UseRedis
    ) -> None:
        admin: Any = redis.Redis.from_url(server.url)
        rules = ("reset", "on", ">secret", "~*", "&*", "+@all", "-@stream")
        admin.execute_command("ACL", "SETUSER", "worker", *rules)
        use_redis(server.url.replace("//", "//worker:secret@"))
        taken("video:1")
        refused()
        with pytest.raises(StoreUnavailable, match="permissions"):
            locks.history()


class TestStrangersEntries:
    def add(self, *fields: Any) -> None:
        store: Any = stores["default"]
        store.client.command("XADD", store.keys.history, "*", *fields)

    def test_what_somebody_else_wrote_is_skipped(self, on_redis: None) -> None:
        good = {"kind": "refused", "name": "video:1", "owner": {"host": "a", "pid": 7}}
        wrong: list[dict[str, Any]] = [
            {"kind": "other"}, {"name": "a b"}, {"owner": []}, {"owner": {"pid": "x"}},
            {"holder": 7}, {"seconds": True}, {"seconds": float("nan")}, {"by": "\x1b[2J"},
            {"reason": "\ud800"}, {"count": 0}, {"within": -1}, {"count": None},
        ]  # fmt: skip
        for fields in wrong:
            self.add("at", "1.5", "event", json.dumps(good | fields))
        for text in ("", "{}", "[]", "7", "{", "[" * 8000, " " * 9000 + json.dumps(good), b"\x80."):
            self.add("at", "1.5", "event", text)
        for at in ("", "x", "nan", "inf", "1e300", "-1e300"):
            self.add("at", at, "event", json.dumps(good))
        self.add("event", json.dumps(good), "at", "1.5")
        self.add("at", "1.5")
        self.add("at", "1.5", "event", json.dumps(good), "more", "x")
        assert locks.history() == []
        self.add("at", "1.5", "event", json.dumps(good | {"more": [1]}))
        assert only("video:1").owner == Owner(host="a", pid=7)
