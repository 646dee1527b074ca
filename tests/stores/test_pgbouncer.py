"""`DatabaseStore` by way of a real PgBouncer, in each of its modes.

The contract and the tests of the queue run through one in transaction mode as well: the store
"database-store-pgbouncer" of `tests.store_cases`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from django.db import connections
from psycopg.conninfo import make_conninfo

from django_tasklock import StoreUnavailable, lock, locks
from django_tasklock._values.tokens import new_token
from django_tasklock.stores import stores
from django_tasklock.stores.base import Grant, Refusal
from django_tasklock.stores.database import DatabaseStore
from django_tasklock.stores.database.notifications import Notifications
from django_tasklock.stores.database.queue_statements import CHANNEL
from django_tasklock.stores.database.waiter import DatabaseWaiter
from tests.agent import Agent
from tests.conftest import UseCaches, database_alias
from tests.pgbouncer import MODES, pgbouncer
from tests.steps import LONG, Meanwhile, taken
from tests.store_cases import database_store as settings_of_store
from tests.store_cases import make_lease_table
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.nightly

Behind = Callable[..., DatabaseStore]


@pytest.fixture
def behind(
    postgres_alias: str, postgres_dsn: str, use_caches: UseCaches
) -> Iterator[Callable[..., DatabaseStore]]:
    """``behind(mode, most=20, **options)``: the store "default", by way of a PgBouncer.

    ``most``: how many sessions that one opens; ``options``: those of the store.
    """
    make_lease_table(postgres_alias)
    there: Any = dict(connections.settings[postgres_alias]) | {"HOST": "127.0.0.1"}
    with ExitStack() as stack:

        def store(mode: str, most: int = 20, **options: Any) -> DatabaseStore:
            port = stack.enter_context(pgbouncer(postgres_dsn, mode, most=most))
            stack.enter_context(database_alias("pooled", there | {"PORT": port}))
            stack.callback(stores.forget)
            use_caches({}, {"default": settings_of_store("pooled", **options)})
            store = stores["default"]
            assert isinstance(store, DatabaseStore)
            return store

        yield store


def by_way_of(store: DatabaseStore, dsn: str) -> psycopg.Connection[Any]:
    """A connection of somebody else's by way of the same PgBouncer."""
    port = connections.settings[store.database]["PORT"]
    return psycopg.connect(
        make_conninfo(dsn, host="127.0.0.1", port=port, user="postgres"), autocommit=True
    )


def notifications_of(store: DatabaseStore) -> Notifications:
    assert store.notifications is not None
    return store.notifications


@pytest.mark.parametrize("mode", MODES)
def test_a_lock_goes_from_holder_to_waiter(behind: Behind, mode: str) -> None:
    behind(mode)
    lease = taken("video:1")
    with Agent() as other:
        other.tell("acquire", name="video:1", wait=LONG)
        until(lambda: len(locks.waiters("video:1")) == 1)
        assert lease.extend(LONG)
        assert lease.release()
        assert other.answer()["fence"] > (lease.fence or 0)
        assert locks.acquire("video:1") is None


@pytest.mark.parametrize("mode", ["transaction", "statement"])
def test_where_listen_is_silent_waiters_poll(behind: Behind, mode: str) -> None:
    # Given a pooler that accepts LISTEN and delivers nothing, when a waiter has listened in vain,
    # then I expect it to poll, and to get the lock.
    store = behind(mode)
    notifications = notifications_of(store)
    lease = taken("video:1")
    waiter = Meanwhile(lambda: taken("video:1", wait=PATIENCE))
    until(lambda: notifications._thread is not None)
    until(lambda: notifications._thread is None)
    assert not notifications.arrive
    assert lease.release()
    assert waiter.result(PATIENCE).release()


@pytest.mark.parametrize("mode", ["transaction", "statement"])
def test_nobody_else_is_sent_notifications(behind: Behind, mode: str, postgres_dsn: str) -> None:
    """The sessions are given to others, and psycopg keeps the notifications that it gets there."""
    store = behind(mode, most=1)
    notifications = notifications_of(store)
    lease = taken("video:1")
    with by_way_of(store, postgres_dsn) as somebody:
        waiter = Meanwhile(lambda: taken("video:1", wait=PATIENCE))
        until(lambda: notifications._thread is not None)
        until(lambda: notifications._thread is None)
        received: list[psycopg.Notify] = []
        somebody.add_notify_handler(received.append)
        store.run("SELECT pg_notify(%(channel)s, 'video:1')", {"channel": CHANNEL})
        for _ in range(5):
            somebody.execute("SELECT pg_notify(%s, 'video:1')", [CHANNEL])
        assert received == []
    assert lease.release()
    assert waiter.result(PATIENCE).release()


def test_in_session_mode_notifications_arrive(behind: Behind) -> None:
    store = behind("session")
    notifications = notifications_of(store)
    lease = taken("video:1")
    waiter = DatabaseWaiter(store, "video:1", new_token(), LONG, {})
    assert isinstance(waiter.ask(), Refusal)
    until(lambda: notifications.arrive)
    waiter._wakeup.clear()
    assert lease.release()
    until(waiter._wakeup.is_set)
    assert isinstance(waiter.wait(0), Grant)


def test_sessions_that_others_have_changed_serve_as_well(behind: Behind, postgres_dsn: str) -> None:
    """A SET stays behind on the session that PgBouncer gives to the next connection."""
    store = behind("transaction", most=1)
    with by_way_of(store, postgres_dsn) as somebody:
        for setting in (
            "timezone = 'Asia/Kolkata'",
            "default_transaction_isolation = 'serializable'",
            "datestyle = 'German'",
            "standard_conforming_strings = off",
            "enable_indexscan = off",
        ):
            somebody.execute(f"SET {setting}")
        before = taken("video:1")
        held = locks.get("video:1")
        assert held is not None
        assert held.ttl == pytest.approx(before.remaining, abs=1)
        assert before.extend(LONG)
        assert before.release()
        with Agent() as other:
            assert other.ask("acquire", name="video:1", ttl=LONG)["fence"] > (before.fence or 0)


def test_many_threads_share_two_sessions(behind: Behind) -> None:
    behind("transaction", most=2)
    inside, overlaps = threading.Lock(), []

    def work() -> None:
        for _ in range(5):
            with lock("video:1", ttl=LONG, wait=PATIENCE):
                if not inside.acquire(blocking=False):
                    overlaps.append(1)
                    continue
                inside.release()

    for worker in [Meanwhile(work) for _ in range(12)]:
        worker.result(3 * PATIENCE)
    assert overlaps == []


def test_a_pool_without_a_free_session_is_an_outage(behind: Behind, postgres_dsn: str) -> None:
    # Given a pool whose only session is in somebody's transaction, when a lock is asked for, then
    # I expect an outage after TIMEOUT, never "held"; and the lock after that transaction.
    store = behind("transaction", most=1, TIMEOUT=1.0)
    assert taken("video:1").release()
    with by_way_of(store, postgres_dsn) as somebody, somebody.transaction():
        somebody.execute("SELECT 1")
        with pytest.raises(StoreUnavailable):
            locks.acquire("video:1")
    assert taken("video:1").release()
