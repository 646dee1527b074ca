"""What a hand-over does so that the next holder hears of it as soon as can be."""

from __future__ import annotations

import time
from typing import Any

import pytest

from django_tasklock import locks
from django_tasklock._compat.redis import arrives
from django_tasklock._values.owner import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores import stores
from django_tasklock.stores.base import Grant, Refusal
from tests.conftest import UseRedis
from tests.servers import RedisServer
from tests.steps import LONG, holder, taken, waiter
from tests.waiting import until


def test_the_next_holder_gets_its_message_before_the_releaser_gets_its_reply(
    use_redis: UseRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one process the second would keep the interpreter from the first."""
    use_redis()
    store: Any = stores["default"]
    monkeypatch.setattr(store.subscriber, "in_use", lambda: True)
    for turn in range(300):
        lease, token = taken("video:1"), new_token()
        asking = store.waiter("video:1", token, LONG, owner_record())
        assert isinstance(asking.ask(), Refusal)
        lease.release()
        assert arrives(store.subscriber._connection, 0), f"not in turn {turn}"
        grant = asking.wait(LONG)
        assert isinstance(grant, Grant)
        assert store.release("video:1", token, grant.proof)


def test_a_word_is_sent_before_a_release_where_others_of_the_process_wait(
    own_redis_server: RedisServer, use_redis: UseRedis
) -> None:
    # A waiter that looks whether the holder lives does not read for a moment.
    use_redis(own_redis_server.url, tasklock={"OPTIONS": {"TAKEOVER": False}})
    store: Any = stores["default"]
    assert taken("video:1").release()  # The server has the script from now on.
    lease = taken("video:1")
    thread = waiter("video:1", 1)
    until(store.subscriber.in_use)
    before = pings(store)
    assert lease.release()
    lease = thread.result()
    assert pings(store) == before + 1
    until(lambda: not store.subscriber.in_use())
    assert lease.release()
    assert pings(store) == before + 1


def pings(store: Any) -> int:
    stats = store.client.redis.info("commandstats")
    return int(stats.get("cmdstat_ping", {"calls": 0})["calls"])


def test_a_waiter_that_leaves_in_the_moment_it_is_handed_the_lock_has_it(
    use_redis: UseRedis,
) -> None:
    """Nobody else would release it."""
    use_redis()
    store: Any = stores["default"]
    lease, token = taken("video:1"), new_token()
    asking = store.waiter("video:1", token, LONG, owner_record())
    assert isinstance(asking.ask(), Refusal)
    assert lease.release()
    grant = asking.leave()
    assert isinstance(grant, Grant)
    assert holder("video:1").fence == grant.fence
    assert store.release("video:1", token, grant.proof)


def test_a_lock_that_was_handed_over_is_listed_until_its_new_lease_ends(
    use_redis: UseRedis,
) -> None:
    """Not until the end of the lease before."""
    use_redis()
    store: Any = stores["default"]
    lease, token = taken("video:1", ttl=5), new_token()
    asking = store.waiter("video:1", token, 100 * LONG, owner_record())
    assert isinstance(asking.ask(), Refusal)
    assert lease.release()
    ends = store.client.redis.zscore(store.keyspace.index, "video:1") / 1000
    assert ends > time.time() + 99 * LONG
    assert isinstance(asking.leave(), Grant)
    assert locks.clear("video:1")


def test_leases_that_have_ended_by_themselves_leave_the_index_though_nobody_lists(
    use_redis: UseRedis,
) -> None:
    use_redis()
    store: Any = stores["default"]
    redis, index, fences = store.client.redis, store.keyspace.index, store.keyspace.fences
    for number in range(50):
        granted = store.acquire(f"dead:{number}", new_token(), 0.001, owner_record())
        assert isinstance(granted, Grant)

    def trimmed() -> bool:
        taken("video:1").release()
        return not [name for name in redis.zrange(index, 0, -1) if b"dead" in name]

    until(trimmed, "the end of those that are dead")
    assert not [name for name in redis.hkeys(fences) if b"dead" in name]


def test_a_lease_that_ends_while_it_is_cleared_leaves_the_next_one_alone(
    use_redis: UseRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clear reads the record first, to find the token in it. The script compares it again."""
    use_redis()
    store: Any = stores["default"]
    following: list[Any] = []
    lease, read = taken("video:1"), store._value_of

    def read_and_then(*args: Any, **kwargs: Any) -> Any:
        value = read(*args, **kwargs)
        if not following:
            following.append(None)
            assert lease.release()
            following[:] = [taken("video:1")]
        return value

    monkeypatch.setattr(store, "_value_of", read_and_then)
    assert not store.clear("video:1", lease.token)
    monkeypatch.undo()
    assert holder("video:1").token == following[0].token
    assert following[0].release()


def test_a_lease_of_ones_own_that_ends_while_it_is_looked_at_refuses_nothing(
    use_redis: UseRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An acquire is made again with its token, after a reply that was late or lost."""
    use_redis()
    store: Any = stores["default"]
    lease, read = taken("video:1"), store._value_of

    def ends_and_is_read(*args: Any) -> Any:
        monkeypatch.undo()
        assert lease.release()
        return read(*args)

    monkeypatch.setattr(store, "_value_of", ends_and_is_read)
    grant = store.acquire("video:1", lease.token, LONG, {**owner_record(), "ttl": LONG})
    assert isinstance(grant, Grant)
    assert holder("video:1").token == lease.token
    assert (grant.fence or 0) > (lease.fence or 0)
