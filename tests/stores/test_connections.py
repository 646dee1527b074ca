"""Our connections to Redis: a reply is never another call's, and no interruption loses one."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import psutil
import pytest
from django.test.utils import override_settings

from django_tasklock import Lease, StoreUnavailable, locks
from django_tasklock.stores import stores
from tests.agent import run_python
from tests.conftest import UseRedis
from tests.inside import code_of_connections, fork_untold, wait_for_connections
from tests.interruptions import (
    EVERY,
    Interrupt,
    assert_nothing_is_kept,
    before_first,
    interrupted,
    signalled,
)
from tests.proxy import CutProxy
from tests.servers import RedisServer
from tests.steps import LONG, Meanwhile, all_of, in_child, taken
from tests.waiting import PATIENCE, until

OTHERS = {f"video:{place}": f"record {place}".encode() for place in range(3)}
"""locks that code without this package holds, so that no two questions have one answer"""

VERBS: dict[str, Callable[[], object]] = {
    "acquire": lambda: locks.acquire("taken", ttl=LONG),
    "release": lambda: stores["default"].release("taken", "t" * 22),
}
CODE = code_of_connections()
"""between whose steps an interruption comes"""
WITHOUT_HISTORY = {"OPTIONS": {"HISTORY": 0}}
"""for tests that count connections: the history is written on one too, at any time"""


def ours() -> Any:
    store: Any = stores["default"]
    return store.client._connections.own()


def others_hold() -> None:
    store: Any = stores["default"]
    for name, value in OTHERS.items():
        store.client.command("SET", store.key(name), value)


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


def connected_to(server: RedisServer) -> int:
    """How many connections this process has to it."""
    found = psutil.Process().net_connections("tcp")
    return sum(bool(each.raddr) and each.raddr.port == server.port for each in found)


@pytest.fixture
def server(own_redis_server: RedisServer, use_redis: UseRedis) -> RedisServer:
    """On which the locks are; calls wait for it for long."""
    use_redis(own_redis_server.url, SOCKET_TIMEOUT=PATIENCE)
    return own_redis_server


@pytest.fixture
def uncollected() -> Iterator[None]:
    """What closes connections is not the garbage collector."""
    gc.disable()
    yield
    gc.enable()


@contextlib.contextmanager
def cut_short() -> Iterator[None]:
    """What may be interrupted; the error and its traceback live on afterwards.

    What redis-py makes of it is its own affair: releases before 8 had a ``finally`` that fails.
    """
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while not isinstance(cause, Interrupt):
            if cause is None:
                raise
            cause = cause.__context__


# Who is interrupted while redis-py connects leaves a socket to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("connected", [True, False], ids=["connected", "connecting"])
@pytest.mark.parametrize("verb", VERBS)
def test_between_any_two_steps(
    own_redis_server: RedisServer, admin: Any, use_redis: UseRedis, verb: str, connected: bool
) -> None:
    # Given a server that wants a password, so that a connection begins with several commands
    admin.execute_command("ACL", "SETUSER", "us", "on", ">secret", "~*", "&*", "+@all")
    use_redis(
        f"redis://us:secret@127.0.0.1:{own_redis_server.port}/3",
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

        # When a call is interrupted before one of its steps
        with cut_short(), interrupted(step, lines_of=CODE) as where:
            last = VERBS[verb]()

        # I expect later calls to get their own answers
        assert_answers_are_their_own()
        if not where:
            break  # The last one was not interrupted, and may have got the lock.
    if isinstance(last, Lease):
        assert last.release()
    assert step > (20 if connected else 100)

    # And the lock to be free soon, and no more connections to be open than may be
    until(lambda: locks.acquire("taken", ttl=LONG), "the end of what was granted to nobody")
    all_of(*[lambda: locks.get("free")] * 8)
    gc.collect()
    assert len(ours()._idle) == len(ours()._made) <= 2
    # One more is the pool's, and one the renewal's, which gives back what nobody heard of.
    until(
        lambda: sum(client["user"] == "us" for client in admin.client_list()) <= 2 + 2,
        "the end of all other connections",
    )


def test_bytes_that_are_no_reply_cut_the_connection(
    cut_proxy: CutProxy, use_redis: UseRedis
) -> None:
    """The server, or what stands between, says something that nobody has asked for."""
    use_redis(cut_proxy.url)
    others_hold()
    assert_answers_are_their_own()  # The server has the scripts.
    for last in (1, 2, 3):
        cut_proxy.repeat_reply(b"record 1", last=last)
        locks.get("video:1")
        assert_answers_are_their_own()


class TestBound:
    def test_there_are_never_more_than_the_pool_would_have(
        self, own_redis_server: RedisServer, admin: Any, use_redis: UseRedis
    ) -> None:
        use_redis(own_redis_server.url, CONNECTION_POOL_KWARGS={"max_connections": 3})
        most = 0

        def connected() -> int:
            # One that is too many may be there for a moment, and is never connected.
            return sum(getattr(made, "_sock", None) is not None for made in list(ours()._made))

        def ask() -> None:
            nonlocal most
            for _ in range(50):
                locks.get("video:1")
                most = max(most, connected())

        all_of(*[ask] * 12)
        assert 1 <= most <= 3
        assert len(admin.client_list()) <= 3 + 1

    def test_who_finds_them_all_in_use_waits_and_is_told_at_last(
        self, own_redis_server: RedisServer, use_redis: UseRedis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one = {"max_connections": 1}
        use_redis(own_redis_server.url, CONNECTION_POOL_KWARGS=one, SOCKET_TIMEOUT=PATIENCE)
        own_redis_server.pause()
        first = Meanwhile(lambda: locks.get("video:1"))
        until(lambda: len(ours()._made) == 1 and not ours()._idle)
        wait_for_connections(monkeypatch, 0.1)
        with pytest.raises(StoreUnavailable, match="Too many connections"):
            locks.get("video:1")
        own_redis_server.resume()
        assert first.result() is None
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
            with pytest.raises(StoreUnavailable) as error:
                locks.get("video:1")
            errors.append(error)
            assert "Too many" not in str(error.value)
        own_redis_server.restart()
        assert locks.get("video:1") is None


def test_one_refused_write_closes_the_idle_connections(server: RedisServer, admin: Any) -> None:
    """Otherwise as many calls would fail after a failover as there are connections to the server
    that is a replica now."""
    server.pause()
    asking = [Meanwhile(lambda: locks.get("video:1")) for _ in range(3)]
    until(lambda: len(ours()._made) == 3, "three connections")
    server.resume()
    for each in asking:
        assert each.result() is None
    assert len(ours()._idle) == 3
    admin.replicaof("127.0.0.1", 1)
    with pytest.raises(StoreUnavailable, match="read only replica"):
        locks.acquire("video:1")
    assert not ours()._idle


def test_a_child_closes_what_it_inherited_at_once_also_amid_a_call(server: RedisServer) -> None:
    lease = taken("video:1")

    def child() -> list[int]:
        before = connected_to(server)
        return [before, locks.is_locked("video:1"), connected_to(server)]

    assert in_child(child) == [0, True, 1]
    with pytest.MonkeyPatch.context() as monkeypatch:
        # Where the package is not told of the fork, as in uWSGI's workers: with its first question.
        monkeypatch.setattr(os, "fork", partial(fork_untold, os.fork))
        assert in_child(child) == [1, True, 1]
    server.pause()
    thread = Meanwhile(lambda: locks.get("video:1"))
    until(lambda: not ours()._idle)
    assert connected_to(server) == 1
    assert in_child(lambda: connected_to(server)) == 0
    server.resume()
    # The parent's are as they were.
    assert thread.result() is not None
    assert lease.release()


SIGNALS_WHILE_IT_PACKS = """
import contextlib, random, signal, time
from django_tasklock.stores import stores

