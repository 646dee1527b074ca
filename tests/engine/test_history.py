"""``locks.history``: what happened, for whoever looks later. Nothing, where nobody was met."""

from __future__ import annotations

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

from django_tasklock import Event, ListingNotSupported, locks
from django_tasklock.stores import stores
from tests.conftest import UseCaches, UseRedis
from tests.inside import (
    Owner,
    give_up,
    keep_events_for,
    note,
    owner_record,
    write_events,
)
from tests.servers import RedisServer
from tests.steps import LONG, Meanwhile, Traffic, held_by, in_child, taken, waiting
from tests.waiting import until

MEMORY = "django_tasklock.stores.memory.MemoryStore"


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

    def test_a_clear_and_the_loss_that_follows(self) -> None:
        lease = taken("video:1")
        assert locks.clear("video:1", by="alice\n")
        assert lease.extend() is False
        lost, cleared = several(2)
        assert (lost.kind, lost.reason) == ("lost", "the store no longer has it")
        assert (cleared.kind, cleared.by) == ("cleared", "alice\\n")
        assert lost.owner.pid == cleared.owner.pid == os.getpid()

    def test_a_takeover(self) -> None:
        dead = in_child(owner_record)
        held_by(dead, "video:1")
        assert locks.acquire("video:1")
        event = only()
        assert (event.kind, event.owner.pid) == ("taken over", dead["pid"])
        assert event.by is not None
        assert event.by.endswith(f":{os.getpid()}")

    def test_an_adoption(self) -> None:
        handle = taken("video:1").detach()
        assert locks.adopt(handle)
        assert only().kind == "adopted"

    def test_a_hold_and_who_it_kept_away(self) -> None:
        assert locks.hold("video:1", 90, by="alice", reason="migration")
        assert locks.acquire("video:1") is None
        refused, held = several(2)
        assert (held.kind, held.by, held.reason, held.seconds) == ("held", "alice", "migration", 90)
        assert refused.holder == held.owner == Owner(held_by="alice", reason="migration")

    def test_what_happened_to_a_task_is_found_by_its_id(self) -> None:
        locks.try_acquire("video:1", task="videos.run", task_id="id-1")
        for task_id in ("id-2", "id-3"):
            locks.try_acquire("video:1", task="videos.run", task_id=task_id)
        # What others met because it had the lock did not happen to it.
        assert locks.history(task_id="id-1") == []
        assert locks.clear("video:1")
        assert [event.kind for event in locks.history(task_id="id-1")] == ["cleared"]
        (event,) = locks.history(task_id="id-2")
        assert (event.kind, event.name, event.owner.task_id) == ("refused", "video:1", "id-2")
        assert event.holder is not None
        assert event.holder.task_id == "id-1"
        assert locks.history("video:1", "id-2") == [event]
        assert locks.history("video:2", "id-2") == []
        assert locks.history(task_id="id") == []

    @pytest.mark.parametrize(
        "wrong", [{"name": "a b"}, {"task_id": ""}, {"task_id": 7}, {"limit": -1}, {"limit": True}]
    )
    def test_what_cannot_be_meant(self, wrong: Any) -> None:
        with pytest.raises((TypeError, ValueError)):
            locks.history(**wrong)


@pytest.mark.usefixtures("with_history")
class TestRefusalsThatSayTheSame:
    """They are one event with a count, for each second."""

    @pytest.fixture(autouse=True)
    def _all_in_one_batch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        keep_events_for(monkeypatch, LONG)

    def test_they_are_counted(self) -> None:
        taken("video:1")
        for _ in range(36):
            assert locks.acquire("video:1") is None
        assert locks.acquire("video:1", wait=0.3) is None
        event = only()
        assert (event.kind, event.name, event.count) == ("refused", "video:1", 37)
        assert event.seconds is not None
        assert event.seconds >= 0.3
        assert event.since is not None
        assert (event.at - event.since).total_seconds() >= 0.3
        assert (event.as_json()["count"], event.as_json()["since"]) == (
            37, event.since.isoformat(),
        )  # fmt: skip

    def test_another_lock_holder_or_task_is_another_event(self) -> None:
        first = taken("video:1")
        taken("video:2")
        for _ in range(2):
            assert locks.acquire("video:1") is None
            assert locks.acquire("video:2") is None
            for task_id in ("id-1", "id-2"):
                locks.try_acquire("video:1", task="videos.run", task_id=task_id)
        first.release()
        second = taken("video:1")
        assert locks.acquire("video:1") is None
        second.release()
        assert [(event.name, event.count, event.owner.task_id) for event in locks.history()] == [
            ("video:1", 1, None),
            ("video:1", 2, "id-2"),
            ("video:1", 2, "id-1"),
            ("video:2", 2, None),
            ("video:1", 2, None),
        ]

    def test_other_events_are_never_one(self) -> None:
        for _ in range(3):
            give_up(taken("video:1"))
            until(lambda: not locks.is_locked("video:1"))
        assert [(event.kind, event.count) for event in locks.history()] == [("given up", 1)] * 3


