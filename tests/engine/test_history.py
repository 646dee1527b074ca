"""``locks.history``: what happened, for whoever looks later. Nothing, where nobody was met."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest
import redis

from django_tasklock import Event, InvalidLockConfig, ListingNotSupported, LockInfo, locks
from django_tasklock._engine import history
from django_tasklock._engine.aio.lanes import lanes_of
from django_tasklock._engine.noted import MOST_GATHERED, Noted
from django_tasklock._values import clock
from django_tasklock._values.owner import Owner
from django_tasklock._values.owner_record import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores import stores
from django_tasklock.stores.memory import MemoryStore
from django_tasklock.stores.redis.trail import _event_of
from tests.conftest import UseCaches, UseRedis
from tests.servers import RedisServer
from tests.steps import LONG, RENEWED, Meanwhile, Traffic, in_child, taken, waiting
from tests.waiting import until

MEMORY = "django_tasklock.stores.memory.MemoryStore"


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

    @pytest.mark.parametrize("renewed", [True, False])
    def test_a_long_wait_is_written_with_the_release_or_a_renewal(
        self, renewed: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No thread is started between the grant and the work, for which others wait."""
        monkeypatch.setattr("django_tasklock._engine.acquiring.LONG_WAIT_SECONDS", 0.01)
        lease, submitted = taken("video:1"), []
        lane = lanes_of("default").noting
        submit = lane.submit

        def noted(call: Callable[[], None]) -> None:
            submitted.append(call)
            submit(call)

        monkeypatch.setattr(lane, "submit", noted)
        ttl = RENEWED if renewed else LONG
        thread = Meanwhile(lambda: locks.acquire("video:1", ttl=ttl, wait=LONG, renew=renewed))
        until(lambda: waiting("video:1"))
        asked = clock.now()
        until(lambda: clock.now() - asked > 0.02)
        # As another process would: our own release writes what this process has noted.
        assert stores["default"].release("video:1", lease.token)
        mine = thread.result()
        assert mine is not None
        if not renewed:
            assert submitted == []
            mine.release()
        until(lambda: [event.kind for event in locks.store.events()] == ["waited"])
        mine.release()

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

    @pytest.mark.parametrize("task_id", ["", 7])
    def test_an_id_that_no_task_can_have(self, task_id: Any) -> None:
        with pytest.raises((TypeError, ValueError)):
            locks.history(task_id=task_id)

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


@pytest.mark.usefixtures("with_history")
class TestRefusalsThatSayTheSame:
    """They are one event with a count, for each second."""

    @pytest.fixture(autouse=True)
    def _all_in_one_batch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(history, "BATCH_SECONDS", LONG)

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

    def test_a_single_one_has_no_first_moment(self) -> None:
        taken("video:1")
        assert locks.acquire("video:1") is None
        assert (only().count, only().since) == (1, None)

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
            locks.give_up(taken("video:1"))
            until(lambda: not locks.is_locked("video:1"))
        assert [(event.kind, event.count) for event in locks.history()] == [("given up", 1)] * 3

    def test_too_many_different_ones_are_dropped_and_other_events_are_not(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "django_tasklock")
        taken("video:1")
        for number in range(MOST_GATHERED + 100):
            history.note_event("default", "refused", f"video:{number}", owner_record())
        history.note_event("default", "lost", "video:1", owner_record())
        found = locks.history(limit=10**6)
        assert found[0].kind == "lost"
        assert len(found) == MOST_GATHERED + 1
        assert "100 events of the lock store default were dropped" in caplog.text


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
            return [list(history._queues), writers()]

        assert in_child(work) == [[], []]
        assert traffic.batches() == 0
        with pytest.raises(ListingNotSupported, match="its option HISTORY is 0"):
            locks.history()

    @pytest.mark.parametrize("wrong", [-1, True, "100", 1.5, 10**7])
    def test_a_wrong_number_of_events(self, use_redis: UseRedis, wrong: Any) -> None:
        use_redis(tasklock={"OPTIONS": {"HISTORY": wrong}})
        with pytest.raises(InvalidLockConfig, match="HISTORY"):
            locks.history()


def writers() -> list[str]:
    """The threads of this process that may write a history."""
    return [thread.name for thread in threading.enumerate() if thread.name == "tasklock-async"]


