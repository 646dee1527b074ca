"""A plain cache cannot compare and delete in one step, so a lease stops acting before its end.

A cache that keeps nothing is no store for locks. Memcached and a table have ways of their own.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from celery import Celery
from django.core.cache import cache
from django.core.exceptions import SynchronousOnlyOperation

from django_tasklock import InvalidLockConfig, Lease, StoreUnavailable, lock, locks
from django_tasklock.celery import LockedTask
from django_tasklock.signals import lock_lost
from django_tasklock.stores import cache as cache_module
from django_tasklock.stores import stores
from django_tasklock.stores.base import Extension, Grant, Note
from django_tasklock.stores.cache import MARGIN_SECONDS, CacheStore
from django_tasklock.stores.records import Held
from django_tasklock.testing.steps import granted
from tests import needs
from tests.conftest import UseCaches
from tests.inside import new_token, owner_record
from tests.interruptions import Interrupt, signalled
from tests.steps import LONG, held_by, in_child, sent, taken, unavailable
from tests.store_cases import lock_table
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("on_locmem")


@pytest.fixture
def store(on_locmem: None) -> Any:
    return stores["default"]


@pytest.mark.parametrize("verb", ["release", "extend", "clear"])
def test_a_lease_that_is_about_to_end_is_left_to_expire(
    store: Any, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    # Given a lease that this process holds for less than the margin, by its own clock
    lease = taken("video:1", ttl=60)
    made: list[str] = []
    for change in ("set", "delete", "touch"):
        monkeypatch.setattr(store.cache, change, lambda *_, **__: made.append("changed"))
    store._own[lease.token] -= 60 - MARGIN_SECONDS * 0.9

    # I expect a release to lose nothing, and an operator to be told nothing of an outage
    told: bool = locks.clear("video:1") if verb == "clear" else getattr(lease, verb)()
    assert told is (verb == "release")

    # And the key to be left alone: the next holder may have it when the change arrives
    assert made == []
    assert locks.is_locked("video:1")


def test_a_record_that_does_not_say_since_when_is_cleared(store: Any) -> None:
    record = {"token": new_token(), "at": None, "ends": time.time() + LONG}
    store.cache.set("lock:video:1", json.dumps(record))
    assert locks.clear("video:1")
    assert not locks.is_locked("video:1")


def test_a_block_that_ends_just_before_its_lease_has_lost_nothing(store: Any) -> None:
    with sent(lock_lost) as lost, lock("video:1", ttl=60) as lease:
        renewal = [Extension("video:1", lease.token, 60)]
        assert store.extend_many(renewal) == [True]
        store._own[lease.token] -= 60 - MARGIN_SECONDS * 0.9
        assert store.extend_many(renewal) == [None], "it comes late, and is not made"
        assert lease.held
    assert lost == []


@pytest.mark.parametrize("error", [Interrupt, TimeoutError])
def test_what_a_signal_handler_raises_is_no_outage(
    store: Any, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """Only what the cache's client raises is one, and that may be any exception."""

    def fail(*_: object) -> None:
        raise error("of the client")

    monkeypatch.setattr(store.cache, "add", lambda *_: until(lambda: False))
    with pytest.raises(error, match="from outside"), signalled(error("from outside")):
        locks.acquire("video:1")
    monkeypatch.setattr(store.cache, "add", fail)
    with pytest.raises(StoreUnavailable, match="of the client"), signalled(error("from outside")):
        locks.acquire("video:1")


def test_who_dies_in_a_takeover_delays_the_next_one_for_a_moment(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "CLEARING_SECONDS", 0.5)
    dead = {**owner_record(), "start": owner_record()["start"] - 1000}
    token = held_by(dead, "video:1")
    store._own.clear()  # It is another process's lease, which a third one has begun to clear.
    assert store._is_first(Held(token))
    assert taken("video:1", wait=LONG / 4).held


