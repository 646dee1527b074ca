"""Our connections to Redis: a reply is never another call's, and no interruption loses one."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import psutil
import pytest
import redis
from django.test.utils import override_settings
from redis.backoff import NoBackoff
from redis.retry import Retry

from django_tasklock import StoreUnavailable, locks
from django_tasklock._compat import redis as redis_compat
from django_tasklock.stores import stores
from django_tasklock.stores.redis import connections, pool
from django_tasklock.stores.redis.client import as_bytes
from django_tasklock.stores.redis.listing import COUNT_LOCKS
from tests import needs
from tests.agent import run_python
from tests.conftest import ProxyTo, UseRedis
from tests.interruptions import EVERY, before_first
from tests.proxy import CutProxy
from tests.servers import NoRedis, RedisServer, own_redis
from tests.steps import LONG, Meanwhile, all_of, holder, in_child, taken, waiting
from tests.waiting import PATIENCE, until

OTHERS = {f"video:{place}": f"record {place}".encode() for place in range(3)}
"""locks that code without this package holds, so that no two questions have one answer"""

INTERRUPTED = (
    redis_compat.__file__,
    connections.__file__,
    pool.__file__,
    os.path.dirname(redis.__file__),
)
"""the code between whose steps an interruption comes: files, and a folder"""

interruptible = pytest.mark.filterwarnings(
    # Who is interrupted while redis-py connects leaves a socket to the garbage collector.
    "ignore:unclosed:ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)


class Interrupted(Exception):
    """As a soft time limit: raised in the main thread, wherever that is."""


def ours() -> Any:
    store: Any = stores["default"]
    return store.client._connections


def others_hold() -> None:
    store: Any = stores["default"]
    for name, value in OTHERS.items():
        store.client.redis.set(store.key(name), value)


def assert_answers_are_their_own() -> None:
    """Whatever is asked next: twice, so that it is answered by a connection that was kept."""
    for _ in range(2):
        for name in OTHERS:
            info = locks.get(name)
            assert info is not None
            assert info.name == name
            assert locks.acquire(name) is None, f"{name} is held by somebody else"
        assert locks.get("free") is None
        assert stores["default"].get_note("nothing") is None


VERBS: dict[str, Callable[[], object]] = {
    "acquire": lambda: locks.acquire("taken", ttl=LONG),
    "acquire-held": lambda: locks.acquire("video:1", ttl=LONG),
    "release": lambda: stores["default"].release("taken", "token", b"value"),
    "get": lambda: locks.get("video:2"),
    "get_note": lambda: stores["default"].get_note("note"),
}


def is_free_again(name: str) -> bool:
    """Whether a lease whose caller was interrupted is over: given back, or never granted."""
    locks.clear(name)
    lease = locks.acquire(name, ttl=LONG)
    return lease is not None and lease.release()


@contextlib.contextmanager
def cut_short() -> Iterator[None]:
    """What may be interrupted; the error and its traceback live on afterwards.

    What redis-py makes of it is its own affair: releases before 8 had a ``finally`` that fails.
    """
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while not isinstance(cause, Interrupted):
            if cause is None:
                raise
            cause = cause.__context__


class Steps:
    """Raises `Interrupted` before a step of the connections' and redis-py's code; 0: before none.

    ``passed`` counts the steps. Not among them is what the garbage collector runs, whose
    exceptions Python drops.
    """

    def __init__(self, interrupted: int) -> None:
        self.interrupted = interrupted
        self.passed = 0

    def __enter__(self) -> Steps:
        sys.settrace(self.trace)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        if not self.concerns(frame):
            return None
        if event == "line":
            self.passed += 1
            if self.passed == self.interrupted:
                sys.settrace(None)
                raise Interrupted
        return self.trace

    @staticmethod
    def concerns(frame: FrameType) -> bool:
        file = frame.f_code.co_filename
        if not file.startswith(INTERRUPTED):
            return False
        caller: FrameType | None = frame
        while caller is not None:
            if caller.f_code.co_name == "__del__":
                return False
            caller = caller.f_back
        return True


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    try:
        with own_redis(needs_own=True) as server:
            yield server
    except NoRedis as error:
        needs.missing(str(error))


WITHOUT_HISTORY = {"OPTIONS": {"HISTORY": 0}}
"""for tests that count connections: the history is written on one too, at any time"""


@interruptible
class TestInterruption:
    @pytest.fixture(autouse=True)
    def collected(self) -> Iterator[None]:
        yield
        gc.collect()

    @pytest.fixture
    def admin(self, server: RedisServer) -> Iterator[Any]:
        with contextlib.closing(redis.Redis.from_url(server.url)) as admin:
            yield admin

    @pytest.fixture
    def user(self, admin: Any) -> str:
        """Of this test alone, with a password: a connection begins with several commands."""
        name = f"worker-{secrets.token_hex(4)}"
        admin.execute_command("ACL", "SETUSER", name, "on", ">secret", "~*", "&*", "+@all")
        return name

    def clients(self, admin: Any, user: str) -> int:
        return sum(client["user"] == user for client in admin.client_list())

    @pytest.mark.parametrize("connected", [True, False], ids=["connected", "connecting"])
    @pytest.mark.parametrize(
        "verb",
        [
            pytest.param(verb, marks=() if verb in ("acquire", "release") else pytest.mark.nightly)
            for verb in VERBS
        ],
    )
    def test_between_any_two_steps(
        self,
        server: RedisServer,
        admin: Any,
        user: str,
        use_redis: UseRedis,
        verb: str,
        connected: bool,
    ) -> None:
        use_redis(
            f"redis://{user}:secret@127.0.0.1:{server.port}/3",
            CONNECTION_POOL_KWARGS={"max_connections": 2},
            tasklock=WITHOUT_HISTORY,
        )
        others_hold()
        step = before_first() if not connected else 0
        while True:
            step += 1 if connected else EVERY
            if connected:
                locks.get("free")
            else:
                ours().close_idle()
            with cut_short(), Steps(step) as steps:
                VERBS[verb]()
            assert_answers_are_their_own()
            if steps.passed < step:
                break
        assert step > (20 if connected else 100)
        until(lambda: is_free_again("taken"), "the end of what was granted to nobody")
        all_of(*[lambda: locks.get("free")] * 8)
        gc.collect()
        assert len(ours()._idle) == ours()._in_use() <= 2
        # One more is the pool's, and one the renewal's, which gives back what nobody heard of.
        until(lambda: self.clients(admin, user) <= 2 + 2, "the end of all other connections")

    @pytest.mark.parametrize("pool_class", ["ConnectionPool", "BlockingConnectionPool"])
    def test_by_a_signal_at_any_moment(
        self,
        server: RedisServer,
        admin: Any,
        user: str,
        use_redis: UseRedis,
        proxy_to: ProxyTo,
        pool_class: str,
    ) -> None:
        """Replies are on their way for long enough to be met by the next question."""
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        chance = random.Random(seed)
        proxy = proxy_to(server.port)
        use_redis(
            f"redis://{user}:secret@127.0.0.1:{proxy.port}/3",
            CONNECTION_POOL_CLASS=f"redis.{pool_class}",
            CONNECTION_POOL_KWARGS={"max_connections": 2},
            tasklock=WITHOUT_HISTORY,
        )
        others_hold()
        before = signal.signal(signal.SIGALRM, self.interrupt)
        proxy.latency = 0.001
        try:
            for _ in range(200):
                if chance.random() < 0.5:
                    proxy.cut()
                verb = chance.choice(list(VERBS.values()))
                # The outer one is for a signal that comes beside the verb.
                with cut_short():
                    with cut_short():
                        # A connection takes five round trips to be made.
                        signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0001, 0.014))
                        verb()
                    signal.setitimer(signal.ITIMER_REAL, 0)
                for name in chance.sample(sorted(OTHERS), 2):
                    info = locks.get(name)
                    assert info is not None
                    assert info.name == name
                    assert locks.acquire(name) is None, f"{name} is held by somebody else"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        proxy.latency = 0.0
        assert_answers_are_their_own()
        until(lambda: is_free_again("taken"), "the end of what was granted to nobody")
        all_of(*[lambda: locks.get("free")] * 8)
        gc.collect()
        assert ours()._in_use() <= 2
        # One more is the pool's, and one the renewal's, which gives back what nobody heard of.
        until(lambda: self.clients(admin, user) <= 2 + 2, "the end of all other connections")

    def interrupt(self, signum: int, frame: FrameType | None) -> None:
        raise Interrupted

    def test_while_there_is_something_else_to_do(self, use_redis: UseRedis) -> None:
        use_redis()
        others_hold()
        store: Any = stores["default"]

        def interrupted() -> None:
            raise Interrupted

        for _ in range(3):
            with pytest.raises(Interrupted):
                store.client.run(COUNT_LOCKS, [store.keyspace.index], meanwhile=interrupted)
            assert_answers_are_their_own()


class TestShiftedReplies:
    """Something between us and the server says a thing twice: all that follows is one too late."""

    @pytest.fixture
    def proxy(self, cut_proxy: CutProxy, use_redis: UseRedis) -> CutProxy:
        use_redis(cut_proxy.url)
        others_hold()
        assert_answers_are_their_own()  # The server has the scripts.
        return cut_proxy

    @pytest.mark.parametrize("retries", [0, 2])
    def test_no_answer_is_believed(
        self, cut_proxy: CutProxy, use_redis: UseRedis, retries: int
    ) -> None:
        policy = {"retry": Retry(NoBackoff(), retries)} if retries else {}
        use_redis(cut_proxy.url, CONNECTION_POOL_KWARGS=policy)
        others_hold()
        taken("mine").release()
        for _ in range(5):
            cut_proxy.repeat_reply(b"OK" if _ % 2 else b"record 1")
            locks.get("video:1")
            assert_answers_are_their_own()

    def test_acquire_is_not_granted_by_an_older_grant(self, proxy: CutProxy) -> None:
        lease = taken("mine")
        proxy.repeat_reply(str(lease.fence).encode()[:6])
        assert locks.acquire("mine2", ttl=LONG) is not None
        assert locks.acquire("video:1") is None
        assert lease.release() is True
        assert lease.release() is False

    @pytest.mark.parametrize("last", [1, 2, 3])
    def test_bytes_that_are_no_reply_cut_the_connection(self, proxy: CutProxy, last: int) -> None:
        proxy.repeat_reply(b"record 1", last=last)
        locks.get("video:1")
        assert_answers_are_their_own()

    def test_no_release_is_believed_that_cannot_be_read(self, proxy: CutProxy) -> None:
        lease = taken("mine")
        proxy.repeat_reply(b"record 1", last=1)
        locks.get("video:1")
        assert lease.release() is True
        assert lease.release() is False

    @pytest.mark.parametrize(
        "said", [b"\n", b":1\r\n", b"+OK\r\n", b"*0\r\n", b"*1\r\n:7\r\n", b"*x\r\n"]
    )
    def test_waiter_listens_again_after_bytes_that_are_no_message(
        self, proxy: CutProxy, said: bytes
    ) -> None:
        lease = taken("mine")
        waiter = Meanwhile(lambda: locks.acquire("mine", ttl=LONG, wait=LONG))
        until(lambda: waiting("mine") == 1)
        proxy.say(said)
        until(lambda: waiting("mine") == 1)
        lease.release()
        assert waiter.result() is not None

    def test_reply_before_the_handshake_is_over(
        self, cut_proxy: CutProxy, use_redis: UseRedis
    ) -> None:
        use_redis(cut_proxy.url.replace("/0", "/3"))
        store: Any = stores["default"]
        store.client.redis.set(store.key("video:1"), b"record 1")
        for _ in range(2):
            ours()._idle.clear()
            cut_proxy.repeat_reply(b"OK")
            assert locks.acquire("video:1") is None
            info = locks.get("video:1")
            assert info is not None
            assert info.token is None


class TestBound:
    def test_there_are_never_more_than_the_pool_would_have(
        self, own_redis_server: RedisServer, use_redis: UseRedis
    ) -> None:
        use_redis(own_redis_server.url, CONNECTION_POOL_KWARGS={"max_connections": 3})
        most = 0

        def connected() -> int:
            # One that is too many may be there for a moment, and is never connected.
            return sum(getattr(made(), "_sock", None) is not None for made in list(ours()._made))

        def ask() -> None:
            nonlocal most
            for _ in range(50):
                locks.get("video:1")
                most = max(most, connected())

        all_of(*[ask] * 12)
        assert 1 <= most <= 3
        admin: Any = redis.Redis.from_url(own_redis_server.url)
        assert len(admin.client_list()) <= 3 + 1

    def test_who_finds_them_all_in_use_waits_and_is_told_at_last(
        self,
        own_redis_server: RedisServer,
        use_redis: UseRedis,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        one = {"max_connections": 1}
        use_redis(own_redis_server.url, CONNECTION_POOL_KWARGS=one, SOCKET_TIMEOUT=PATIENCE)
        own_redis_server.pause()
        first = Meanwhile(lambda: locks.get("video:1"))
        until(lambda: ours()._in_use() == 1 and not ours()._idle)
        second = Meanwhile(lambda: locks.get("video:1"))
        monkeypatch.setattr(ours(), "_wait_seconds", 0.1)
        with pytest.raises(StoreUnavailable, match="Too many connections"):
            locks.get("video:1")
        own_redis_server.resume()
        assert first.result() is None
        with contextlib.suppress(StoreUnavailable):
            second.result()
        assert locks.get("video:1") is None

    def test_outage_with_one_connection(
        self, own_redis_server: RedisServer, use_redis: UseRedis
    ) -> None:
        """The one that failed is in nobody's way, though its error refers to it."""
        use_redis(own_redis_server.url, CONNECTION_POOL_KWARGS={"max_connections": 1})
        errors = []
        assert locks.get("video:1") is None
        own_redis_server.kill()
        for _ in range(3):
            began = time.monotonic()
            with pytest.raises(StoreUnavailable) as error:
                locks.get("video:1")
            errors.append(error)
            assert "Too many" not in str(error.value)
            assert time.monotonic() - began < pool.POOL_WAIT_SECONDS
        own_redis_server.restart()
        assert locks.get("video:1") is None