class TestWhatItCosts:
    def test_no_thread_before_something_happens(self, on_redis: None) -> None:
        def work() -> list[int]:
            assert taken("video:1").release()
            before = len(writers())
            taken("video:1")
            assert locks.acquire("video:1") is None
            until(writers)
            return [before, len(writers())]

        assert in_child(work) == [0, 1]

    def test_it_goes_away_when_nothing_happens_any_more(self, on_redis: None) -> None:
        taken("video:1")
        assert locks.acquire("video:1") is None
        assert only().kind == "refused"
        store: Any = stores["default"]
        week = 7 * 24 * 3600
        assert week - 60 < store.client.redis.ttl(store.keyspace.history) <= week

    def test_what_was_read_is_not_read_again(self, on_redis: None) -> None:
        taken("video:1")
        for _ in range(3):
            assert locks.acquire("video:1") is None
            assert locks.history()
        before = _event_of.cache_info().misses
        assert len(locks.history()) == 3
        assert _event_of.cache_info().misses == before

    def test_a_task_that_others_met_is_no_search_through_their_events(self, on_redis: None) -> None:
        """Where its id is only that of the holder, the server itself leaves the event out."""
        store: Any = stores["default"]
        holder, now = Owner(task="t", task_id="busy"), datetime.now(timezone.utc)
        refused = Event("refused", "video:1", "default", now, Owner(task_id="other"), holder)
        store.record([refused] * 500)
        before = _event_of.cache_info()
        assert locks.history(task_id="busy", limit=1) == []
        after = _event_of.cache_info()
        assert (after.hits, after.misses) == (before.hits, before.misses)

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
        until(lambda: sum(event.count for event in locks.history(limit=2000)) == 1001)
        # As many as seconds, and as there were looks, on a machine however busy.
        assert len(locks.history(limit=2000)) <= 100
        assert 1 <= traffic.batches() <= 100

    def test_a_crowd_of_events_is_dropped_and_counted_once(
        self, use_redis: UseRedis, own_redis_server: RedisServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        use_redis(own_redis_server.url)
        taken("video:1")
        caplog.set_level(logging.DEBUG, "django_tasklock")
        owner, noted = owner_record(), 3 * history.MOST_QUEUED
        own_redis_server.pause()
        try:
            for number in range(noted):
                history.note_event("default", "refused", f"video:{number}", owner)
        finally:
            own_redis_server.resume()
        (line,) = until(lambda: [line for line in caplog.messages if "were dropped" in line])
        history._write("default", history._queues["default"])
        assert len(history._queues["default"].events) <= history.MOST_QUEUED
        # Those that it was writing while the server was silent may be lost. Others are written.
        history.note_event("default", "cleared", "video:last", owner)
        until(lambda: "video:last" in {event.name for event in locks.history(limit=10**6)})
        dropped = int(line.split()[0])
        assert dropped > MOST_GATHERED
        assert len(locks.history(limit=10**6)) <= noted - dropped + 1
        assert len([line for line in caplog.messages if "were dropped" in line]) == 1

    def test_the_newest_events_are_kept(self, use_redis: UseRedis) -> None:
        use_redis(tasklock={"OPTIONS": {"HISTORY": 300}})
        assert locks.history() == []
        for number in range(50):
            for _ in range(20):
                history.note_event("default", "given up", f"video:{number}", owner_record())
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
        now = time.time()
        queued.events.append(
            Noted(stores["default"], "refused", "parent", now, Owner(), None, None, None, None)
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
            history.write_events("default")
            assert traffic.scripts() == number + 2
        warnings = [line for line in caplog.messages if "is not written" in line]
        assert len(warnings) == 1
        assert "xadd" in warnings[0]
        assert "HISTORY: 0" in warnings[0]
        assert lease.extend()
        assert lease.release()

    def test_a_server_whose_memory_is_full(
        self, use_redis: UseRedis, own_redis_server: RedisServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        use_redis(own_redis_server.url)
        lease = taken("video:1")
        admin: Any = redis.Redis.from_url(own_redis_server.url)
        admin.config_set("maxmemory-policy", "noeviction")
        admin.config_set("maxmemory", 1)
        history.note_event("default", "refused", "video:1", owner_record())
        until(lambda: any("is not written" in line for line in caplog.messages))
        assert lease.release()

    @pytest.mark.nightly
    def test_under_gevent(
        self, use_redis: UseRedis, process_env: Callable[[], dict[str, str]]
    ) -> None:
        use_redis()
        taken("video:1")
        program = (
            "from gevent import monkey; monkey.patch_all(); import gevent, time; "
            "import django; django.setup(); from django_tasklock import locks; "
            "gevent.joinall([gevent.spawn(locks.acquire, 'video:1') for _ in range(20)]); "
            "time.sleep(2.5); "
            "assert locks.acquire('video:1') is None"
        )
        subprocess.run([sys.executable, "-c", program], env=process_env(), check=True)
        assert sum(event.count for event in locks.history()) == 21

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


def raise_interrupt(*_: Any) -> Any:
    raise KeyboardInterrupt


class TestStrangersEntries:
    @pytest.mark.parametrize(
        "late", ["18446744073709551615-18446744073709551615", "99999999999999-0", "4102444800000-1"]
    )
    def test_an_id_that_no_clock_reaches(
        self, on_redis: None, caplog: pytest.LogCaptureFixture, late: str
    ) -> None:
        taken("video:1")
        assert locks.acquire("video:1") is None
        assert kinds() == ["refused"]
        store: Any = stores["default"]
        store.client.redis.xadd(store.keyspace.history, {"a": "b"}, id=late)
        for _ in range(2):
            history.note_event("default", "lost", "video:1", owner_record())
            assert kinds()[0] == "lost"
        assert kinds() == ["lost", "lost"]
        assert len([line for line in caplog.messages if "begins again" in line]) == 1

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
            {"reason": "\ud800"}, {"count": 0}, {"count": True}, {"count": "2"}, {"count": 10**10},
            {"count": 1.5}, {"within": -1}, {"within": "1"}, {"within": 1e30}, {"count": None},
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