@pytest.mark.usefixtures("each_fork")
def test_of_the_children_of_a_dead_holder_one_takes_over(
    use_caches: UseCaches, tmp_path: Path
) -> None:
    """They do not take its leases for their own, whose change needs no care."""
    location = {"BACKEND": "django.core.cache.backends.filebased.FileBasedCache"}
    use_caches({"default": {**location, "LOCATION": str(tmp_path)}})

    def holder() -> list[bool]:
        lease, store = taken("video:1", renew=False), cast("CacheStore", stores["default"])
        # Another child is about to clear it.
        assert store._is_first(Held(lease.token))
        return [in_child(lambda: store.clear("video:1", lease.token)), lease.held]

    assert in_child(holder) == [False, True]


def test_43_no_lock_is_granted_and_no_work_is_done(use_caches: UseCaches) -> None:
    """By a cache that keeps nothing; also where no system check runs, as in a worker."""
    use_caches({"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}}, None)
    done: list[str] = []
    app = Celery("eager", broker="memory://", set_as_current=False, fixups=[])
    app.conf.update(task_always_eager=True, task_eager_propagates=True)

    @app.task(base=LockedTask, lazy=False, shared=False, lock_name="job")
    def task() -> None:
        done.append("task")

    def block() -> None:
        with lock("video:1"):
            done.append("block")

    for call in (block, task.delay, lambda: locks.acquire("video:1"), block):
        with pytest.raises(InvalidLockConfig, match=r"a DummyCache: it grants every lock"):
            call()
    assert done == []


@pytest.mark.parametrize("ended", [True, False])
def test_a_key_that_is_gone_at_the_first_look_is_no_proof(
    store: Any, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    """The process was stopped between the two calls, or somebody has cleared the cache."""
    real = store.cache.add

    def added(key: str, value: object, lifetime: float) -> bool:
        made = bool(real(key, value, lifetime))
        if ended:
            until(lambda: store.cache.get(key) is None)
        else:
            store.cache.clear()
            monkeypatch.setattr(store.cache, "add", real)
        return made

    monkeypatch.setattr(store.cache, "add", added)
    granted(store, "a", ttl=0.05 if ended else 60)


class TestMemcached:
    """Names that it cannot hold, values of old code, one of several servers that is dead, a grant
    that comes late."""

    @pytest.fixture(autouse=True, params=["pymemcache", "pylibmc"])
    def backend(
        self, request: pytest.FixtureRequest, on_locmem: None, use_caches: UseCaches,
        memcached_server: str,
    ) -> str:  # fmt: skip
        pytest.importorskip(request.param, reason=f"{request.param} has no wheel here")
        name = {"pymemcache": "PyMemcacheCache", "pylibmc": "PyLibMCCache"}[request.param]
        backend = f"django.core.cache.backends.memcached.{name}"
        use_caches({"default": {"BACKEND": backend, "LOCATION": memcached_server}}, {"default": {}})
        return backend

    def test_a_key_outlives_its_lease_where_the_servers_clock_leaps(
        self, memcached_server: str
    ) -> None:
        """It reads the time once a second, in whole seconds: sometimes it is two behind."""
        host, _, port = memcached_server.rpartition(":")
        with socket.create_connection((host, int(port))) as server:

            def seconds_left(name: str) -> int:
                lease = taken(name, ttl=1)
                server.sendall(f"mg {cache.make_key(f'lock:{name}')} t\r\n".encode())
                seconds = int(server.recv(1000).removeprefix(b"HD t"))
                lease.release()
                return seconds

            # Of several, since its clock may go on between the two.
            assert max(seconds_left(f"video:{number}") for number in range(3)) == 1 + 2

    def test_a_name_of_too_many_bytes_is_no_outage_and_what_old_code_has_set_a_lock(self) -> None:
        """A name may have 200 characters, and a key of Memcached 250 bytes."""
        with pytest.raises(ValueError, match="cannot hold a lock of this name: its key has 308 b"):
            locks.acquire("é" * 150)
        assert taken("e" * 200).release()
        # Whether the server answers is asked by an ``incr``, which these cannot be.
        for value in (None, "a text", [1], 7):
            cache.set("lock:video:1", value, LONG)
            assert locks.is_locked("video:1")
            assert locks.acquire("video:1") is None
            assert locks.clear("video:1")
            assert not locks.is_locked("video:1")

    def test_the_locks_of_a_dead_server_are_neither_free_nor_held(
        self, use_caches: UseCaches, memcached_server: str, backend: str
    ) -> None:
        """The other server answers, and says nothing of them. For a second after an error the
        client does not try the dead one again, and finds nothing."""
        with needs.memcached() as dying:
            servers = [memcached_server, dying]
            use_caches({"default": {"BACKEND": backend, "LOCATION": servers}}, {"default": {}})
            leases = [taken(f"video:{new_token()}") for _ in range(20)]
        gone = 0
        for lease in leases:
            try:
                assert lease.extend()
            except StoreUnavailable:
                gone += 1
                asks: Any = (locks.acquire, locks.is_locked, locks.clear)
                unavailable(*(partial(ask, lease.name) for ask in asks))
            else:
                assert locks.is_locked(lease.name)
        assert 0 < gone < 20

    def test_an_acquire_with_the_token_of_an_old_lease_leaves_the_next_holder_alone(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The grant came late, and the service asks again, with the same token. The key is there
        for a moment more; the reply that says so is on its way for longer than that."""
        store: Any = stores["default"]
        first, ttl, real = granted(store, ttl=0.05), 0.05, store._entry
        others: list[Lease] = []
        time.sleep(ttl)

        def read(name: str) -> Any:
            entry = real(name)
            if not others:
                monkeypatch.undo()
                others.append(taken(name, wait=5))
            return entry

        monkeypatch.setattr(store, "_entry", read)
        again = store.acquire([first.name], first.token, ttl, owner_record())
        assert others
        assert not isinstance(again, Grant), "two hold the lock"


def test_a_permit_is_withdrawn_if_the_lock_itself_was_taken_just_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cache cannot compare: the permit is added first, and then the other key is looked at."""
    store: Any = stores["default"]
    add, gates = store._add, list[Lease]()

    def adds(*args: Any) -> Any:
        monkeypatch.undo()
        gates.append(taken("pool"))
        return add(*args)

    monkeypatch.setattr(store, "_add", adds)
    assert locks.acquire("pool", slots=2) is None
    assert [locks.is_locked(name) for name in ("pool", "pool#1", "pool#2")] == [True, False, False]
    assert gates[0].release()
    assert taken("pool", slots=2).slot == 1


@pytest.mark.django_db(transaction=True)
class TestTable:
    """Django's cache in a database swallows the errors of its writes; the locks do not."""

    @pytest.fixture(autouse=True)
    def execute(self, on_locmem: None, use_caches: UseCaches) -> Iterator[Callable[[str], None]]:
        with lock_table() as (settings, execute):
            use_caches({"default": settings}, {"default": {}})
            yield execute
            execute("PRAGMA query_only = 0")

    def test_a_call_on_an_event_loop_is_the_callers_mistake_and_no_outage(self) -> None:
        """The cache uses the connection of this thread, which Django keeps from loops."""

        async def take() -> None:
            locks.acquire("video:1")

        with pytest.raises(SynchronousOnlyOperation):
            asyncio.run(take())

    def test_what_cannot_be_written_is_neither_held_nor_extended_nor_cleared(
        self, execute: Callable[[str], None]
    ) -> None:
        """Nor is a note or a reservation lost in silence."""
        lease, store = taken("video:1", ttl=5), cast("CacheStore", stores["default"])
        # As on a replica, with a full disk, or while another transaction has SQLite's file.
        execute("PRAGMA query_only = 1")

        verbs: list[Callable[[], object]] = [
            lambda: locks.acquire("video:2"),
            lambda: lease.extend(60),
            lambda: locks.clear("video:1", token=lease.token),
            lambda: store.set_note(Note("key", "text", 60)),
            lambda: store.reserve("key", "text", 60),
        ]
        unavailable(*verbs, says=r"did not write|readonly")
        assert lease.remaining <= 5
        store._own.clear()  # As of a lease of another process.
        unavailable(verbs[2], says=r"did not write|readonly")
