"""What a hand-over does so that the next holder hears of it as soon as can be."""

from __future__ import annotations

from typing import Any

import pytest

from django_tasklock._compat import redis as redis_compat
from django_tasklock._compat.redis import arrives
from django_tasklock._values.owner import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores import stores
from django_tasklock.stores.base import Grant, Refusal
from tests.conftest import UseRedis
from tests.integration.engine.test_waiting import waiter
from tests.servers import RedisServer
from tests.steps import LONG, taken
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
        monkeypatch.setattr(redis_compat, "pack", None)
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
