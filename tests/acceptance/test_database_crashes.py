"""A database server that crashes and comes back still knows who holds what."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_tasklock import StoreUnavailable, locks
from tests.conftest import UseCaches, database_alias
from tests.crashing_databases import CrashingDatabase, MariaDB, PostgreSQL
from tests.steps import LONG, Meanwhile, taken
from tests.store_cases import database_store as settings_of_store
from tests.store_cases import make_lease_table
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture(params=[PostgreSQL, MariaDB], ids=lambda kind: kind.__name__)
def server(
    request: pytest.FixtureRequest, transactional_db: None, use_caches: UseCaches
) -> Iterator[CrashingDatabase]:
    """A server of locks alone, which the store "default" uses."""
    kind: type[CrashingDatabase] = request.param
    with kind.own() as server, database_alias("crashing", server.settings) as alias:
        make_lease_table(alias)
        use_caches({}, {"default": settings_of_store(alias)})
        yield server


def test_a_lease_outlives_a_crash_of_the_server(server: CrashingDatabase) -> None:
    lease = taken("video:1")
    server.kill()
    with pytest.raises(StoreUnavailable):
        locks.acquire("video:1")
    assert lease.held
    server.start()
    assert locks.acquire("video:1") is None
    assert lease.extend(LONG)
    assert lease.release()
    again = taken("video:1")
    assert lease.fence is not None
    assert again.fence is not None
    assert again.fence > lease.fence


def test_a_waiter_hears_of_the_crash_and_the_next_one_gets_the_lock(
    server: CrashingDatabase,
) -> None:
    lease = taken("video:1")
    waiter = Meanwhile(lambda: locks.acquire("video:1", wait=LONG))
    until(lambda: locks.waiters("video:1"))
    server.kill()
    with pytest.raises(StoreUnavailable):
        waiter.result()
    server.start()
    waiter = Meanwhile(lambda: locks.acquire("video:1", wait=LONG))
    until(lambda: locks.waiters("video:1"))
    assert lease.release()
    assert waiter.result() is not None
