"""The steps that the tests of the core are made of."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import pytest
import redis
from django.core.cache import caches
from django.db import connections
from django.dispatch import Signal
from django_redis import get_redis_connection

from django_tasklock import Lease, LockInfo, StoreUnavailable, locks
from django_tasklock.stores import stores
from django_tasklock.stores.base import Grant
from tests.inside import clock, new_token, owner_record
from tests.servers import RedisServer
from tests.waiting import PATIENCE, until

T = TypeVar("T")

LONG = 60.0
"""seconds; a ttl that does not run out within a test"""

RENEWED = 4.5
"""seconds; a ttl that is renewed within a test, also by a thread that runs some seconds late"""

SOON_SECONDS = 5.0
"""seconds that no waiter should need who is told, of a lease that lasts much longer"""

CONNECTING = frozenset({"auth", "client", "hello", "info", "ping", "select"})
"""commands that say nothing of locks: a connection that is made, and our own question"""


def taken(name: str, *, ttl: float | None = LONG, **options: Any) -> Lease:
    """A lease on a lock that is to be had."""
    lease = locks.acquire(name, ttl=ttl, **options)
    assert lease is not None, f"{name} is held by {locks.get(name)}"
    return lease


def holder(name: str) -> LockInfo:
    """What holds a lock that is held."""
    info = locks.get(name)
    assert info is not None, f"nobody holds {name}"
    return info


def waiting(name: str) -> int:
    """How many stand in a lock's line."""
    info = locks.get(name)
    return (info.waiters or 0) if info else 0


def waiter(name: str, position: int, **options: Any) -> Meanwhile[Lease]:
    """A waiter in the wait queue of a lock, at this position."""
    thread = Meanwhile(lambda: taken(name, **{"wait": None, **options}))
    until(lambda: waiting(name) == position, f"waiter {position}")
    return thread


def held_by(record: dict[str, Any], name: str, ttl: float = LONG) -> str:
    """A lease that the process of this record took; its token."""
    token = new_token()
    assert isinstance(stores["default"].acquire([name], token, ttl, record), Grant)
    return token


def elsewhere(name: str, ttl: float) -> str:
    """A lease of a process on another machine, which never releases it."""
    return held_by({**owner_record(), "boot": "another-machine"}, name, ttl)


def ends(lease: Lease) -> float:
    """When a lease is over, on the clock of this process; a moment more or less each time."""
    return clock.now() + lease.remaining


def renewed(lease: Lease, times: int = 1) -> None:
    """Wait until the lease was extended so often."""
    for _ in range(times):
        before = ends(lease) + 0.05
        until(lambda: not lease.held or ends(lease) > before, "an extension")  # noqa: B023
        assert lease.held


def server(alias: str = "default") -> Any:
    """The raw client of the Redis on which a store is."""
    return get_redis_connection(stores[alias].settings.cache)


def members(alias: str, name: str) -> list[bytes]:
    """The members of a lock's wait queue, as the server has them."""
    found: list[bytes] = server(alias).zrange(stores[alias].key(name) + " queue", 0, -1)
    return found


