"""A Redis that may not take more memory (`maxmemory`, noeviction): what was held goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.core.management import call_command

from django_tasklock import StoreUnavailable, locks
from django_tasklock.stores import stores
from tests.conftest import UseRedis
from tests.pages import found
from tests.servers import RedisServer
from tests.steps import LONG, SOON_SECONDS, holder, taken, waiter
from tests.waiting import until

Fill = Callable[[], None]


@pytest.fixture
def admin(own_redis_server: RedisServer) -> Any:
    return redis.Redis.from_url(own_redis_server.url)


@pytest.fixture
def fill(use_redis: UseRedis, own_redis_server: RedisServer, admin: Any) -> Fill:
    """Locks are on a server that is full once this is called."""
    use_redis(own_redis_server.url)

    def full() -> None:
        admin.config_set("maxmemory-policy", "noeviction")
        admin.config_set("maxmemory", 1)

    return full


def test_39_what_is_held_is_extended_renewed_and_released(fill: Fill) -> None:
    lease, renewed, cools = taken("a"), taken("b", ttl=1.0, renew=True), taken("c")
    fill()
    ends = renewed._own.until
    until(lambda: renewed._own.until > ends, "renewed")
    assert lease.extend(LONG)
    assert locks.adopt(cools.detach()) is not None
    assert lease.release()
    assert renewed.release()
    assert not locks.is_locked("a")


@pytest.mark.parametrize("how", ["released", "cleared", "cleared with others"])
def test_39_the_next_waiter_gets_the_lock(fill: Fill, admin: Any, how: str) -> None:
    lease = taken("video")
    thread = waiter("video", 1)
    fill()
    if how == "released":
        assert lease.release()
    elif how == "cleared":
        assert locks.clear("video", lease.token)
    else:
        call_command("locks", "clear", "--all", "--noinput")
    assert thread.result(SOON_SECONDS).release()
    with pytest.raises(StoreUnavailable, match="is full: raise its maxmemory"):
        locks.hold("video", 60)
    admin.config_set("maxmemory", 0)
    assert taken("a").release()


def test_39_the_checks_say_so(fill: Fill) -> None:
    assert found(deploy=True) == []
    fill()
    (message,) = found(deploy=True)
    assert message.id == "django_tasklock.write"
    assert "the server is full: raise its maxmemory" in message.msg


def test_the_checks_leave_nothing(fill: Fill, admin: Any) -> None:
    taken("video")
    before, connected = sorted(admin.keys()), admin.info("clients")["connected_clients"]
    assert list(stores["default"].check()) == []
    assert sorted(admin.keys()) == before
    until(lambda: admin.info("clients")["connected_clients"] <= connected, "the connection's end")
    assert holder("video").token
