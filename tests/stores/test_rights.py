"""A Redis user with too few rights: the error names the one that is missing."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import redis

from django_tasklock import StoreUnavailable, locks
from django_tasklock._values.owner import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores import stores
from django_tasklock.stores.base import Note, Question, Refusal
from tests.conftest import UseCaches, UseRedis
from tests.pages import DOCS, blocks
from tests.servers import RedisServer
from tests.steps import LONG, taken, waiter
from tests.store_cases import redis_cache
from tests.waiting import until


class TestRights:
    def user(self, server: RedisServer, *rules: str) -> str:
        admin: Any = redis.Redis.from_url(server.url)
        admin.execute_command("ACL", "SETUSER", "worker", "reset", "on", ">secret", *rules)
        admin.close()
        return f"redis://worker:secret@127.0.0.1:{server.port}/0"

    def test_rights_of_the_page_are_enough(
        self, own_redis_server: RedisServer, use_redis: UseRedis
    ) -> None:
        """For everything that a store asks of its server."""
        (rules,) = [
            block.text.removeprefix("ACL SETUSER web on >secret ")
            for block in blocks(DOCS / "operations/redis.md", "text")
            if block.text.startswith("ACL SETUSER web ")
        ]
        use_redis(self.user(own_redis_server, *shlex.split(rules)), {"OPTIONS": {"HISTORY": 9}})
        store: Any = stores["default"]
        admin: Any = redis.Redis.from_url(own_redis_server.url)
        admin.script_flush()
        list(store.check())
        lease = taken("video:1")
        assert locks.acquire("video:1") is None
        line = store.waiter(Question(["video:1"], new_token(), LONG, owner_record()))
        assert isinstance(line.ask(), Refusal)
        assert isinstance(line.ask(), Refusal)
        assert locks.waiters("video:1")
        assert locks.list()
        assert locks.list("video")
        assert locks.count()
        assert list(store.endless()) == []
        assert store.find_many(["video:1"])
        assert lease.extend()
        assert lease.release()
        assert line.wait(LONG)
        assert locks.clear("video:1")
        assert taken("video:1").release()
        store.set_note(Note("note", "text", LONG))
        assert store.get_note("note") == "text"
        assert store.reserve("job", "id-1", LONG, unless_held="video:1") is None
        assert store.unreserve("job", "id-1")
        admin.close()
        assert "cleared" in [event.kind for event in locks.history()]

    @pytest.mark.parametrize(
        ("missing", "named"),
        [
            ("+@all -@scripting ~* &*", r"\+@scripting"),
            ("+@all ~other:* &*", r"keys \(~\)"),
            # The server itself tells only the line of a script.
            ("+@all -zadd ~* &*", r"needs \+@read \+@write"),
            ("+@all -evalsha ~* &*", r"needs \+@read \+@write"),
            ("+@all ~* resetchannels", r"\+@pubsub.*channels \(&\)"),
            ("+@all -subscribe ~* &*", r"\+@pubsub.*channels \(&\)"),
        ],
    )
    def test_a_missing_right_is_named(
        self, own_redis_server: RedisServer, use_redis: UseRedis, missing: str, named: str
    ) -> None:
        use_redis(self.user(own_redis_server, *missing.split()))
        waits = "pubsub" in named
        lease = taken("video:1") if waits else None
        with pytest.raises(StoreUnavailable, match=rf"lacks a right.*{named}"):
            locks.acquire("video:1", wait=LONG if waits else 0)
        if lease:
            assert lease.release()
            assert not locks.is_locked("video:1")

    @pytest.mark.parametrize(
        ("missing", "kind", "named"),
        [
            ("-set", "write", r"'set' .*it needs \+@read"),
            ("-zadd", "write", "'zadd'"),
            ("-subscribe", "listen", "'subscribe'"),
            ("-publish", "listen", "'publish'"),
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

    def test_a_server_that_refuses_to_speak_of_itself_is_checked_all_the_same(
        self, own_redis_server: RedisServer, use_redis: UseRedis
    ) -> None:
        use_redis(self.user(own_redis_server, "~*", "&*", "+@all", "-info", "-publish"))
        info, listen = stores["default"].check()
        assert (info.id, info.serious) == ("info", False)
        assert "'info'" in info.message
        assert listen.id == "listen"

    def test_with_replicas_the_checks_name_the_missing_right_to_wait(
        self, own_redis_server: RedisServer, use_redis: UseRedis
    ) -> None:
        """Each acquire would be refused."""
        url = self.user(own_redis_server, "~*", "&*", "+@all", "-wait")
        use_redis(url, {"OPTIONS": {"REPLICAS": 1}})
        replicas, write = stores["default"].check()
        assert (replicas.id, write.id) == ("replicas", "write")
        assert "'wait'" in write.message

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
