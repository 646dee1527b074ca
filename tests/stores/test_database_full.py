"""A `DatabaseStore` whose database has no room: an outage, and nothing is lost by it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from django.db import OperationalError, connections
from django.db.backends.signals import connection_created

from django_tasklock import Lease, StoreUnavailable, locks
from django_tasklock._values.arguments import LONGEST_NAME_CHARACTERS
from django_tasklock.stores import stores
from django_tasklock.stores.database import DatabaseStore
from django_tasklock.stores.database.statements import TABLE
from tests.conftest import UseCaches
from tests.steps import LONG, RENEWED, Meanwhile, taken
from tests.store_cases import database_store, make_lease_table
from tests.waiting import until

NoRoom = Callable[[], AbstractContextManager[None]]

# As the server itself raises it: what a driver and Django make of an error depends on its number.
REFUSE = {
    "postgresql": (
        """CREATE FUNCTION refuse() RETURNS trigger AS $$ BEGIN
        RAISE EXCEPTION 'could not extend file: No space left on device'
        USING ERRCODE = 'disk_full'; END $$ LANGUAGE plpgsql""",
        f"""CREATE TRIGGER no_room BEFORE INSERT OR UPDATE ON {TABLE}
        FOR EACH ROW EXECUTE FUNCTION refuse()""",
    ),
    "mysql": tuple(
        f"CREATE TRIGGER no_room_to_{verb} BEFORE {verb} ON {TABLE} FOR EACH ROW"
        " SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1114, MESSAGE_TEXT = 'The table is full'"
        for verb in ("INSERT", "UPDATE")
    ),
}
ALLOW = {
    "postgresql": ("DROP FUNCTION refuse CASCADE",),
    "mysql": ("DROP TRIGGER no_room_to_INSERT", "DROP TRIGGER no_room_to_UPDATE"),
}


MOST = 1000
"""leases that certainly need a new page"""


class TestServer:
    """Every write is refused, of new rows and of those that are there."""

    @pytest.fixture(
        params=["postgres_alias", pytest.param("mariadb_alias", marks=pytest.mark.nightly)]
    )
    def no_room(self, request: pytest.FixtureRequest, use_caches: UseCaches) -> NoRoom:
        alias: str = request.getfixturevalue(request.param)
        make_lease_table(alias)
        use_caches({}, {"default": database_store(alias)})

        def run(statements: tuple[str, ...]) -> None:
            with connections[alias].cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)

        @contextlib.contextmanager
        def no_room() -> Iterator[None]:
            vendor = connections[alias].vendor
            run(REFUSE[vendor])
            try:
                yield
            finally:
                run(ALLOW[vendor])

        return no_room

    def test_is_an_outage_for_who_asks_and_for_who_waits(self, no_room: NoRoom) -> None:
        lease = taken("video:1")
        with no_room():
            for name in ("video:1", "video:2"):
                with pytest.raises(StoreUnavailable) as raised:
                    locks.acquire(name)
                assert isinstance(raised.value.__cause__, OperationalError)
                with pytest.raises(StoreUnavailable):
                    locks.acquire(name, wait=LONG)
            assert locks.is_locked("video:1")
            assert not locks.is_locked("video:2")
        assert locks.acquire("video:1") is None
        assert taken("video:2").release()
        assert lease.release()

    def test_a_lease_is_held_and_is_renewed_when_there_is_room(self, no_room: NoRoom) -> None:
        lease = taken("video:1", ttl=RENEWED, renew=True)
        with no_room():
            with pytest.raises(StoreUnavailable):
                lease.extend(LONG)
            until(lambda: lease.remaining < RENEWED / 2, "that a renewal was due")
            assert lease.held
        until(lambda: lease.remaining > RENEWED / 2, "a renewal")
        assert lease.release()

    def test_a_release_is_made_good_when_there_is_room(self, no_room: NoRoom) -> None:
        lease = taken("video:1")
        with no_room():
            with pytest.raises(StoreUnavailable):
                lease.release()
            assert not lease.held
            assert locks.is_locked("video:1")
        # Long before its ttl.
        until(lambda: not locks.is_locked("video:1"), "free", LONG / 2)
        assert taken("video:1").release()

    def test_a_release_that_nobody_makes_good_costs_no_more_than_the_ttl(
        self, no_room: NoRoom
    ) -> None:
        lease = taken("video:1", ttl=RENEWED, renew=False)
        with no_room():
            with pytest.raises(StoreUnavailable):
                lease.release()
            until(lambda: not locks.is_locked("video:1"), "the end of its ttl")
        again = taken("video:1")
        assert lease.fence is not None
        assert again.fence is not None
        assert again.fence > lease.fence
        assert again.release()

    def test_a_waiter_hears_of_it_and_the_next_one_is_served(self, no_room: NoRoom) -> None:
        lease = taken("video:1", ttl=RENEWED, renew=False)
        waiter = Meanwhile(lambda: locks.acquire("video:1", wait=LONG))
        until(lambda: locks.waiters("video:1"), "a waiter")
        with no_room(), pytest.raises(StoreUnavailable):
            waiter.result()
        waiter = Meanwhile(lambda: locks.acquire("video:1", wait=LONG))
        served = waiter.result()
        assert served is not None
        assert not lease.held
        assert served.release()


class TestSqlite:
    """The file may not grow: a change in place finds room, a new page does not."""

    @pytest.fixture
    def no_room(self, sqlite_alias: str, use_caches: UseCaches) -> Iterator[NoRoom]:
        make_lease_table(sqlite_alias)
        use_caches({}, {"default": database_store(sqlite_alias)})
        most: list[int] = []

        def limit(connection: Any, **kwargs: Any) -> None:
            if most and connection.alias == sqlite_alias:
                connection.cursor().execute(f"PRAGMA max_page_count = {most[0]}")

        @contextlib.contextmanager
        def no_room() -> Iterator[None]:
            with connections[sqlite_alias].cursor() as cursor:
                cursor.execute("PRAGMA page_count")
                most.append(cursor.fetchone()[0])
            connect_anew()
            try:
                yield
            finally:
                most.clear()
                connect_anew()

        connection_created.connect(limit)
        yield no_room
        connection_created.disconnect(limit)

    def test_a_lock_that_needs_a_page_is_an_outage_and_the_others_work(
        self, no_room: NoRoom
    ) -> None:
        lease = taken("video:1")
        leases: list[Lease] = []
        with no_room():
            with contextlib.suppress(StoreUnavailable):
                while len(leases) < MOST:
                    leases.append(taken(long_name(len(leases))))
            refused = long_name(len(leases))
            with pytest.raises(StoreUnavailable, match="full"):
                locks.acquire(refused)
            assert not locks.is_locked(refused)
            assert locks.acquire("video:1") is None
            assert lease.extend(LONG)
            assert lease.release()
            assert taken("video:1").release()
        leases.append(taken(refused))
        assert all(lease.release() for lease in leases)


def long_name(number: int) -> str:
    return str(number).zfill(LONGEST_NAME_CHARACTERS)


def connect_anew() -> None:
    """The limit is a connection's own."""
    store = stores["default"]
    assert isinstance(store, DatabaseStore)
    store._connections.close_idle()