class Meanwhile(threading.Thread, Generic[T]):
    """Something that goes on in a thread of its own, from now on."""

    def __init__(self, work: Callable[[], T]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._answer: T | None = None
        self._error: BaseException | None = None
        self.took = 0.0
        self.start()

    def run(self) -> None:
        began = time.monotonic()
        try:
            self._answer = self._work()
        except BaseException as error:
            self._error = error
            # For a test that fails before it asks for the result.
            traceback.print_exc()
        self.took = time.monotonic() - began
        # What Django has opened for this thread.
        connections.close_all()
        caches.close_all()

    def result(self, within: float = PATIENCE) -> T:
        """What it came to; what it raised is raised here."""
        self.join(within)
        assert not self.is_alive(), f"it is not over within {within} s"
        if self._error is not None:
            raise self._error
        return self._answer  # type: ignore[return-value]


def all_of(*work: Callable[[], T]) -> list[T]:
    """The results of what ran at the same time."""
    threads = [Meanwhile(one) for one in work]
    return [thread.result() for thread in threads]


class Traffic:
    """What a server was asked since this was made, or last `restarted`.

    Without the events of the history, which are written a moment after the refusals of a test:
    `batches` counts them.
    """

    def __init__(self, server: RedisServer) -> None:
        self._redis: Any = redis.Redis.from_url(server.url)
        self._before: Counter[str] = Counter()
        self.restart()

    def restart(self) -> None:
        self._before = self._counts()
        self._events = self._all_counts()["xadd"]

    def commands(self) -> dict[str, int]:
        """The commands by name, those inside scripts included."""
        return dict(self._counts() - self._before)

    def scripts(self) -> int:
        """How many scripts ran: the round trips of the store's verbs."""
        commands = self.commands()
        return commands.get("evalsha", 0) + commands.get("eval", 0)

    def batches(self) -> int:
        """How many events of the history were written."""
        return self._all_counts()["xadd"] - self._events

    def _counts(self) -> Counter[str]:
        calls = self._all_counts()
        for command in ("xadd", "xtrim", "expire"):
            calls.pop(command, None)
        return calls

    def _all_counts(self) -> Counter[str]:
        said = self._redis.info("commandstats")
        calls: Counter[str] = Counter()
        for command, stats in said.items():
            name = re.sub(r"^cmdstat_|\|.*", "", command)
            if name not in CONNECTING:
                calls[name] += stats["calls"]
        return calls


@contextlib.contextmanager
def sent(which: Signal) -> Iterator[list[dict[str, Any]]]:
    """What the signal carried, each time that it was sent."""
    received: list[dict[str, Any]] = []

    def receive(**kwargs: Any) -> None:
        received.append(kwargs)

    which.connect(receive, weak=False)
    try:
        yield received
    finally:
        which.disconnect(receive)


def fork() -> int:
    """As `os.fork`; a child is ended if it hangs."""
    with warnings.catch_warnings():
        # Later Pythons warn of forks beside threads, which is what is tested.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        # pytest-timeout's handler is Python code, which a child that hangs may never run.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(PATIENCE))
    return pid


def in_child(work: Callable[[], Any]) -> Any:
    """What ``work`` returns (as JSON) in a forked child; what it raises fails the test."""
    reading, writing = os.pipe()
    pid = fork()
    if pid == 0:
        try:
            answer = {"answer": work()}
        except BaseException:
            answer = {"error": traceback.format_exc()}
        try:
            os.write(writing, json.dumps(answer).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        said = json.loads(pipe.read() or b'{"error": "it died"}')
    os.waitpid(pid, 0)
    assert "error" not in said, said["error"]
    return said["answer"]


def orphan(name: str, ttl: float = LONG) -> None:
    """Leave a lock behind whose process has ended without releasing it."""
    in_child(lambda: taken(name, ttl=ttl).name)


def killed_in_child(work: Callable[[], Any]) -> None:
    """Do ``work``, which is to send SIGKILL to its process, in a forked child."""
    pid = fork()
    if pid == 0:
        try:
            work()
        finally:
            traceback.print_exc()
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, status  # noqa: PT018


def answered(call: Callable[[], T]) -> T:
    """What it returns, once the store answers: an outage may last for more than one call."""

    def ask() -> list[T]:
        with contextlib.suppress(StoreUnavailable):
            return [call()]
        return []

    return until(ask, "an answer")[0]


def unavailable(*calls: Callable[[], object], says: str | None = None) -> None:
    """Each of these calls is told that the store does not answer."""
    for call in calls:
        with pytest.raises(StoreUnavailable, match=says):
            call()


def silent(monkeypatch: pytest.MonkeyPatch, *verbs: str) -> list[str]:
    """Have these verbs of the store "default" get no answer. They are in the list when called."""
    asked: list[str] = []

    def of(verb: str) -> Callable[..., Any]:
        def ask(*_: Any, **__: Any) -> Any:
            asked.append(verb)
            raise StoreUnavailable("default", "silent")

        return ask

    for verb in verbs:
        monkeypatch.setattr(stores["default"], verb, of(verb), raising=False)
    return asked
