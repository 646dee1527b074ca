"""What the history says of the last hour, by lock and by minute."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from django_tasklock import Event, ListingNotSupported, locks
from django_tasklock._values.event import Kind
from django_tasklock._values.owner import Owner
from django_tasklock.operators.contention import contended, counts, past_hour
from tests.conftest import UseCaches, UseRedis
from tests.servers import RedisServer
from tests.steps import Traffic

MEMORY = "django_tasklock.stores.memory.MemoryStore"
CALLER = Owner(host="web-1", pid=7)
HOLDER = Owner(host="worker-1", pid=8, task="videos.process", task_id="id-1")


@pytest.fixture
def in_memory(use_caches: UseCaches) -> None:
    use_caches({}, {"default": {"BACKEND": MEMORY}})


def happened(name: str, kind: Kind, minutes_ago: float = 0, **fields: Any) -> None:
    filled = {"at": datetime.now(timezone.utc) - timedelta(minutes=minutes_ago), "owner": CALLER}
    locks.store.record([Event(kind, name, "default", **(filled | fields))])  # type: ignore[arg-type]


def test_the_most_wanted_lock_comes_first(in_memory: None) -> None:
    happened("quiet", "cleared", owner=HOLDER)
    happened("quiet", "held", owner=Owner(held_by="alice"))
    happened("b", "refused", holder=HOLDER, seconds=0.5)
    happened("a", "waited", owner=HOLDER, seconds=61.0)
    happened("a", "lost", owner=HOLDER)
    happened("a", "cleared", owner=HOLDER)
    happened("a", "refused", holder=CALLER, seconds=3.0)
    happened("a", "given up")

    first, second = contended(past_hour(locks).events)

    # I expect its numbers, its longest wait, and who held it last: not who gave up after that
    assert (first.name, first.refused, first.waited, first.longest) == ("a", 1, 1, 61.0)
    assert (first.lost, first.cleared, first.last) == (1, 1, CALLER)
    assert (second.name, second.refused, second.longest) == ("b", 1, 0.5)
    assert second.last == HOLDER


def test_the_permits_of_a_name_are_one_lock(in_memory: None) -> None:
    happened("rate", "refused", holder=HOLDER)
    for slot in (1, 2):
        happened(f"rate#{slot}", "waited", owner=Owner(host="h", pid=1, slots=2), seconds=2.0)
    happened("issue#1", "waited", seconds=2.0)  # a plain lock with such a name
    found = {row.name: (row.refused, row.waited) for row in contended(past_hour(locks).events)}
    assert found == {"rate": (1, 2), "issue#1": (0, 1)}


def test_what_is_older_than_an_hour_does_not_count(in_memory: None) -> None:
    happened("old", "refused", minutes_ago=61)
    happened("new", "refused", minutes_ago=59)
    past = past_hour(locks)
    assert [event.name for event in past.events] == ["new"]
    assert past.reaches is None


def test_it_is_said_from_when_on_the_events_reach(in_memory: None) -> None:
    assert past_hour(locks).reaches is None
    for minutes in range(50, 0, -1):
        happened("a", "refused", minutes_ago=minutes)
    past = past_hour(locks, limit=20)
    assert len(past.events) == 20
    assert past.reaches == past.events[-1].at
    # Also where fewer are kept than were asked for: the older ones may be forgotten
    assert past_hour(locks).reaches is not None


def test_each_minute_is_counted(in_memory: None) -> None:
    for minutes in (59.5, 30.5, 30.4, 0.1, -5):
        happened("a", "refused", minutes_ago=minutes)
    numbers = counts(past_hour(locks), 60)
    assert len(numbers) == 60
    assert {at: number for at, number in enumerate(numbers) if number} == {0: 1, 29: 2, 59: 2}


def test_a_thousand_events_are_one_round_trip(
    use_redis: UseRedis, own_redis_server: RedisServer
) -> None:
    use_redis(own_redis_server.url)
    now = datetime.now(timezone.utc)
    locks.store.record([Event("refused", "a", "default", now, CALLER)] * 2500)
    past_hour(locks, 1)  # the script is known to the server from here on
    traffic = Traffic(own_redis_server)
    assert len(past_hour(locks, 1000).events) == 1000
    assert traffic.scripts() == 1
    assert traffic.commands()["xrevrange"] == 1


def test_a_store_that_keeps_none_says_so(on_locmem: None) -> None:
    with pytest.raises(ListingNotSupported):
        past_hour(locks)


def test_an_event_that_happened_several_times_counts_as_often(in_memory: None) -> None:
    happened("often", "refused", holder=HOLDER, count=37, since=datetime.now(timezone.utc))
    for _ in range(3):
        happened("thrice", "refused", holder=HOLDER)
    past = past_hour(locks)
    assert [(row.name, row.refused) for row in contended(past.events)] == [
        ("often", 37), ("thrice", 3),
    ]  # fmt: skip
    assert sum(counts(past, 60)) == 40
