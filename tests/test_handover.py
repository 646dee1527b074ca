"""What a hand-over does so that the next holder hears of it as soon as can be."""

from __future__ import annotations

from typing import Any

import pytest

from django_tasklock.lease import new_token
from django_tasklock.owner import owner_record
from django_tasklock.stores import stores
from django_tasklock.stores.base import Grant, Refusal
from django_tasklock.stores.redis import connections
from django_tasklock.stores.redis.connections import arrives
from example_project.servers import RedisServer
from tests.conftest import UseRedis
from tests.steps import LONG, taken, until
from tests.test_waiting import waiter


def test_next_holder_is_told_before_who_released(
    use_redis: UseRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one process the second would keep the interpreter from the first."""
    use_redis()
    store: Any = stores["default"]
    monkeypatch.setattr(store.listener, "in_use", lambda: True)
    for turn in range(300):
        lease, token = taken("video:1"), new_token()
        place = store.line("video:1", token, LONG, owner_record())
        assert isinstance(place.ask(), Refusal)
        lease.release()
        assert arrives(store.listener._connection, 0), f"not in turn {turn}"
        grant = place.wait(LONG)
        assert isinstance(grant, Grant)
        assert store.release("video:1", token, grant.proof)


@pytest.mark.parametrize("packed_by", ["hiredis", "redis-py"])
def test_a_word_is_sent_before_a_release_where_others_of_the_process_wait(
    own_redis_server: RedisServer,
    use_redis: UseRedis,
    monkeypatch: pytest.MonkeyPatch,
    packed_by: str,
) -> None:
    use_redis(own_redis_server.url)
    store: Any = stores["default"]
    if packed_by == "redis-py":
        monkeypatch.setattr(connections, "pack", None)
    assert taken("video:1").release()  # The server has the script from now on.
    lease = taken("video:1")
    thread = waiter("video:1", 1)
    until(store.listener.in_use)
    before = pings(store)
    assert lease.release()
    lease = thread.result()
    assert pings(store) == before + 1
    until(lambda: not store.listener.in_use())
    assert lease.release()
    assert pings(store) == before + 1


def pings(store: Any) -> int:
    stats = store.client.redis.info("commandstats")
    return int(stats.get("cmdstat_ping", {"calls": 0})["calls"])


def test_who_comes_next_reads_for_its_process(use_redis: UseRedis) -> None:
    """Given one who waits for another lock, and reads; nobody looks after a holder's life, which
    would make another one read."""
    use_redis(tasklock={"OPTIONS": {"TAKEOVER": False}})
    store: Any = stores["default"]
    other, lease = taken("video:2"), taken("video:1")
    reader = waiter("video:2", 1)
    until(lambda: store.listener._readers._reader is not None)
    before = store.listener._readers._reader
    first, second = waiter("video:1", 1), waiter("video:1", 2)
    assert store.listener._readers._reader is before
    until(lambda: len(store.listener._readers._asleep) == 2, "both sleep, who stand in the line")
    # When the lock is handed to the first of two
    lease.release()
    lease = first.result()
    # Then the second reads, and is handed it; and after it the one who read before
    until(lambda: store.listener._readers._reader not in (None, before), "another one reads")
    lease.release()
    second.result().release()
    until(lambda: store.listener._readers._reader is before)
    other.release()
    reader.result().release()
