"""Django's cache in a database swallows the errors of its writes; the locks do not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.core.management import call_command
from django.db import connection

from django_tasklock import StoreUnavailable, locks
from django_tasklock.stores import stores
from django_tasklock.stores.base import Note
from tests.conftest import UseCaches
from tests.steps import taken

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("on_a_table")]


@pytest.fixture
def on_a_table(use_caches: UseCaches) -> Iterator[None]:
    backend = "django.core.cache.backends.db.DatabaseCache"
    use_caches({"default": {"BACKEND": backend, "LOCATION": "cached"}}, {"default": {}})
    call_command("createcachetable", verbosity=0)
    yield
    writes_fail(no_longer=True)
    run("DROP TABLE cached")


def run(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


def writes_fail(*, no_longer: bool = False) -> None:
    """As on a replica, with a full disk, or while another transaction has SQLite's file."""
    run(f"PRAGMA query_only = {0 if no_longer else 1}")


def test_a_lock_that_cannot_be_written_is_not_called_held() -> None:
    writes_fail()
    with pytest.raises(StoreUnavailable, match="did not write"):
        locks.acquire("video:1")


def test_a_lease_whose_new_end_was_not_written_is_not_extended() -> None:
    lease = taken("video:1", ttl=5)
    writes_fail()
    with pytest.raises(StoreUnavailable, match="did not write"):
        lease.extend(60)
    assert lease.remaining <= 5


def test_a_clear_of_a_lease_that_fails_is_not_called_too_late() -> None:
    lease = taken("video:1")
    writes_fail()
    with pytest.raises(StoreUnavailable, match="did not write"):
        locks.clear("video:1", token=lease.token)


def test_a_lease_is_not_detached_if_that_was_not_written() -> None:
    lease = taken("video:1")
    writes_fail()
    with pytest.raises(StoreUnavailable, match="did not write"):
        lease.detach()


def test_neither_a_note_nor_a_reservation_is_lost_in_silence() -> None:
    writes_fail()
    with pytest.raises(StoreUnavailable, match="did not write"):
        stores["default"].set_note(Note("key", "text", 60))
    with pytest.raises(StoreUnavailable, match="did not write"):
        stores["default"].reserve("key", "text", 60)
