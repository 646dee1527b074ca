"""Outages: never "held", never "not held", and nothing is left behind by a reply that was lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from django.core.cache import cache

from django_tasklock import Lease, StoreUnavailable, lock, locks, signals
from django_tasklock.stores import stores
from tests.conftest import UseCaches, UseRedis
from tests.inside import distrust_connections, sha_of_script
from tests.proxy import CutProxy
from tests.servers import RedisServer
from tests.steps import LONG, RENEWED, Meanwhile, all_of, answered, holder, sent, taken, waiter
from tests.store_cases import own_prefix, redis_cache
from tests.waiting import until

TIMEOUT_SECONDS = 0.4
"""seconds; the client's own"""
VERBS: dict[str, Callable[[Lease], object]] = {
    "acquire": lambda lease: locks.acquire("video:2"),
    "acquire-and-wait": lambda lease: locks.acquire("video:1", wait=LONG),
    "block": lambda lease: lock("video:2").__enter__(),
    "extend": lambda lease: lease.extend(),
    "release": lambda lease: lease.release(),
    "get": lambda lease: locks.get("video:1"),
    "is_locked": lambda lease: locks.is_locked("video:1"),
    "list": lambda lease: locks.list(),
    "count": lambda lease: locks.count("video"),
    "clear": lambda lease: locks.clear("video:1"),
    "clear-token": lambda lease: locks.clear("video:1", lease.token),
    "check": lambda lease: list(stores["default"].check()),
}


FOR_EVER: dict[str, Any] = {
    "SOCKET_TIMEOUT": None,
    "CONNECTION_POOL_KWARGS": {"socket_timeout": None, "socket_connect_timeout": None},
}
"""for a cache that would wait for ever, as django-redis did with redis-py before version 8"""


class TestRedisDown:
    @pytest.fixture(params=["django-redis", "django"])
    def server(
        self, request: pytest.FixtureRequest, own_redis_server: RedisServer, use_caches: UseCaches
    ) -> RedisServer:
        """With everything set that may hide an error."""
        url, limit = own_redis_server.url, {"SOCKET_TIMEOUT": TIMEOUT_SECONDS}
        caches = {
            "django-redis": redis_cache(url, IGNORE_EXCEPTIONS=True, **FOR_EVER),
            "django": {
                "BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": url,
                "KEY_PREFIX": own_prefix(),
            },
        }  # fmt: skip
        use_caches(
            {"default": caches[request.param]},
            {"default": {"OPTIONS": limit}},
            DJANGO_REDIS_IGNORE_EXCEPTIONS=True,
        )
        return own_redis_server

    @pytest.mark.parametrize("how", ["kill", "pause"])
    def test_every_verb_says_that_the_store_is_unavailable(
        self, server: RedisServer, how: str
    ) -> None:
        # Given a lease, and a server that does not answer
        lease = taken("video:1")
        getattr(server, how)()

        # I expect each verb to say so
        for verb in VERBS.values():
            thread = Meanwhile(lambda: verb(lease))  # noqa: B023
            with pytest.raises(StoreUnavailable, match="the lock store 'default' is un"):
                thread.result()
        assert not lease.held, "its release was asked for"

        # And the lock to be free when the server is well again
        if how == "pause":
            server.resume()
            # Or the renewal thread was quicker.
            assert answered(lease.release) or not answered(lambda: locks.is_locked("video:1"))
        else:
            server.restart()
            assert answered(lease.extend) is False
        until(lambda: answered(lambda: locks.acquire("video:1")), "the end of the lease")

    @pytest.mark.parametrize("broken", [False, True])
    def test_end_of_a_block_says_so_unless_the_block_has_failed(
        self, server: RedisServer, broken: bool
    ) -> None:
        def block() -> None:
            with lock("video:1"):
                server.kill()
                if broken:
                    raise KeyError("boom")

        with pytest.raises(KeyError if broken else StoreUnavailable):
            block()


class TestRestartedEmpty:
    """A Redis that lost its data."""

    @pytest.fixture(autouse=True)
    def server(self, own_redis_server: RedisServer, use_redis: UseRedis) -> RedisServer:
        use_redis(own_redis_server.url)
        return own_redis_server

    def test_leases_are_lost_and_say_so(self, server: RedisServer) -> None:
        """Also by a renewal: not only at its end, until which its body would go on."""
        with sent(signals.lock_lost) as lost:
            released, extended = taken("video:1"), taken("video:2")
            renewed = taken("video:3", ttl=RENEWED, renew=True)
            server.restart()
            assert released.release() is False
            assert extended.extend() is False
            until(lambda: len(lost) == 3)
        assert not renewed.held
        assert {told["lease"] for told in lost} == {released, extended, renewed}
        assert {told["cause"] for told in lost} == {"gone"}

    def test_fences_grow_all_the_same(self, server: RedisServer) -> None:
        before = taken("video:1").fence
        server.restart()
        assert (taken("video:1").fence or 0) > (before or 0) > 0

    def test_fences_grow_though_the_servers_clock_steps_back(self) -> None:
        """Given a last fence of an hour ahead of the clock, as after such a step."""
        store: Any = stores["default"]
        ahead = int((time.time() + 3600) * 1_000_000)
        store.client.command("HSET", store.keys.fences, "", ahead)
        first = taken("video:1")
        thread = waiter("video:1", 1)
        first.release()
        fences = [first.fence, thread.result().fence, taken("video:2").fence]
        assert fences == [ahead + 1, ahead + 2, ahead + 3]


