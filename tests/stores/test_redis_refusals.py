"""A Redis that refuses: a user with too few rights is told which one is missing; on a server
that may take no more memory (`maxmemory`, noeviction) what was held goes on."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.management import call_command

from django_tasklock import StoreUnavailable, locks
from django_tasklock.stores import stores
from django_tasklock.stores.base import Note, Question, Refusal
from tests.conftest import UseCaches, UseRedis
from tests.inside import new_token, owner_record
from tests.pages import DOCS, blocks
from tests.servers import RedisServer
from tests.steps import LONG, SOON_SECONDS, holder, taken, waiter
from tests.store_cases import redis_cache
from tests.waiting import until


@pytest.fixture
def worker(own_redis_server: RedisServer, admin: Any) -> Callable[..., str]:
    """``worker(*rules)``: the URL of a user with these rights."""

    def made(*rules: str) -> str:
        admin.execute_command("ACL", "SETUSER", "worker", "reset", "on", ">secret", *rules)
        return f"redis://worker:secret@127.0.0.1:{own_redis_server.port}/0"

    return made


def test_rights_of_the_page_are_enough(
    worker: Callable[..., str], admin: Any, use_redis: UseRedis
) -> None:
    # Given a user with the rights that the page names
    (rules,) = [
        block.text.removeprefix("ACL SETUSER web on >secret ")
        for block in blocks(DOCS / "operations/redis.md", "text")
        if block.text.startswith("ACL SETUSER web ")
    ]
    use_redis(worker(*shlex.split(rules)), {"OPTIONS": {"HISTORY": 9}})

    # I expect everything to be answered that a store asks of its server
    store: Any = stores["default"]
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
    worker: Callable[..., str], use_redis: UseRedis, missing: str, named: str
) -> None:
    use_redis(worker(*missing.split()))
    waits = "pubsub" in named
    lease = taken("video:1") if waits else None
    with pytest.raises(StoreUnavailable, match=rf"lacks a right.*{named}"):
        locks.acquire("video:1", wait=LONG if waits else 0)
    if lease:
        assert lease.release()
        assert not locks.is_locked("video:1")


@pytest.mark.parametrize(
    ("missing", "replicas", "found"),
    [
        ("-set", None, {"write": r"'set' .*it needs \+@read"}),
        ("-zadd", None, {"write": "'zadd'"}),
        ("-subscribe", None, {"listen": "'subscribe'"}),
        ("-publish", None, {"listen": "'publish'"}),
        ("resetchannels", None, {"listen": r"channels \(&\)"}),
        # A server that refuses to speak of itself is checked all the same.
        ("-info -publish", None, {"info": "'info'", "listen": "'publish'"}),
        # Each acquire would be refused.
        ("-wait", 1, {"replicas": "", "write": "'wait'"}),
    ],
)
def test_39_the_checks_name_the_missing_right(
    worker: Callable[..., str],
    use_redis: UseRedis,
    missing: str,
    replicas: int | None,
    found: dict[str, str],
) -> None:
    """Before anybody waits for a lock, or releases one that somebody waits for."""
    url = worker("~*", "&*", "+@all", *missing.split())
    use_redis(url, {"OPTIONS": {"REPLICAS": replicas} if replicas else {}})
    findings = [*stores["default"].check()]
    assert [each.id for each in findings] == [*found]
    for each in findings:
        assert each.serious is (each.id != "info")
        lacks = "the Redis user lacks a right: .*" if each.id in ("write", "listen") else ""
        assert re.search(f"{lacks}{found[each.id]}", each.message)


def test_releaser_without_the_right_to_tell_is_told_itself(
    worker: Callable[..., str], own_redis_server: RedisServer, use_caches: UseCaches
) -> None:
    mute = redis_cache(worker("~*", "+@all", "resetchannels"))
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


Fill = Callable[[], None]


@pytest.fixture
def fill(use_redis: UseRedis, own_redis_server: RedisServer, admin: Any) -> Fill:
    """Locks are on a server that is full once this is called."""
    use_redis(own_redis_server.url)

    def full() -> None:
        admin.config_set("maxmemory-policy", "noeviction")
        admin.config_set("maxmemory", 1)

    return full


def test_39_what_is_held_is_extended_renewed_and_released(fill: Fill) -> None:
    lease, renewed, cools = taken("a"), taken("b", ttl=1.0, renew=True), taken("c")
    fill()
    ends = renewed._own.until
    until(lambda: renewed._own.until > ends, "renewed")
    assert lease.extend(LONG)
    assert locks.adopt(cools.detach()) is not None
    assert lease.release()
    assert renewed.release()
    assert not locks.is_locked("a")


@pytest.mark.parametrize("how", ["released", "cleared", "cleared with others"])
def test_39_the_next_waiter_gets_the_lock(fill: Fill, admin: Any, how: str) -> None:
    lease = taken("video")
    thread = waiter("video", 1)
    fill()
    if how == "released":
        assert lease.release()
    elif how == "cleared":
        assert locks.clear("video", lease.token)
    else:
        call_command("locks", "clear", "--all", "--noinput")
    assert thread.result(SOON_SECONDS).release()
    with pytest.raises(StoreUnavailable, match="is full: raise its maxmemory"):
        locks.hold("video", 60)
    admin.config_set("maxmemory", 0)
    assert taken("a").release()


def test_39_the_checks_say_so(fill: Fill, admin: Any) -> None:
    assert run_checks(tags=["tasklock"], include_deployment_checks=True) == []
    # They leave nothing.
    taken("video")
    before, connected = sorted(admin.keys()), admin.info("clients")["connected_clients"]
    assert list(stores["default"].check()) == []
    assert sorted(admin.keys()) == before
    until(lambda: admin.info("clients")["connected_clients"] <= connected, "the connection's end")
    assert holder("video").token
    fill()
    (message,) = run_checks(tags=["tasklock"], include_deployment_checks=True)
    assert message.id == "django_tasklock.write"
    assert "the server is full: raise its maxmemory" in message.msg