class TestDemotedServer:
    def test_one_refused_write_closes_the_idle_connections(
        self, own_redis_server: RedisServer, use_redis: UseRedis
    ) -> None:
        """Otherwise as many calls would fail after a failover as there are connections to the
        server that is a replica now."""
        use_redis(own_redis_server.url, SOCKET_TIMEOUT=PATIENCE)
        own_redis_server.pause()
        asking = [Meanwhile(lambda: locks.get("video:1")) for _ in range(3)]
        until(lambda: ours()._in_use() == 3, "three connections")
        own_redis_server.resume()
        for each in asking:
            assert each.result() is None
        assert len(ours()._idle) == 3
        admin: Any = redis.Redis.from_url(own_redis_server.url)
        admin.replicaof("127.0.0.1", 1)
        with pytest.raises(StoreUnavailable, match="read only replica"):
            locks.acquire("video:1")
        assert not ours()._idle


class TestFork:
    def test_child_closes_what_it_inherited_at_once(
        self, own_redis_server: RedisServer, use_redis: UseRedis
    ) -> None:
        use_redis(own_redis_server.url)
        all_of(*[lambda: locks.get("video:1")] * 4)
        lease = taken("video:1")

        def connected() -> int:
            found = psutil.Process().net_connections("tcp")
            return sum(bool(c.raddr) and c.raddr.port == own_redis_server.port for c in found)

        assert connected() >= 1
        assert in_child(lambda: [connected(), locks.is_locked("video:1"), connected()]) == [
            0,
            True,
            1,
        ]
        # And the parent's are as they were.
        assert holder("video:1").token == lease.token
        assert lease.release()

    def test_child_that_forks_amid_a_call_closes_that_connection_too(
        self, own_redis_server: RedisServer, use_redis: UseRedis
    ) -> None:
        use_redis(own_redis_server.url)
        taken("video:1").release()
        own_redis_server.pause()
        thread = Meanwhile(lambda: locks.get("video:1"))
        until(lambda: not ours()._idle)

        def connected() -> int:
            found = psutil.Process().net_connections("tcp")
            return sum(bool(c.raddr) and c.raddr.port == own_redis_server.port for c in found)

        assert connected() == 1
        assert in_child(connected) == 0
        own_redis_server.resume()
        assert thread.result() is None