client = stores["default"].client

class Interrupted(Exception):
    pass

def interrupt(signum, frame):
    raise Interrupted

def go_on():
    # Arguments of every kind, so many that most of the time goes to packing them.
    client.command("DEL", *range(3000), *["é"] * 1000, *[b"b"] * 1000)

go_on()
signal.signal(signal.SIGALRM, interrupt)
interrupted = 0
deadline = time.monotonic() + 30
while interrupted < 100 and time.monotonic() < deadline:
    # In releases before 8 a ``finally`` of redis-py's own fails when it is interrupted.
    with contextlib.suppress(Interrupted, UnboundLocalError):
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00005, 0.002))
        go_on()
        signal.setitimer(signal.ITIMER_REAL, 0)
        continue
    interrupted += 1
print(interrupted)
"""


def test_signal_handler_that_raises_while_a_command_is_packed(use_redis: UseRedis) -> None:
    """hiredis 3.5 would crash the process there, unless it is handed nothing but bytes."""
    use_redis()
    assert int(run_python(SIGNALS_WHILE_IT_PACKS)) == 100


class TestErrorsOfSignalHandlers:
    """Of classes that redis-py takes for errors of its socket, or for bytes that it cannot read."""

    @pytest.mark.parametrize("kind", [TimeoutError, ConnectionResetError, ValueError, RuntimeError])
    @pytest.mark.parametrize("during", ["a reply", "a connection", "a subscription", "a hand-over"])
    def test_they_are_raised(self, server: RedisServer, kind: type[Exception], during: str) -> None:
        raised = kind("from a signal handler")
        taken("video:1")
        if during == "a connection":
            ours().close_idle()
        if during != "a hand-over":
            server.pause()
        wait = LONG if during in ("a subscription", "a hand-over") else 0.0
        with pytest.raises(kind) as caught, signalled(raised, 0.3):
            locks.acquire("video:1", wait=wait)
        assert caught.value is raised
        server.resume()

    @pytest.mark.parametrize("kind", [TimeoutError, ValueError])
    def test_they_keep_nothing_of_the_block_alive(
        self, server: RedisServer, kind: type[Exception]
    ) -> None:
        """What an interrupted block holds is given back when its frames are forgotten."""

        def handler(*_: object) -> None:
            raise kind

        taken("video:1")
        server.pause()
        before = signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        assert_nothing_is_kept(lambda _: locks.acquire("video:1"), kind)
        signal.signal(signal.SIGALRM, before)
        server.resume()

    def test_one_that_the_caller_handles_is_not_raised_again(self, server: RedisServer) -> None:
        try:
            with signalled(TimeoutError()):
                signal.raise_signal(signal.SIGALRM)
        except TimeoutError:
            server.kill()
            with pytest.raises(StoreUnavailable):
                locks.acquire("video:1")
            server.restart()


def test_changed_settings_close_the_connections(
    own_redis_server: RedisServer, use_redis: UseRedis, uncollected: None
) -> None:
    use_redis(own_redis_server.url, tasklock=WITHOUT_HISTORY)
    lease = taken("video:1")

    def both_are_there() -> bool:
        # On a busy machine the wait may be over before it has begun.
        assert locks.acquire("video:1", ttl=LONG, wait=0.01) is None
        return connected_to(own_redis_server) == 2

    until(both_are_there, "one connection for scripts, and one for what waiters are told")
    with override_settings(TASKLOCK={"default": {"KEY_PREFIX": "other"}}):
        pass
    until(lambda: connected_to(own_redis_server) == 0)
    assert lease.release()
