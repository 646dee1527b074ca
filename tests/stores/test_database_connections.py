"""The connections of `DatabaseStore`: cut, silent, interrupted, in the way, behind a PgBouncer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Barrier
from typing import Any

import pytest
from django.db import connections, transaction
from psycopg.conninfo import make_conninfo

from django_tasklock import StoreUnavailable, locks
from django_tasklock.models import LeaseRow
from django_tasklock.stores import stores
from django_tasklock.stores.base import Grant
from django_tasklock.stores.database import DatabaseStore
from django_tasklock.testing.steps import granted
from tests.conftest import ProxyTo, UseCaches, database_alias
from tests.inside import new_token, owner_record, rows_of
from tests.interruptions import Exit, Interrupt, signalled
from tests.proxied_databases import MODES, pgbouncer, proxy_before, through_proxy
from tests.proxy import CutProxy
from tests.steps import LONG, Meanwhile, all_of, answered, in_child, taken, unavailable
from tests.store_cases import database_store
from tests.store_cases import database_store as settings_of_store
from tests.waiting import PATIENCE, until

TABLE = LeaseRow._meta.db_table
TIMEOUT = 1.0


@pytest.fixture
def proxy(alias: str, proxy_to: ProxyTo) -> CutProxy:
    """In front of the server."""
    return proxy_before(alias, proxy_to)


@pytest.fixture
def store(alias: str, proxy: CutProxy, use_caches: UseCaches) -> Iterator[DatabaseStore]:
    """On that server, by way of the proxy."""
    with through_proxy(alias, proxy, use_caches, TIMEOUT=TIMEOUT) as store:
        yield store


SESSIONS = {
    "postgresql": "SELECT pid FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid()",
    "mysql": "SELECT id FROM information_schema.processlist "
    "WHERE db = DATABASE() AND id <> CONNECTION_ID()",
}


def sessions(alias: str) -> set[int]:
    """The server's numbers of the sessions in its database but our own."""
    with connections[alias].cursor() as cursor:
        cursor.execute(SESSIONS[connections[alias].vendor])
        return {number for (number,) in cursor.fetchall()}


def test_every_verb_works_after_the_server_has_ended_the_session(
    store: DatabaseStore, alias: str
) -> None:
    # Given a server that ends the store's session before each call
    end = {
        "postgresql": "SELECT pg_terminate_backend(%s)", "mysql": "KILL CONNECTION %s",
    }[connections[alias].vendor]  # fmt: skip
    token, owner = new_token(), owner_record()

    # I expect each verb to work all the same
    verbs: list[Callable[[], Any]] = [
        lambda: isinstance(store.acquire(["video:1"], token, LONG, owner), Grant),
        lambda: isinstance(store.acquire_all({"a": token, "b": token}, LONG, owner), list),
        lambda: store.extend("video:1", token, LONG),
        lambda: store.find("video:1"),
        lambda: len([*store.list()]) == 3,
        lambda: store.count() == 3,
        lambda: [*store.check()] == [],
        lambda: store.release("video:1", token),
        lambda: store.clear("a", token),
    ]
    store.count()
    for verb in verbs:
        until(lambda: len(sessions(alias)) == 1, "the end of those of other tests")
        (ended,) = sessions(alias)
        with connections[alias].cursor() as cursor:
            cursor.execute(end, [ended])
        until(lambda: not sessions(alias))
        assert verb()


def test_several_changes_that_were_cut_off_are_all_made_or_none(
    store: DatabaseStore, proxy: CutProxy
) -> None:
    proxy.drop_reply(f"INSERT INTO {TABLE}".encode())
    tokens = {name: new_token() for name in ("a", "b", "c")}
    with pytest.raises(StoreUnavailable):
        store.acquire_all(tokens, LONG, owner_record())
    assert store.count() == 0
    assert isinstance(store.acquire_all(tokens, LONG, owner_record()), list)


@pytest.mark.parametrize("silent", [False, True], ids=["down", "silent"])
def test_a_server_that_does_not_answer_is_an_outage(
    store: DatabaseStore, proxy: CutProxy, silent: bool
) -> None:
    lease = taken("video:1")
    if silent:
        proxy.pause()
    else:
        proxy.refuse()
        proxy.cut()
    began = time.monotonic()
    unavailable(lambda: locks.acquire("video:2"), lease.extend, locks.list)
    assert time.monotonic() - began < PATIENCE
    if silent:
        proxy.resume()
        proxy.cut()
    else:
        proxy.accept()
    assert lease.extend()
    assert lease.release()