class TestLostReply:
    @pytest.fixture(autouse=True)
    def through_a_proxy(self, use_redis: UseRedis, cut_proxy: CutProxy) -> None:
        use_redis(cut_proxy.url)
        taken("warm")
        locks.clear("warm")  # The server knows the scripts from now on.
        taken("warm").release()

    @pytest.mark.parametrize("wait", [0, LONG])
    def test_acquire_is_granted_what_it_was_granted(self, cut_proxy: CutProxy, wait: float) -> None:
        """It asks once more, and is not refused by its own lease."""
        cut_proxy.drop_reply(b"video:1")
        lease = taken("video:1", wait=wait)
        assert cut_proxy.lost_replies == 1
        assert holder("video:1").token == lease.token
        assert locks.acquire("video:1") is None
        assert lease.release() is True
        assert not locks.is_locked("video:1")

    def test_release_has_released_and_leaves_the_next_holder_alone(
        self, cut_proxy: CutProxy
    ) -> None:
        """And an extension before it has extended."""
        lease = taken("video:1", ttl=5)
        cut_proxy.drop_reply(b"video:1")
        assert lease.extend(LONG) is True
        assert lease.remaining > 5
        assert (holder("video:1").ttl or 0) > 5
        thread = waiter("video:1", 1)
        cut_proxy.drop_reply(b"video:1")
        assert lease.release() is True
        assert cut_proxy.lost_replies == 2
        assert thread.result().held
        assert holder("video:1").token == thread.result().token

    def test_clear_is_not_repeated_on_the_next_holder(self, cut_proxy: CutProxy) -> None:
        taken("video:1")
        thread = waiter("video:1", 1)
        token = holder("video:1").token
        assert token is not None
        cut_proxy.drop_reply(sha_of_script("put"))
        with pytest.raises(StoreUnavailable):
            locks.clear("video:1")
        assert thread.result().held
        assert holder("video:1").token == thread.result().token


class TestCutConnections:
    """Several connections are at hand, and all of them are cut."""

    @pytest.fixture(autouse=True)
    def through_a_proxy(self, use_redis: UseRedis, cut_proxy: CutProxy) -> None:
        use_redis(cut_proxy.url)
        for script in (locks.get, locks.is_locked):
            all_of(*[lambda script=script: script("warm")] * 6)

    @pytest.mark.parametrize(
        "name", sorted(set(VERBS) - {"acquire-and-wait", "clear", "clear-token", "check"})
    )
    def test_no_verb_notices(self, cut_proxy: CutProxy, name: str) -> None:
        lease = taken("video:1")
        all_of(*[lambda: locks.get("video:1")] * 6)
        cut_proxy.cut()
        assert VERBS[name](lease) not in (None, False)

    def test_what_was_not_sent_is_sent_on_another_connection_once(
        self, cut_proxy: CutProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # A connection that has rested is looked at. Here each counts as rested.
        distrust_connections(monkeypatch)
        store: Any = stores["default"]
        mine, lost = taken("video:1"), taken("video:2")
        assert locks.clear("video:2")
        other = taken("video:2")
        assert store.reserve("key", "text", LONG) is None
        for verb, done in (
            (mine.release, True), (lost.release, False), (other.release, True),
            (lambda: locks.clear("video:2"), False),
            (lambda: store.unreserve("key", "text"), True),
        ):  # fmt: skip
            store.client._connections.own()._idle.clear()
            cut_proxy.turn_away()  # The next connection comes to nothing.
            assert verb() is done
        gone = taken("video:1")
        cache.delete("lock:video:1")
        cut_proxy.cut()
        assert gone.release() is False, "it was not this release that ended it"


class TestForgottenConnections:
    """A NAT or a balancer has forgotten those that were idle: nothing arrives on them any more."""

    @pytest.fixture(autouse=True)
    def through_a_proxy(
        self, use_redis: UseRedis, cut_proxy: CutProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        use_redis(cut_proxy.url, SOCKET_TIMEOUT=2)
        # Here each counts as idle for long.
        distrust_connections(monkeypatch, idle=True)

    @pytest.mark.parametrize("name", ["get", "extend", "release", "clear-token", "unreserve"])
    def test_no_verb_notices(self, cut_proxy: CutProxy, name: str) -> None:
        """What must not be made twice neither."""
        lease, store = taken("video:1"), stores["default"]
        assert store.reserve("key", "text", LONG) is None
        all_of(*[lambda: locks.get("video:1")] * 3)
        cut_proxy.forget()
        verbs = VERBS | {"unreserve": lambda _: store.unreserve("key", "text")}
        assert verbs[name](lease) not in (None, False)

    def test_a_block_whose_work_is_done_ends_well(self, cut_proxy: CutProxy) -> None:
        with lock("video:1", ttl=LONG):
            cut_proxy.forget()
        assert not locks.is_locked("video:1")


@pytest.mark.parametrize(
    ("cache", "store", "limits"),
    [
        ({}, {}, (5.0, 5.0)),
        ({}, {"SOCKET_TIMEOUT": 2}, (2, 2)),
        ({}, {"SOCKET_TIMEOUT": None}, (None, None)),
        ({"socket_timeout": 3, "socket_connect_timeout": 1}, {}, (3, 1)),
        ({"socket_timeout": 3}, {"SOCKET_TIMEOUT": None}, (None, None)),
    ],
    ids=str,
)
def test_limits(
    own_redis_server: RedisServer,
    use_redis: UseRedis,
    cache: dict[str, Any],
    store: dict[str, Any],
    limits: tuple[float | None, float | None],
) -> None:
    given = FOR_EVER | {"CONNECTION_POOL_KWARGS": FOR_EVER["CONNECTION_POOL_KWARGS"] | cache}
    use_redis(own_redis_server.url, tasklock={"OPTIONS": store}, **given)
    made: Any = stores["default"]
    assert locks.get("video:1") is None
    for connection in (made.client.new_connection(), *made.client._connections.own()._made):
        assert (connection.socket_timeout, connection.socket_connect_timeout) == limits