SIGNALS_WHILE_IT_PACKS = """
import contextlib, random, signal, sys, time
from django_tasklock.stores import stores
from django_tasklock.stores.redis.client import ONE_COMMAND

seed = int(sys.argv[1])
chance, client = random.Random(seed), stores["default"].client

class Interrupted(Exception):
    pass

def interrupt(signum, frame):
    raise Interrupted

def go_on():
    # Arguments of every kind, so many that most of the time goes to packing them.
    client.run(ONE_COMMAND, [], ["DEL", *range(3000), *[0.5] * 1000, "é", bytearray(b"b")])

go_on()
signal.signal(signal.SIGALRM, interrupt)
interrupted = 0
deadline = time.monotonic() + 3
while time.monotonic() < deadline:
    # In releases before 8 a ``finally`` of redis-py's own fails when it is interrupted.
    with contextlib.suppress(Interrupted, UnboundLocalError):
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.00005, 0.002))
        go_on()
        signal.setitimer(signal.ITIMER_REAL, 0)
        continue
    interrupted += 1
print(interrupted)
"""


def test_signal_handler_that_raises_while_a_command_is_packed(use_redis: UseRedis) -> None:
    """hiredis 3.5 then crashes the process, unless it is handed nothing but bytes."""
    use_redis()
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    assert int(run_python(SIGNALS_WHILE_IT_PACKS, str(seed))) > 50


