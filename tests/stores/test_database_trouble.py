"""`DatabaseStore` on PostgreSQL: interruptions at bad moments, and what they must not stop."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.db import connections

from django_tasklock import StoreUnavailable, locks
from django_tasklock._compat import native_threads
from django_tasklock._values.owner import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores.base import Refusal
from django_tasklock.stores.database import DatabaseStore
from django_tasklock.stores.database import connections as connections_module
from django_tasklock.stores.database import notifications as notifications_module
from tests.conftest import ProxyTo, UseCaches
from tests.interruptions import Exit
from tests.proxied_databases import proxy_before, through_proxy
from tests.proxy import CutProxy
from tests.steps import LONG, in_child, no_thread_once, taken
from tests.store_cases import make_lease_table
from tests.waiting import until

TIMEOUT = 1.0


@pytest.fixture
def alias(request: pytest.FixtureRequest) -> str:
    alias: str = request.getfixturevalue("postgres_alias")
    make_lease_table(alias)
    return alias


@pytest.fixture
def proxy(alias: str, proxy_to: ProxyTo) -> CutProxy:
    return proxy_before(alias, proxy_to)


@pytest.fixture
def store(alias: str, proxy: CutProxy, use_caches: UseCaches) -> Iterator[DatabaseStore]:
    with through_proxy(alias, proxy, use_caches, TIMEOUT=TIMEOUT, MAX_CONNECTIONS=1) as store:
        yield store


def test_a_waiter_that_could_not_join_leaves_nothing_behind(
    store: DatabaseStore, alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody makes an index on the queue's table meanwhile: INSERT waits, SELECT does not."""
    monkeypatch.setattr(notifications_module, "LINGER_SECONDS", 0.1)
    lease = taken("video:1", ttl=LONG)
    with connections[alias].cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("LOCK TABLE django_tasklock_waiter IN SHARE MODE")
        try:
            for _ in range(3):
                with pytest.raises(StoreUnavailable):
                    locks.acquire("video:1", wait=5)
        finally:
            cursor.execute("ROLLBACK")
    lease.release()
    notifications = store.notifications
    assert notifications is not None
    assert notifications._waiters == {}
    until(lambda: notifications._thread is None, "the end of its thread")


class InterruptedAfterALock:
    """A block in which a signal's handler raises right after `threading` has got a lock in a
    ``__enter__`` in Python, such as that of `threading.Condition`: CPython looks for signals
    there, at the end of a call."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def _profile(self, frame: Any, event: str, arg: Any) -> None:
        if (
            event == "c_return"
            and frame.f_code.co_name == "__enter__"
            and frame.f_code.co_filename == threading.__file__
            and self.kind in repr(arg)
        ):
            sys.setprofile(None)
            raise Exit

    def __enter__(self) -> InterruptedAfterALock:
        sys.setprofile(self._profile)
        return self

    def __exit__(self, kind: Any, *_: object) -> bool:
        sys.setprofile(None)
        return kind is Exit


def test_an_interrupted_wait_for_a_connection_does_not_stop_other_threads(
    store: DatabaseStore,
) -> None:
    store.count()

    def slow() -> None:
        store.run("SELECT pg_sleep(0.5)")

    first = threading.Thread(target=slow, daemon=True)
    first.start()
    time.sleep(0.2)
    with InterruptedAfterALock("RLock"):
        store.get("video:1")  # It would wait for the one connection.
    first.join(5)

    second = threading.Thread(target=slow, daemon=True)
    second.start()
    time.sleep(0.2)
    ended: list[str] = []

    def third() -> None:
        try:
            store.get("video:1")
            ended.append("answer")
        except StoreUnavailable as error:
            ended.append(str(error))

    other = threading.Thread(target=third, daemon=True)
    other.start()
    other.join(8 * TIMEOUT)
    assert ended == ["answer"], "the thread hangs"


def test_an_interrupted_waiter_does_not_stop_the_others(
    store: DatabaseStore,
) -> None:
    lease = taken("video:1", ttl=LONG)
    waiter: Any = store.waiter("video:1", new_token(), LONG, owner_record())
    assert isinstance(waiter.ask(), Refusal)
    notifications = store.notifications
    assert notifications is not None
    until(lambda: notifications.arrive, "notifications")
    waiter.wait(0)
    waiter._wakeup.clear()
    with InterruptedAfterALock("lock object"):
        waiter.wait(0.2)
    # The lock becomes free at this moment, before the caller leaves the queue.
    lease.release()
    time.sleep(1)
    ended: list[str] = []

    def others() -> None:
        other = taken("video:2", ttl=LONG)
        try:
            ended.append("joining")
            locks.acquire("video:2", ttl=LONG, wait=0.5)
            ended.append("done")
        finally:
            other.release()

    thread = threading.Thread(target=others, daemon=True)
    thread.start()
    thread.join(8)
    assert ended == ["joining", "done"], "every waiter of the process hangs"


def test_a_thread_that_could_not_be_started_once_is_started_later(
    store: DatabaseStore, proxy: CutProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = no_thread_once(monkeypatch, native_threads)
    with pytest.raises(StoreUnavailable):
        store.count()
    assert failed
    store.count()
    proxy.pause()

    def ask() -> None:
        with suppress(StoreUnavailable):
            store.count()

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(10 * TIMEOUT)
    hangs = thread.is_alive()
    proxy.resume()
    assert not hangs, f"no StoreUnavailable within {10 * TIMEOUT} s"


def test_a_forked_child_never_uses_its_parents_connection(store: DatabaseStore) -> None:
    """Two threads of the child make its first calls at the same moment."""

    def session() -> int:
        return int(store.run("SELECT pg_backend_pid()").rows[0][0])

    parents = session()
    parent = os.getpid()

    def in_the_child() -> list[int]:
        found: list[int] = []
        real, module = deque, vars(connections_module)

        def switched(*args: Any) -> Any:
            # The other thread runs now: CPython may switch at the end of any call.
            module["deque"] = real
            thread = threading.Thread(target=lambda: found.append(session()))
            thread.start()
            thread.join(2)
            return real(*args)

        assert os.getpid() != parent
        module["deque"] = switched
        found.append(session())
        return found

    assert parents not in in_child(in_the_child)


def test_a_join_whose_reply_was_lost_is_in_no_bodys_way(
    store: DatabaseStore, proxy: CutProxy
) -> None:
    lease = taken("video:1", ttl=LONG)
    proxy.drop_reply(b"INSERT INTO django_tasklock_waiter")
    got: list[float] = []

    def wait() -> None:
        other = locks.acquire("video:1", ttl=LONG, wait=20)
        assert other is not None
        got.append(time.monotonic())
        other.release()

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: proxy.lost_replies == 1, "the cut")
    time.sleep(0.3)
    released = time.monotonic()
    lease.release()
    thread.join(20)
    assert got[0] - released < 1.5


def test_a_waiter_that_is_woken_twice_at_once() -> None:
    """The second time between the two steps of its wait."""
    wakeup: Any = notifications_module.Wakeup()
    lock = wakeup._clear

    class Woken:
        def acquire(self, **options: Any) -> bool:
            got = lock.acquire(**options)
            wakeup._clear = lock
            wakeup.set()
            return bool(got)

    wakeup.set()
    wakeup._clear = Woken()
    wakeup.wait(1)
    assert wakeup.is_set()
