"""Keys that others set, ours as others see them, and moving from the old recipe key by key."""

from __future__ import annotations

import shutil
import subprocess
import threading
from typing import Any

import pytest
import redis
from django.core.cache import cache
from django.core.management import call_command
from django.db import connection, connections
from django.db.backends.signals import connection_created
from django.test.utils import override_settings

from django_tasklock import LockNotAcquired, lock, locks
from django_tasklock._engine.renewal import renewal
from django_tasklock._values.owner import Owner
from django_tasklock._values.owner_record import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores import stores
from django_tasklock.stores.base import Grant
from tests.conftest import UseCaches, UseRedis
from tests.servers import RedisServer
from tests.steps import LONG, Meanwhile, all_of, holder, taken
from tests.store_cases import own_prefix
from tests.waiting import until

REDIS = "django_tasklock.stores.redis.RedisStore"
CACHE = "django_tasklock.stores.cache.CacheStore"
SOON_SECONDS = 5.0
"""seconds; a waiter looks every second at a key that somebody else set"""


@pytest.fixture(autouse=True)
def on_redis(use_redis: UseRedis) -> None:
    use_redis()


class TestOldRecipe:
    """``cache.add(key, "locked", 7200)`` elsewhere, on the very same key."""

    def test_old_code_excludes_us(self) -> None:
        assert cache.add("lock:video:1", "locked", 7200)
        assert locks.acquire("video:1") is None
        with pytest.raises(LockNotAcquired), lock("video:1"):
            pytest.fail("the block ran")  # pragma: no cover
        info = holder("video:1")
        assert (info.token, info.acquired_at, info.fence) == (None, None, None)
        assert info.owner == Owner()
        assert info.owner.alive() is None
        assert info.ttl is not None
        assert 7000 < info.ttl <= 7200
        assert cache.get("lock:video:1") == "locked"
        cache.delete("lock:video:1")
        assert taken("video:1").release()

    def test_we_exclude_old_code(self) -> None:
        lease = taken("video:1")
        assert cache.add("lock:video:1", "locked", 7200) is False
        assert lease.release()
        assert cache.add("lock:video:1", "locked", 7200) is True

    def test_without_a_prefix_the_keys_are_those_of_old_code(self, use_redis: UseRedis) -> None:
        use_redis(tasklock={"KEY_PREFIX": ""})
        assert cache.add("transcode-1", "locked", 7200)
        assert locks.acquire("transcode-1") is None
        cache.delete("transcode-1")
        lease = taken("transcode-1")
        assert lease.extend()
        assert cache.add("transcode-1", "locked", 7200) is False
        assert [info.name for info in locks.list()] == ["transcode-1"]
        assert lease.release()
        assert "transcode-1" not in cache

    def test_old_and_new_code_never_run_together(self, use_redis: UseRedis) -> None:
        use_redis(tasklock={"KEY_PREFIX": ""})
        inside, runs = threading.Lock(), []

        def work(kind: str) -> None:
            assert inside.acquire(blocking=False), "two at once"
            runs.append(kind)
            inside.release()

        def old() -> None:
            for _ in range(40):
                if cache.add("transcode-1", "locked", 7200):
                    work("old")
                    cache.delete("transcode-1")

        def new() -> None:
            for _ in range(40):
                lease = locks.acquire("transcode-1")
                if lease:
                    work("new")
                    assert lease.release()

        all_of(*[old, new] * 3)
        assert {"old", "new"} <= set(runs)

    @pytest.mark.parametrize("timeout", [None, 7200], ids=["for-ever", "two-hours"])
    def test_waiter_finds_within_seconds_that_old_code_is_done(self, timeout: int | None) -> None:
        """``cache.delete`` tells nobody: it is looked for."""
        cache.add("lock:video:1", "locked", timeout)
        first = Meanwhile(lambda: taken("video:1", wait=None))
        until(lambda: holder("video:1").waiters == 1)
        second = Meanwhile(lambda: taken("video:1", wait=None))
        until(lambda: holder("video:1").waiters == 2)
        cache.delete("lock:video:1")
        assert first.result(SOON_SECONDS).release()
        assert second.result(SOON_SECONDS).release()

    def test_waiter_learns_that_old_code_came_before_it(self) -> None:
        """The key was free between the holder's lease and that."""
        lease = taken("video:1", ttl=4)
        waiter = Meanwhile(lambda: taken("video:1", wait=None))
        until(lambda: holder("video:1").waiters == 1)
        cache.set("lock:video:1", "locked", 7200)
        until(lambda: not lease.held)
        cache.delete("lock:video:1")
        assert waiter.result(SOON_SECONDS).release()

    def test_key_that_never_expires_is_waited_for(self) -> None:
        cache.add("lock:video:1", "locked", None)
        assert holder("video:1").ttl is None
        thread = Meanwhile(lambda: locks.acquire("video:1", wait=0.3))
        assert thread.result() is None
        cache.delete("lock:video:1")
        assert taken("video:1").held

    def test_it_is_waited_for_until_it_expires(self) -> None:
        cache.set("lock:video:1", "locked", 1)
        assert taken("video:1", wait=LONG).held