def test_arguments_are_sent_as_redis_py_sends_them() -> None:
    encoder: Any = redis.Redis().get_encoder()
    for value in (b"b", memoryview(b"b"), "é", 7, -(2**70), 0.1, 1e300):
        assert as_bytes(value) == bytes(encoder.encode(value))


def test_changed_settings_close_the_connections(
    redis_server: RedisServer, use_redis: UseRedis, uncollected: None
) -> None:
    name = secrets.token_hex(8)
    # Without a history: it may be written at any moment, and that takes a connection.
    use_redis(f"{redis_server.url}?client_name={name}", tasklock={"OPTIONS": {"HISTORY": 0}})
    lease, store = taken("video:1"), stores["default"]
    with contextlib.closing(redis.Redis.from_url(redis_server.url)) as admin:

        def count() -> int:
            clients: Any = admin.client_list()
            return sum(client["name"] == name for client in clients)

        def both_are_there() -> bool:
            # On a busy machine the wait may be over before it has begun.
            assert locks.acquire("video:1", ttl=LONG, wait=0.01) is None
            return count() == 2

        until(both_are_there, "one connection for scripts, and one for what waiters are told")
        with override_settings(TASKLOCK={"default": {"KEY_PREFIX": "other"}}):
            pass
        until(lambda: count() == 0)
    assert stores["default"] is not store
    assert lease.release()


@pytest.fixture
def uncollected() -> Iterator[None]:
    """What closes connections is not the garbage collector."""
    gc.disable()
    yield
    gc.enable()
