"""Outages: never "held", never "not held", and nothing is left behind by a reply that was lost."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from django.core.cache import cache

from django_tasklock import Lease, LeaseLost, StoreUnavailable, lock, locks, signals
from django_tasklock.stores import stores
from django_tasklock.stores.base import BaseStore, CannotSubscribe
from django_tasklock.stores.redis.leases import CLEAR, RELEASE
from tests.conftest import ProxyTo, UseCaches, UseRedis
from tests.proxy import CutProxy
from tests.servers import RedisServer, free_port
from tests.steps import LONG, Meanwhile, all_of, holder, sent, taken, waiting
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
    "list-prefix": lambda lease: locks.list("video"),
    "count": lambda lease: locks.count(),
    "count-prefix": lambda lease: locks.count("video"),
    "clear": lambda lease: locks.clear("video:1"),
    "clear-token": lambda lease: locks.clear("video:1", lease.token),
    "check": lambda lease: list(stores["default"].check()),
}


class TestRedisDown:
    @pytest.fixture(params=["django-redis", "django"])
    def server(
        self,
        request: pytest.FixtureRequest,
        own_redis_server: RedisServer,
        use_caches: UseCaches,
    ) -> RedisServer:
        """With everything set that may hide an error."""
        if request.param == "django-redis":
            configured = redis_cache(
                own_redis_server.url,
                IGNORE_EXCEPTIONS=True,
                SOCKET_TIMEOUT=TIMEOUT_SECONDS,
                SOCKET_CONNECT_TIMEOUT=TIMEOUT_SECONDS,
            )
        else:
            configured = {
                "BACKEND": "django.core.cache.backends.redis.RedisCache",
                "LOCATION": own_redis_server.url,
                "KEY_PREFIX": own_prefix(),
                "OPTIONS": {
                    "socket_timeout": TIMEOUT_SECONDS,
                    "socket_connect_timeout": TIMEOUT_SECONDS,
                },
            }
        use_caches({"default": configured}, DJANGO_REDIS_IGNORE_EXCEPTIONS=True)
        return own_redis_server

    @pytest.mark.parametrize("how", ["killed", "paused"])
    def test_every_verb_says_that_the_store_is_unavailable(
        self, server: RedisServer, how: str
    ) -> None:
        lease = taken("video:1")
        server.kill() if how == "killed" else server.pause()
        for name, verb in VERBS.items():
            began = time.monotonic()
            with pytest.raises(StoreUnavailable) as error:
                verb(lease)
            took = time.monotonic() - began
            assert took < 4 * TIMEOUT_SECONDS + 10, f"{name} took {took:.2f} s"
            assert str(error.value).startswith("the lock store 'default' is unavailable: ")
        assert not lease.held, "its release was asked for"
        if how == "paused":
            server.resume()
            assert lease.release()

    def test_it_is_well_again_when_the_server_is(self, server: RedisServer) -> None:
        lease = taken("video:1")
        server.kill()
        with pytest.raises(StoreUnavailable):
            locks.get("video:1")
        server.restart()
        assert locks.get("video:1") is None
        assert lease.extend() is False
        assert taken("video:1").release()

    def test_lock_that_a_paused_server_grants_afterwards_is_given_back(
        self, server: RedisServer
    ) -> None:
        taken("warm").release()
        server.pause()
        with pytest.raises(StoreUnavailable):
            locks.acquire("video:1", ttl=LONG)
        server.resume()
        until(lambda: locks.acquire("video:1", ttl=LONG), "giving it back")

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


class TestHangingServer:
    """With a cache that would wait for ever, as django-redis did with redis-py before version 8."""

    FOR_EVER: ClassVar[dict[str, Any]] = {
        "SOCKET_TIMEOUT": None,
        "CONNECTION_POOL_KWARGS": {"socket_timeout": None, "socket_connect_timeout": None},
    }

    @pytest.fixture
    def server(self, own_redis_server: RedisServer, use_redis: UseRedis) -> RedisServer:
        options = {"SOCKET_TIMEOUT": TIMEOUT_SECONDS}
        use_redis(own_redis_server.url, tasklock={"OPTIONS": options}, **self.FOR_EVER)
        return own_redis_server

    def assert_unavailable(self, verb: Callable[[], object]) -> None:
        thread = Meanwhile(verb)
        with pytest.raises(StoreUnavailable):
            thread.result()

    def test_every_verb_says_that_the_store_is_unavailable(self, server: RedisServer) -> None:
        lease = taken("video:1")
        server.pause()
        for verb in VERBS.values():
            self.assert_unavailable(lambda verb=verb: verb(lease))  # type: ignore[misc]
        server.resume()

    def test_connecting_too(self, server: RedisServer) -> None:
        """The system takes the connection; the server says nothing."""
        server.pause()
        self.assert_unavailable(lambda: locks.acquire("video:1"))
        server.resume()

    def test_waiter_that_cannot_begin_to_listen(self, server: RedisServer) -> None:
        """Its server hangs between the first question and the second."""
        store: Any = stores["default"]
        server.pause()
        with pytest.raises(CannotSubscribe):
            Meanwhile(store.subscriber.join).result()
        server.resume()

    @pytest.mark.parametrize(
        ("cache", "store", "limits"),
        [
            ({}, {}, (5.0, 5.0)),
            ({}, {"SOCKET_TIMEOUT": 2}, (2, 2)),
            ({}, {"SOCKET_TIMEOUT": None}, (None, None)),
            ({"socket_timeout": 3}, {}, (3, 3)),
            ({"socket_timeout": 3, "socket_connect_timeout": 1}, {}, (3, 1)),
            ({"socket_connect_timeout": 1}, {}, (5.0, 1)),
            ({"socket_timeout": 3}, {"SOCKET_TIMEOUT": None}, (None, None)),
        ],
        ids=str,
    )
    def test_limits(
        self,
        own_redis_server: RedisServer,
        use_redis: UseRedis,
        cache: dict[str, Any],
        store: dict[str, Any],
        limits: tuple[float | None, float | None],
    ) -> None:
        never = self.FOR_EVER["CONNECTION_POOL_KWARGS"]
        use_redis(
            own_redis_server.url,
            tasklock={"OPTIONS": store},
            SOCKET_TIMEOUT=None,
            CONNECTION_POOL_KWARGS=never | cache,
        )
        made: Any = stores["default"]
        assert locks.get("video:1") is None
        for connection in (made.client.new_connection(), made.client._connections._idle[0][0]):
            assert (connection.socket_timeout, connection.socket_connect_timeout) == limits


class TestRestartedEmpty:
    """A Redis that lost its data."""

    @pytest.fixture(autouse=True)
    def server(self, own_redis_server: RedisServer, use_redis: UseRedis) -> RedisServer:
        use_redis(own_redis_server.url)
        return own_redis_server

    def test_leases_are_lost_and_say_so(self, server: RedisServer) -> None:
        with sent(signals.lock_lost) as lost:
            released, extended = taken("video:1"), taken("video:2")
            renewed = taken("video:3", ttl=0.9, renew=True)
            server.restart()
            assert released.release() is False
            assert extended.extend() is False
            until(lambda: len(lost) == 3)
        assert not renewed.held
        assert {told["lease"] for told in lost} == {released, extended, renewed}

    def test_block_says_so_at_its_end(self, server: RedisServer) -> None:
        with pytest.raises(LeaseLost), lock("video:1"):
            server.restart()

    def test_fences_grow_all_the_same(self, server: RedisServer) -> None:
        before = taken("video:1").fence
        server.restart()
        after = taken("video:1").fence
        assert before is not None
        assert after is not None
        assert after > before

    def test_fences_grow_though_the_servers_clock_steps_back(self) -> None:
        """Given a last fence of an hour ahead of the clock, as after such a step."""
        store: Any = stores["default"]
        ahead = int((time.time() + 3600) * 1_000_000)
        store.client.redis.hset(store.keyspace.fences, "", ahead)
        first = taken("video:1")
        thread = Meanwhile(lambda: taken("video:1", wait=LONG))
        until(lambda: waiting("video:1") == 1)
        first.release()
        fences = [first.fence, thread.result().fence, taken("video:2").fence]
        assert fences == [ahead + 1, ahead + 2, ahead + 3]

    def test_waiters_ask_again(self, server: RedisServer) -> None:
        taken("video:1")
        thread = Meanwhile(lambda: self.patient("video:1"))
        until(lambda: waiting("video:1") == 1)
        server.restart()
        assert thread.result().held

    def patient(self, name: str) -> Lease:
        """Somebody who asks again after an outage."""
        while True:
            try:
                return taken(name, wait=None)
            except StoreUnavailable:
                time.sleep(0.02)


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

    def test_lock_whose_grant_was_lost_is_given_back(self, cut_proxy: CutProxy) -> None:
        cut_proxy.drop_reply(b"video:1", times=2)
        with pytest.raises(StoreUnavailable):
            locks.acquire("video:1", ttl=LONG)
        until(lambda: locks.acquire("video:1", ttl=LONG), "giving it back")

    def test_release_has_released(self, cut_proxy: CutProxy) -> None:
        lease = taken("video:1")
        cut_proxy.drop_reply(b"video:1")
        assert lease.release() is True
        assert cut_proxy.lost_replies == 1
        assert not locks.is_locked("video:1")

    def test_release_leaves_the_next_holder_alone(self, cut_proxy: CutProxy) -> None:
        lease = taken("video:1")
        thread = Meanwhile(lambda: taken("video:1", wait=None))
        until(lambda: waiting("video:1") == 1)
        cut_proxy.drop_reply(b"video:1")
        assert lease.release() is True
        assert thread.result().held
        assert holder("video:1").token == thread.result().token

    @pytest.mark.parametrize("how", ["deleted", "all-lost"])
    def test_release_of_a_lock_that_no_release_has_ended(
        self, own_redis_server: RedisServer, use_redis: UseRedis, proxy_to: ProxyTo, how: str
    ) -> None:
        """What a release leaves is not what is found when it is asked again."""
        proxy = proxy_to(own_redis_server.port)
        use_redis(proxy.url)
        taken("warm").release()
        store: Any = stores["default"]
        lease = taken("video:1")
        if how == "all-lost":
            store.client.redis.flushall()
        else:
            cache.delete("lock:video:1")
        proxy.drop_reply(b"video:1")
        assert lease.release() is False
        assert proxy.lost_replies == 1

    @pytest.mark.parametrize("next_holder", ["nobody", "another", "a waiter"])
    def test_release_of_a_lock_that_was_cleared_is_no_success(
        self, cut_proxy: CutProxy, next_holder: str
    ) -> None:
        """The release was sent, its reply was lost, and the lock had been cleared before."""
        lease = taken("video:1")
        if next_holder == "a waiter":
            thread = Meanwhile(lambda: taken("video:1", wait=None))
            until(lambda: waiting("video:1") == 1)
        assert locks.clear("video:1")
        if next_holder == "a waiter":
            assert thread.result().held
        elif next_holder == "another":
            taken("video:1")
        cut_proxy.drop_reply(RELEASE.sha)
        assert lease.release() is False
        assert cut_proxy.lost_replies == 1

    def test_extension_has_extended(self, cut_proxy: CutProxy) -> None:
        lease = taken("video:1", ttl=5)
        cut_proxy.drop_reply(b"video:1")
        assert lease.extend(LONG) is True
        assert lease.remaining > 5
        assert (holder("video:1").ttl or 0) > 5

    def test_clear_is_not_repeated_on_the_next_holder(self, cut_proxy: CutProxy) -> None:
        taken("video:1")
        thread = Meanwhile(lambda: taken("video:1", wait=None))
        until(lambda: waiting("video:1") == 1)
        token = holder("video:1").token
        assert token is not None
        cut_proxy.drop_reply(CLEAR.sha)
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

    def test_release_of_a_lock_that_is_gone_is_no_success(self, cut_proxy: CutProxy) -> None:
        """It was not sent, so it was not this release that ended it."""
        lease = taken("video:1")
        cache.delete("lock:video:1")
        cut_proxy.cut()
        assert lease.release() is False


class TestNotSent:
    """A command that did not reach the server is sent on another connection, once."""

    @pytest.fixture(autouse=True)
    def store(self, use_redis: UseRedis, cut_proxy: CutProxy) -> Any:
        use_redis(cut_proxy.url)
        taken("warm").release()
        return stores["default"]

    def disconnect(self, proxy: CutProxy, store: Any) -> None:
        """And let the next connection come to nothing."""
        store.client._connections._idle.clear()
        proxy.turn_away()

    def test_release_of_a_lock_that_was_cleared_is_no_success(
        self, cut_proxy: CutProxy, store: Any
    ) -> None:
        lease = taken("video:1")
        assert locks.clear("video:1")
        self.disconnect(cut_proxy, store)
        assert lease.release() is False

    def test_release_of_a_lock_that_is_held_by_somebody_else_is_no_success(
        self, cut_proxy: CutProxy, store: Any
    ) -> None:
        lease = taken("video:1")
        assert locks.clear("video:1")
        other = taken("video:1")
        self.disconnect(cut_proxy, store)
        assert lease.release() is False
        assert other.release() is True

    def test_release_and_clear_succeed(self, cut_proxy: CutProxy, store: Any) -> None:
        lease = taken("video:1")
        self.disconnect(cut_proxy, store)
        assert lease.release() is True
        taken("video:1")
        self.disconnect(cut_proxy, store)
        assert locks.clear("video:1") is True

    def test_reservation_is_ended(self, cut_proxy: CutProxy, store: Any) -> None:
        assert store.reserve("key", "text", LONG) is None
        self.disconnect(cut_proxy, store)
        assert store.unreserve("key", "text") is True


class TestPlainCaches:
    @pytest.mark.django_db
    def test_database_cache_without_its_table(self, use_caches: UseCaches) -> None:
        backend = "django.core.cache.backends.db.DatabaseCache"
        use_caches({"default": {"BACKEND": backend, "LOCATION": f"no_{secrets.token_hex(4)}"}})
        self.assert_unavailable(stores["default"])

    def test_memcached_that_is_down(self, use_caches: UseCaches) -> None:
        backend = "django.core.cache.backends.memcached.PyMemcacheCache"
        where = f"127.0.0.1:{free_port()}"
        use_caches({"default": {"BACKEND": backend, "LOCATION": where}})
        for _ in range(2):
            self.assert_unavailable(stores["default"])

    def assert_unavailable(self, store: BaseStore) -> None:
        verbs: list[Callable[[], Any]] = [
            lambda: locks.acquire("video:1"),
            lambda: locks.acquire("video:1", wait=1),
            lambda: locks.get("video:1"),
            lambda: locks.clear("video:1"),
            lambda: store.extend("video:1", "token", 5.0),
            lambda: store.release("video:1", "token"),
            lambda: list(store.check()),
        ]
        for verb in verbs:
            with pytest.raises(StoreUnavailable):
                verb()