def test_a_locked_table_is_an_outage_after_the_timeout(store: DatabaseStore, alias: str) -> None:
    """Somebody changes the table, say."""
    lease = taken("video:1")
    begin, end = {
        "postgresql": (f"BEGIN; LOCK TABLE {TABLE}", "ROLLBACK"),
        "mysql": (f"LOCK TABLE {TABLE} WRITE", "UNLOCK TABLES"),
    }[connections[alias].vendor]
    with connections[alias].cursor() as cursor:
        cursor.execute(begin)
        try:
            unavailable(lambda: locks.acquire("video:2"), lease.extend, locks.list)
        finally:
            cursor.execute(end)
    assert lease.release()


def test_a_write_whose_caller_gave_up_is_not_made_later(alias: str, use_caches: UseCaches) -> None:
    """Somebody else has the row for longer than a call may take: the server gives up first."""
    others = sessions(alias)
    use_caches({}, {"default": settings_of_store(alias, TIMEOUT=TIMEOUT)})
    assert taken("video:1").release()
    store = stores["default"]
    with transaction.atomic(alias), connections[alias].cursor() as cursor:
        cursor.execute(f"SELECT * FROM {TABLE} FOR UPDATE")
        with pytest.raises(StoreUnavailable, match=r"[Ll]ock wait timeout|statement timeout"):
            store.acquire(["video:1"], new_token(), LONG, owner_record())
    store.close_idle()
    until(lambda: not sessions(alias) - others)
    assert store.find("video:1") is None


ON_POSTGRES = pytest.mark.parametrize("alias", ["postgres_alias"], indirect=True)


@ON_POSTGRES
@pytest.mark.parametrize("error", [Interrupt, TimeoutError])
def test_what_a_signal_handler_raises_is_no_outage(alias: str, error: type[Exception]) -> None:
    assert taken("video:1").release()
    with transaction.atomic(alias), connections[alias].cursor() as cursor:
        cursor.execute(f"LOCK TABLE {TABLE}")
        with pytest.raises(error, match="from outside"), signalled(error("from outside")):
            granted(stores["default"], "video:1")


@ON_POSTGRES
def test_a_process_that_stops_in_a_transaction_holds_nobody_up_for_long(
    alias: str, use_caches: UseCaches
) -> None:
    """The server ends its session. Before that, others have an outage."""
    use_caches({}, {"default": settings_of_store(alias, TIMEOUT=TIMEOUT)})
    assert taken("video:1").release()
    stopped = rows_of(alias, TIMEOUT)
    stopped.run("SELECT 1")
    stopped._cursor.execute("SHOW statement_timeout")
    assert stopped._cursor.fetchone() == ("0",), "the limits of a call do not stay behind"
    stopped.begin()
    assert stopped.run(f"UPDATE {TABLE} SET fence = fence + 1").rowcount == 1
    assert answered(lambda: taken("video:1").release())
    stopped.close()