class TestWhereThereIsNone:
    def test_a_store_that_keeps_none_says_so(self, on_locmem: None) -> None:
        taken("video:1")
        assert locks.acquire("video:1") is None
        with pytest.raises(ListingNotSupported, match="cannot keep a history of its locks"):
            locks.history()

    def test_it_can_be_turned_off(self, use_redis: UseRedis, own_redis_server: RedisServer) -> None:
        use_redis(own_redis_server.url, {"OPTIONS": {"HISTORY": 0}})
        traffic = Traffic(own_redis_server)

        def work() -> list[Any]:
            taken("video:1")
            assert locks.acquire("video:1") is None
            write_events()
            return []

        assert in_child(work) == []
        assert traffic.batches() == 0
        with pytest.raises(ListingNotSupported, match="its option HISTORY is 0"):
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
        write_events()
        assert traffic.scripts() == 20
        assert traffic.batches() == 0
        assert locks.history() == []
        assert not stores["default"].client.redis.exists(  # type: ignore[attr-defined]
            stores["default"].keyspace.history  # type: ignore[attr-defined]
        )

    def test_the_newest_events_are_kept(self, use_redis: UseRedis) -> None:
        use_redis(tasklock={"OPTIONS": {"HISTORY": 300}})
        assert locks.history() == []
        for number in range(50):
            for _ in range(20):
                note("given up", f"video:{number}", owner_record())
            found = locks.history(limit=10**6)
            assert found[0].name == f"video:{number}"
            assert len(found) <= 300 + 100  # The server removes whole nodes of its list.
        assert len(found) >= 300


class TestWhatCanGoWrong:
    def test_an_outage_costs_the_events_and_nothing_else(
        self, use_redis: UseRedis, own_redis_server: RedisServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        use_redis(own_redis_server.url, SOCKET_TIMEOUT=0.5)
        lease = taken("video:1")
        caplog.set_level(logging.DEBUG, "django_tasklock")
        own_redis_server.pause()
        try:
            note("refused", "video:1", owner_record())
            until(lambda: any("was not written" in line for line in caplog.messages))
        finally:
            own_redis_server.resume()
        assert lease.extend()
        assert locks.acquire("video:1") is None
        until(lambda: "refused" in kinds())
        assert lease.release()

    def test_a_fork_forgets_what_its_parent_has_queued(
        self, on_redis: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        taken("video:1")
        keep_events_for(monkeypatch, LONG)
        note("refused", "parent", Owner())

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

    def test_a_server_that_refuses_to_keep_it_is_told_once_and_left_alone(
        self, use_redis: UseRedis, own_redis_server: RedisServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        admin: Any = redis.Redis.from_url(own_redis_server.url)
        rules = ("reset", "on", ">secret", "~*", "&*", "+@all", "-@stream")
        admin.execute_command("ACL", "SETUSER", "worker", *rules)
        use_redis(own_redis_server.url.replace("//", "//worker:secret@"))
        lease = taken("video:1")
        traffic = Traffic(own_redis_server)
        for number in range(3):
            assert locks.acquire("video:1") is None
            write_events()
            assert traffic.scripts() == number + 2
        warnings = [line for line in caplog.messages if "is not written" in line]
        assert len(warnings) == 1
        assert "xadd" in warnings[0]
        assert "HISTORY: 0" in warnings[0]
        assert lease.extend()
        assert lease.release()

    def test_the_end_of_a_process_does_not_wait_for_a_silent_server(
        self,
        use_redis: UseRedis,
        own_redis_server: RedisServer,
        process_env: Callable[[], dict[str, str]],
    ) -> None:
        use_redis(own_redis_server.url)
        taken("video:1")
        program = (
            "import sys, django; django.setup(); from django_tasklock import locks; "
            "assert locks.acquire('video:1') is None; print('refused', flush=True); "
            "sys.stdin.readline()"
        )
        with subprocess.Popen(
            [sys.executable, "-c", program], env=process_env(),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            assert process.stdin is not None
            assert process.stdout.readline() == b"refused\n"
            own_redis_server.pause()
            try:
                process.stdin.close()
                assert process.wait(60) == 0
            finally:
                own_redis_server.resume()


class TestStrangersEntries:
    def test_an_id_that_no_clock_reaches(
        self, on_redis: None, caplog: pytest.LogCaptureFixture
    ) -> None:
        store: Any = stores["default"]
        store.client.redis.xadd(store.keyspace.history, {"a": "b"}, id="99999999999999-0")
        for count in (1, 2):
            note("lost", "video:1", owner_record())
            assert kinds() == ["lost"] * count
        assert len([line for line in caplog.messages if "begins again" in line]) == 1

    def add(self, **fields: Any) -> None:
        store: Any = stores["default"]
        store.client.redis.xadd(store.keyspace.history, fields)

    def test_what_somebody_else_wrote_is_skipped(self, on_redis: None) -> None:
        good = {"kind": "refused", "name": "video:1", "owner": {"host": "a", "pid": 7}}
        wrong: list[dict[str, Any]] = [
            {"kind": "other"}, {"name": "a b"}, {"owner": []}, {"owner": {"pid": "x"}},
            {"holder": 7}, {"seconds": True}, {"seconds": float("nan")}, {"by": "\x1b[2J"},
            {"reason": "\ud800"}, {"count": 0}, {"within": -1}, {"count": None},
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
