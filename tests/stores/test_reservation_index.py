"""The index of reservations in Redis (``unique_while``): it trims itself, and outlives them."""

from __future__ import annotations

from typing import Any

from django_tasklock.operators.reservations import key_of, queued_jobs
from django_tasklock.stores.redis.store import RedisStore
from tests.operators.test_reservations import reserve, server, store
from tests.waiting import until

__all__ = ["server", "store"]


def test_nothing_is_left_of_what_has_ended(store: RedisStore, server: Any) -> None:
    """By themselves, or by the message's start: neither a member of the index nor the index."""
    for number in range(6):
        reserve(store, f"short:{number}", ttl=0.05)
    task_id = reserve(store, "long", ttl=8)
    assert server.pttl(store.keyspace.reserved) > 0
    until(lambda: store.get_note(key_of("videos.tasks.process", "short:5")) is None)
    for number in range(3):
        reserve(store, f"next:{number}", ttl=8)
    assert server.zcard(store.keyspace.reserved) == 4
    store.unreserve(key_of("videos.tasks.process", "long"), task_id)
    assert server.zcard(store.keyspace.reserved) == 3
    assert 8000 < server.pttl(store.keyspace.reserved) <= 16_000


def test_the_index_outlives_its_longest_reservation(store: RedisStore, server: Any) -> None:
    for number, ttl in enumerate((60, 6000, 1, 600)):
        reserve(store, f"job:{number}", ttl=ttl)
        assert server.pttl(store.keyspace.reserved) >= server.pttl(
            store.keyspace.note_key(key_of("videos.tasks.process", f"job:{number}"))
        )
    assert server.ttl(store.keyspace.reserved) > 5990


def test_more_jobs_than_one_script_looks_at(store: RedisStore, server: Any) -> None:
    """And those among them whose keys were deleted by hand."""
    for number in range(2500):
        reserve(store, f"job:{number:04}", ttl=600 + number)
    for number in range(0, 2500, 5):
        server.delete(store.keyspace.note_key(key_of("videos.tasks.process", f"job:{number:04}")))
    expected = [f"job:{number:04}" for number in range(2500) if number % 5]
    assert [job.name for job in queued_jobs(store)] == expected
    assert server.zcard(store.keyspace.reserved) == 2000
