"""Django's cache in a database swallows the errors of its writes; the locks do not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.core.management import call_command
from django.db import connection

from django_tasklock import StoreUnavailable, locks
from django_tasklock.stores import stores
from django_tasklock.stores.base import Note
from django_tasklock.stores.cache import CacheStore
from tests.conftest import UseCaches
from tests.steps import taken
from tests.stores.test_cache_store import assert_locks

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


def test_locks_in_a_table() -> None:
    assert_locks()


def test_a_call_on_an_event_loop_is_the_callers_mistake_and_no_outage() -> None:
    """The cache uses the connection of this thread, which Django keeps from loops."""

    async def take() -> None:
        locks.acquire("video:1")

    with pytest.raises(SynchronousOnlyOperation):
        asyncio.run(take())


def test_what_cannot_be_written_is_neither_held_nor_extended_nor_cleared() -> None:
    """Nor is a note or a reservation lost in silence."""
    lease, store = taken("video:1", ttl=5), stores["default"]
    assert isinstance(store, CacheStore)
    writes_fail()
    verbs: list[Callable[[], object]] = [
        lambda: locks.acquire("video:2"),
        lambda: lease.extend(60),
        lambda: locks.clear("video:1", token=lease.token),
        lambda: store.set_note(Note("key", "text", 60)),
        lambda: store.reserve("key", "text", 60),
    ]
    for verb in verbs:
        with pytest.raises(StoreUnavailable, match=r"did not write|readonly"):
            verb()
    assert lease.remaining <= 5
    store._own.clear()  # As of a lease of another process.
    with pytest.raises(StoreUnavailable, match=r"did not write|readonly"):
        locks.clear("video:1", token=lease.token)
