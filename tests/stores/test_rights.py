"""A Redis user with too few rights: the error names the one that is missing."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import redis

from django_tasklock import StoreUnavailable, lock, locks
from django_tasklock._values.owner import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores import stores
from django_tasklock.stores.base import Note, Refusal
from tests.conftest import UseCaches, UseRedis
from tests.pages import DOCS, blocks
from tests.servers import RedisServer
from tests.steps import LONG, SOON_SECONDS, taken, waiter
from tests.store_cases import redis_cache
from tests.waiting import until

COMMANDS = [
    "evalsha", "eval", "get", "set", "exists", "del", "pttl", "pexpire", "type", "time", "hget",
    "hset", "hdel", "hmget", "hincrby", "mget", "zadd", "zcard", "zcount", "zrange",
    "zrangebyscore", "zrem", "zscore", "publish", "pubsub", "subscribe", "scan", "info", "unlink",
]  # fmt: skip
"""all that a store's verbs run, inside scripts and outside"""


def all_verbs(server: RedisServer) -> None:
    """Everything that a store asks of its server."""
    store: Any = stores["default"]
    admin: Any = redis.Redis.from_url(server.url)
    admin.script_flush()
    list(store.check())
    lease = taken("video:1")
    assert locks.acquire("video:1") is None
    line = store.waiter("video:1", new_token(), LONG, owner_record())
    assert isinstance(line.ask(), Refusal)
    assert isinstance(line.ask(), Refusal)
    assert locks.waiters("video:1")
    assert locks.list()
    assert locks.list("video")
    assert locks.count()
    assert list(store.scan())
    assert store.held(["video:1"])
    assert lease.extend()
    assert lease.release()
    assert line.wait(LONG)
    assert locks.clear("video:1")
    assert taken("video:1").release()
    store.set_note(Note("note", "text", LONG))
    assert store.get_note("note") == "text"
    assert store.reserve("job", "id-1", LONG, unless_held="video:1") is None
    assert store.unreserve("job", "id-1")
    admin.rpush(store.key("video:2"), "x")
    assert locks.is_locked("video:2")
    for key, kind in ((store.keyspace.index, "x"), (store.keyspace.fences, "x")):
        admin.set(key, kind)
    assert taken("video:3").release()


class TestRights:
    def user(self, server: RedisServer, *rules: str) -> str:
        admin: Any = redis.Redis.from_url(server.url)
        admin.execute_command("ACL", "SETUSER", "worker", "reset", "on", ">secret", *rules)
        admin.close()
        return f"redis://worker:secret@127.0.0.1:{server.port}/0"

    def test_rights_of_the_page_are_enough(
        self, own_redis_server: RedisServer, use_redis: UseRedis
    ) -> None:
        (line,) = [
            block.text
            for block in blocks(DOCS / "operations/redis.md", "text")
            if block.text.startswith("ACL SETUSER web ")
        ]
        with redis.Redis.from_url(own_redis_server.url) as admin:
            admin.execute_command(*shlex.split(line))
        use_redis(own_redis_server.url.replace("//", "//web:secret@"), {"OPTIONS": {"HISTORY": 9}})
        all_verbs(own_redis_server)
        assert "cleared" in [event.kind for event in locks.history()]

    def test_rights_that_are_named_are_enough(
        self, own_redis_server: RedisServer, use_redis: UseRedis
    ) -> None:
        rights = "~* &* +@scripting +@pubsub +@string +@sortedset +@hash +@keyspace +time"
        use_redis(self.user(own_redis_server, *rights.split()))
        lease = taken("video:1")
        thread = waiter("video:1", 1)
        assert lease.extend()
        assert lease.release()
        assert thread.result(SOON_SECONDS).release()
        with lock("video:2") as lease:
            assert [info.name for info in locks.list()] == ["video:2"]
            assert locks.count() == 1
        assert not locks.clear("video:2", lease.token)

    def test_missing_right_to_scripts_is_named(
        self, own_redis_server: RedisServer, use_redis: UseRedis
    ) -> None:
        use_redis(self.user(own_redis_server, "~*", "&*", "+@all", "-@scripting"))
        with pytest.raises(StoreUnavailable, match=r"lacks a right.*\+@scripting"):
            locks.acquire("video:1")

    def test_missing_right_to_keys_is_named(
        self, own_redis_server: RedisServer, use_redis: UseRedis
    ) -> None:
        use_redis(self.user(own_redis_server, "~other:*", "&*", "+@all"))
        with pytest.raises(StoreUnavailable, match=r"lacks a right.*keys \(~\)"):
            locks.acquire("video:1")

    @pytest.mark.parametrize("command", COMMANDS)
    def test_missing_right_to_a_command_is_named(
        self, own_redis_server: RedisServer, use_redis: UseRedis, command: str
    ) -> None:
        """Whichever it is, also where the server itself tells only the line of a script."""
        use_redis(self.user(own_redis_server, "~*", "&*", "+@all", f"-{command}"))
        with pytest.raises(StoreUnavailable) as raised:
            all_verbs(own_redis_server)
        named = raised.value.reason.partition("lacks a right: ")[2].partition(" (")[0].split(" or ")
        assert f"+{command}" in [name.partition("|")[0] for name in named]
        assert len(named) < 4
        assert "+time, the lock keys (~)" in raised.value.reason

    @pytest.mark.parametrize("missing", ["resetchannels", "-@pubsub", "-subscribe"])
    def test_missing_right_to_listen_is_named(
        self, own_redis_server: RedisServer, use_redis: UseRedis, missing: str
    ) -> None:
        use_redis(self.user(own_redis_server, "~*", "&*", "+@all", missing))
        lease = taken("video:1")
        with pytest.raises(StoreUnavailable, match=r"lacks a right.*\+@pubsub.*channels \(&\)"):
            locks.acquire("video:1", wait=LONG)
        assert lease.release()
        assert not locks.is_locked("video:1")

    @pytest.mark.parametrize(
        ("missing", "kind", "named"),
        [
            ("-set", "write", r"\+set .*it needs \+@read"),
            ("-zadd", "write", r"\+zadd "),
            ("-subscribe", "listen", r"\+subscribe "),
            ("-publish", "listen", r"\+publish "),
            ("resetchannels", "listen", r"channels \(&\)"),
        ],
    )
    def test_39_the_checks_name_the_missing_right(
        self,
        own_redis_server: RedisServer,
        use_redis: UseRedis,
        missing: str,
        kind: str,
        named: str,
    ) -> None:
        """Before anybody waits for a lock, or releases one that somebody waits for."""
        use_redis(self.user(own_redis_server, "~*", "&*", "+@all", missing))
        (finding,) = stores["default"].check()
        assert (finding.id, finding.serious) == (kind, True)
        assert re.search(rf"the Redis user lacks a right: .*{named}", finding.message)

    def test_releaser_without_the_right_to_tell_is_told_itself(
        self, own_redis_server: RedisServer, use_caches: UseCaches
    ) -> None:
        mute = redis_cache(self.user(own_redis_server, "~*", "+@all", "resetchannels"))
        use_caches(
            {"default": mute | {"LOCATION": own_redis_server.url}, "mute": mute},
            {"default": {}, "mute": {"CACHE": "mute"}},
        )
        lease = locks.using("mute").acquire("video:1", ttl=LONG)
        assert lease is not None
        thread = waiter("video:1", 1)
        with pytest.raises(StoreUnavailable, match=r"channels \(&\)"):
            lease.release()
        assert locks.clear("video:1")
        until(lambda: not thread.is_alive() or not locks.clear("video:1"))