def test_one_connection_serves_all_calls_unless_one_is_interrupted_or_it_was_idle_for_long(
    store: DatabaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        assert Meanwhile(store.count).result(PATIENCE) == 0
    (interrupted,) = store._connections._idle.own()

    def raising(*_: Any) -> int:
        raise Exit

    monkeypatch.setattr(interrupted, "run", raising)
    with pytest.raises(Exit):
        store.count()
    assert interrupted._wrapper.connection is None
    assert store.count() == 0
    (idle,) = store._connections._idle.own()
    assert idle is not interrupted
    idle.idle_since -= 61
    assert store.count() == 0
    assert idle._wrapper.connection is None
    # So it is with those of a burst.
    together = Barrier(5)
    burst = [Meanwhile(lambda: store._run(lambda _: together.wait(PATIENCE))) for _ in range(5)]
    for each in burst:
        each.result(PATIENCE)
    left = [*store._connections._idle.own()]
    assert len(left) == 5
    for connection in left[:-1]:
        connection.idle_since -= 61
    assert store.count() == 0
    assert [*store._connections._idle.own()] == left[-1:]
    assert all(connection._wrapper.connection is None for connection in left[:-1])


@pytest.mark.usefixtures("each_fork")
def test_a_child_has_connections_of_its_own(store: DatabaseStore, alias: str) -> None:
    lease = taken("video:1")
    before = sessions(alias)

    assert in_child(lambda: [store.count(), len(store._connections._idle.own())]) == [1, 1]
    assert before <= sessions(alias)
    assert lease.extend(LONG)
    assert lease.release()


def test_a_test_database_can_be_dropped_and_one_of_another_name_is_used_at_once(
    store: DatabaseStore, alias: str
) -> None:
    """Django connects without a database to drop one."""
    store.count()
    assert sessions(alias)
    with connections[alias]._nodb_cursor() as cursor:
        cursor.execute("SELECT 1")
    until(lambda: not sessions(alias))
    assert store.count() == 0
    # As when a test run begins: it changes NAME in the settings that there are.
    settings = connections.settings["proxied"]
    taken("video:1").release()
    settings["NAME"] += "_other"
    connections["proxied"].settings_dict["NAME"] = settings["NAME"]
    with pytest.raises(StoreUnavailable, match="_other"):
        locks.acquire("video:1")


@ON_POSTGRES
@pytest.mark.parametrize(
    "options",
    [
        {"server_side_binding": True},
        {"isolation_level": 4},
        {"options": "-c default_transaction_isolation=serializable"},
        {"prepare_threshold": 0},
        {"pool": True},
    ],
    ids=str,
)
def test_options_of_the_applications_connections(
    alias: str, use_caches: UseCaches, options: dict[str, Any]
) -> None:
    """Where transactions are serializable, PostgreSQL undoes some for the sake of others."""
    there: Any = dict(connections.settings[alias])

    def compete() -> bool:
        return taken("video:1", wait=PATIENCE).release()

    with database_alias("there", there | {"OPTIONS": there["OPTIONS"] | options}):
        use_caches({}, {"default": settings_of_store("there")})
        several = locks.acquire_all(["video:2", "video:3"])
        assert several is not None
        assert several[0].extend(LONG)
        assert len(locks.list("video:")) == 2
        assert all(each.release() for each in several)
        assert all(worker.result(PATIENCE) for worker in [Meanwhile(compete) for _ in range(5)])
        permits = [lambda: taken("pool", slots=2, wait=PATIENCE).release()] * 3
        gate = [lambda: taken("pool", wait=PATIENCE).release()] * 2
        assert all_of(*permits, *gate) == [True] * 5
        stores.forget()


@contextmanager
def pooled(use_caches: UseCaches, dsn: str, mode: str, **options: Any) -> Iterator[None]:
    """The store "default" reaches that server by way of a PgBouncer."""
    there: Any = dict(connections.settings["postgres"]) | {"HOST": "127.0.0.1"}
    with pgbouncer(dsn, mode) as port, database_alias("pooled", there | {"PORT": port}):
        use_caches({}, {"default": database_store("pooled", **options)})
        yield
        stores.forget()


@pytest.mark.nightly
@ON_POSTGRES
@pytest.mark.parametrize("mode", MODES)
def test_a_lock_goes_from_holder_to_waiter(
    alias: str, postgres_dsn: str, use_caches: UseCaches, mode: str
) -> None:
    with pooled(use_caches, postgres_dsn, mode):
        lease = taken("video:1")
        waiter = Meanwhile(lambda: taken("video:1", wait=PATIENCE))
        assert lease.extend(LONG)
        assert lease.release()
        assert (waiter.result().fence or 0) > (lease.fence or 0)
        assert locks.acquire("video:1") is None
        several = locks.acquire_all(["video:2", "video:3"])
        assert several is not None
        assert all(each.release() for each in several)


@pytest.mark.nightly
@ON_POSTGRES
@pytest.mark.parametrize("known", [True, False], ids=["connected before", "new"])
def test_59_a_server_that_hangs_behind_it_is_an_outage_after_the_timeout(
    alias: str, postgres_dsn: str, proxy_to: ProxyTo, use_caches: UseCaches, known: bool
) -> None:
    """It answers a new connection by itself, and has no answer to the first statement."""
    proxy = proxy_before(alias, proxy_to)
    behind = make_conninfo(postgres_dsn, host="127.0.0.1", port=proxy.port)
    with pooled(use_caches, behind, "transaction", TIMEOUT=1.0):
        assert taken("video:1").release()
        if not known:
            stores["default"].close_idle()
        proxy.pause()
        with pytest.raises(StoreUnavailable, match="no answer in 1 s"):
            locks.acquire("video:1")
        proxy.resume()
        assert taken("video:1", wait=PATIENCE).release()
