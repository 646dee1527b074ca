"""The caller's transaction neither hides a lease of `DatabaseStore` nor takes it back."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from django.contrib.auth.models import Group
from django.db import DatabaseError, connections, transaction

from django_tasklock import StoreUnavailable, lock, locks
from tests.agent import Agent
from tests.conftest import UseCaches
from tests.steps import LONG, Meanwhile, taken
from tests.store_cases import database_store as settings_of_store
from tests.store_cases import make_lease_table


@pytest.fixture(
    params=[
        "sqlite_alias",
        "postgres_alias",
        pytest.param("mariadb_alias", marks=pytest.mark.nightly),
    ]
)
def alias(request: pytest.FixtureRequest, use_caches: UseCaches) -> str:
    """A database with a table of the application, and the locks in it; SQLite has locks alone."""
    alias: str = request.getfixturevalue(request.param)
    make_lease_table(alias)
    use_caches({}, {"default": settings_of_store(alias)})
    return alias


@pytest.fixture
def written(alias: str) -> Iterator[str]:
    """The alias of a database that the caller writes to: on SQLite another file."""
    written = "default" if alias == "sqlite" else alias
    with connections[written].cursor() as cursor:
        cursor.execute("CREATE TABLE work (done integer)")
    yield written
    with connections[written].cursor() as cursor:
        cursor.execute("DROP TABLE work")


def write(alias: str) -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute("INSERT INTO work VALUES (1)")


def test_what_was_taken_and_released_stays_so_when_the_transaction_is_rolled_back(
    written: str,
) -> None:
    released = taken("video:2")
    with transaction.atomic(using=written):
        write(written)
        lease = taken("video:1")
        assert released.release()
        transaction.set_rollback(True, using=written)
    assert [info.name for info in locks.list()] == ["video:1"]
    assert lease.extend()
    assert lease.release()


def test_another_process_sees_a_lease_while_the_transaction_is_open(written: str) -> None:
    with Agent() as other, transaction.atomic(using=written):
        write(written)
        lease = taken("video:1")
        assert other.ask("acquire", name="video:1") is None
        assert lease.release()
        answer = other.ask("acquire", name="video:1")
        assert answer["fence"] > (lease.fence or 0)
        assert not locks.acquire("video:1"), "nor is what others do hidden from the caller"
        assert other.ask("release") is True
        assert taken("video:1").release()


def test_a_transaction_that_has_failed_takes_no_lock_with_it(written: str) -> None:
    """PostgreSQL refuses every statement of such a transaction."""
    with (
        pytest.raises(DatabaseError, match="no_such_table"),
        transaction.atomic(using=written),
        lock("video:1") as lease,
    ):
        connections[written].cursor().execute("SELECT * FROM no_such_table")
    assert not lease.held
    assert not locks.is_locked("video:1")


class TestSQLiteOfTheApplication:
    """The locks are in the very file that the application writes to."""

    @pytest.fixture(autouse=True)
    def _in_the_same_file(self, transactional_db: None, use_caches: UseCaches) -> None:
        use_caches({}, {"default": settings_of_store("default", TIMEOUT=1.0)})

    def test_a_caller_that_has_written_is_told_that_it_waits_for_itself(self) -> None:
        lease = taken("video:1")
        for verb in (
            lambda: locks.acquire("video:2"),
            lambda: locks.acquire("video:2", wait=LONG),
            lease.extend,
            lambda: locks.clear("video:1"),
        ):
            with transaction.atomic():
                Group.objects.create(name="writers")
                began = time.monotonic()
                with pytest.raises(StoreUnavailable, match="caller's own transaction") as caught:
                    verb()
                assert time.monotonic() - began < LONG
                assert 'OPTIONS["DATABASE"]' in str(caught.value)
                assert locks.count() == 1, "what reads works meanwhile"
                transaction.set_rollback(True)
        assert lease.release()

    def test_another_writer_is_waited_for(self, use_caches: UseCaches) -> None:
        """Others' transactions end without the caller."""
        use_caches({}, {"default": settings_of_store("default")})
        writer = connections.create_connection("default")
        writer.inc_thread_sharing()
        writer.cursor().execute("BEGIN IMMEDIATE")
        waiter = Meanwhile(lambda: taken("video:1"))
        time.sleep(0.3)
        assert waiter.is_alive()
        writer.cursor().execute("COMMIT")
        writer.close()
        assert waiter.result().release()