class TestOurKey:
    def test_cache_shows_it(self) -> None:
        lease = taken("video:1", ttl=50)
        assert cache.get("lock:video:1")["token"] == lease.token
        assert cache.ttl("lock:video:1") in (49, 50)  # type: ignore[attr-defined]
        assert "lock:video:1" in cache

    def test_redis_cli_shows_and_deletes_it(self, redis_server: RedisServer) -> None:
        lease = taken("video:1", ttl=50)
        key = holder("video:1").key
        assert int(self.cli(redis_server, "TTL", key)) in (49, 50)
        assert int(self.cli(redis_server, "DEL", key)) == 1
        assert not locks.is_locked("video:1")
        assert lease.extend() is False
        assert taken("video:1").held

    def cli(self, server: RedisServer, *command: str) -> str:
        program = shutil.which("redis-cli")
        if program is None:
            client: Any = redis.Redis.from_url(server.url)
            return str(client.execute_command(*command))
        done = subprocess.run(
            [program, "-u", server.url, *command], capture_output=True, text=True, check=True
        )
        return done.stdout

    def test_key_that_was_overwritten_is_no_longer_ours(self) -> None:
        lease = taken("video:1")
        cache.set("lock:video:1", "locked", 7200)
        assert lease.release() is False
        assert cache.get("lock:video:1") == "locked"

    def test_key_that_is_deleted_by_hand_is_not_handed_over_but_found(self) -> None:
        """Nobody is told; a waiter asks again when the lease would have ended."""
        taken("video:1", ttl=4)
        thread = Meanwhile(lambda: taken("video:1", wait=None))
        until(lambda: holder("video:1").waiters == 1)
        cache.delete("lock:video:1")
        assert thread.result().held

    def test_nothing_is_left_of_a_released_lock(self, redis_server: RedisServer) -> None:
        client: Any = redis.Redis.from_url(redis_server.url)
        for number in range(50):
            taken(f"video:{number}").release()
        store: Any = stores["default"]
        mine = {key for key in client.keys("*") if store.key("")[:12].encode() in key}
        assert mine == {store.keyspace.fences}
        assert not [field for field in client.hkeys(store.keyspace.fences) if field.strip()]


JUNK: list[Any] = [
    {"token": "t" * 22},
    {"token": "t" * 22, "at": "yesterday", "ends": "tomorrow"},
    {"token": "t" * 22, "at": 1e300, "ends": 1e300, "pid": "x", "start": []},
    {"token": "t" * 22, "at": float("nan"), "boot": owner_record()["boot"]},
    {"token": None},
    {"token": ["t"]},
    {},
    [],
    "",
    0,
    b"\x00\xff",
]


class TestJunk:
    """Whatever is in the key, it is a lock, and it can be seen and cleared."""

    @pytest.mark.parametrize("backend", [REDIS, CACHE])
    @pytest.mark.parametrize("value", JUNK, ids=repr)
    def test_it_is_held_until_it_is_cleared(
        self, use_redis: UseRedis, backend: str, value: Any
    ) -> None:
        use_redis(tasklock={"BACKEND": backend})
        cache.set("lock:video:1", value, LONG)
        assert locks.acquire("video:1") is None
        assert locks.acquire("video:1", wait=0.02) is None
        assert locks.is_locked("video:1")
        info = holder("video:1")
        assert info.as_json()["name"] == "video:1"
        assert info.owner.alive() is None
        assert stores["default"].release("video:1", new_token()) is False
        assert stores["default"].extend("video:1", "t" * 22, LONG) in (False, True)
        assert locks.clear("video:1") is True
        assert taken("video:1").release()

    def test_bytes_of_no_serializer(self, redis_server: RedisServer) -> None:
        client: Any = redis.Redis.from_url(redis_server.url)
        store: Any = stores["default"]
        client.set(store.key("video:1"), b"\x80\x04garbage")
        assert locks.acquire("video:1") is None
        assert holder("video:1").ttl is None
        assert locks.clear("video:1")


class TestChangeOfStore:
    """The same cache, first with one BACKEND and then with the other."""

    @pytest.mark.parametrize(("before", "after"), [(REDIS, CACHE), (CACHE, REDIS)])
    def test_leases_of_the_one_exclude_those_of_the_other(self, before: str, after: str) -> None:
        with override_settings(TASKLOCK={"default": {"BACKEND": before}}):
            lease = taken("video:1")
        with override_settings(TASKLOCK={"default": {"BACKEND": after}}):
            assert locks.acquire("video:1") is None
            assert holder("video:1").token == lease.token
            assert holder("video:1").owner == lease.owner
        with override_settings(TASKLOCK={"default": {"BACKEND": before}}):
            assert lease.release()


@pytest.mark.parametrize("backend", [REDIS, CACHE])
def test_a_key_without_a_value_is_a_lock(use_redis: UseRedis, backend: str) -> None:
    """Old code may set None: that the key is there is what counts for it."""
    use_redis(tasklock={"BACKEND": backend})
    cache.add("lock:video:1", None, 60)
    assert locks.acquire("video:1") is None
    assert locks.is_locked("video:1")
    assert holder("video:1").token is None
    assert locks.clear("video:1")
    assert taken("video:1").release()


@pytest.mark.django_db(transaction=True)
def test_lease_that_is_given_up_leaves_no_database_connection(use_caches: UseCaches) -> None:
    """The renewal thread is no request, at whose end Django would close it."""
    table = own_prefix().replace("-", "_")
    backend = "django.core.cache.backends.db.DatabaseCache"
    use_caches({"default": {"BACKEND": backend, "LOCATION": table}})
    call_command("createcachetable", verbosity=0)
    opened: list[Any] = []

    def note(connection: Any, **kwargs: Any) -> None:
        opened.append(connection)

    connection_created.connect(note)
    try:
        token = new_token()
        granted = stores["default"].acquire("video:1", token, 60.0, owner_record())
        assert isinstance(granted, Grant)
        renewal.abandon("video:1", token, 60.0, stores["default"])
        until(lambda: not locks.is_locked("video:1"))
        until(lambda: all(each.connection is None for each in opened if each is not connection))
    finally:
        connection_created.disconnect(note)
        with connections["default"].cursor() as cursor:
            cursor.execute(f"DROP TABLE {table}")
    assert opened, "it used no connection of its own"
