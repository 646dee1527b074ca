"""Leases in ZooKeeper outlive connections, sessions and servers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from django_tasklock import StoreUnavailable, locks
from django_tasklock.stores.base import Grant
from django_tasklock.stores.records import FREE, Change
from django_tasklock.stores.zookeeper import ZooKeeperStore
from tests.conftest import ProxyTo, UseCaches
from tests.inside import new_token, owner_record
from tests.proxy import CutProxy
from tests.steps import LONG, Meanwhile, answered, holder, taken, unavailable
from tests.store_cases import zookeeper_store
from tests.waiting import PATIENCE, until
from tests.zookeepers import ZooKeeper, client_of, ensemble, own_zookeeper


@pytest.fixture
def proxy(zookeeper_server: ZooKeeper, proxy_to: ProxyTo, use_caches: UseCaches) -> CutProxy:
    """A proxy before the store "default". The store "direct" has the same locks, without it."""
    proxy = proxy_to(zookeeper_server.port)
    default = zookeeper_store(f"127.0.0.1:{proxy.port}", TIMEOUT=2)
    direct = zookeeper_store(zookeeper_server.hosts) | {"KEY_PREFIX": default["KEY_PREFIX"]}
    use_caches({}, {"default": default, "direct": direct})
    return proxy


def test_a_call_whose_reply_is_lost_is_made_again(proxy: CutProxy) -> None:
    # Given an acquire whose reply is lost, I expect it to be made again with the same token
    store, token, name = locks.store, new_token(), "video:1"
    proxy.drop_reply(token.encode())
    grant = store.acquire([name], token, LONG, owner_record())
    assert isinstance(grant, Grant)
    until(lambda: proxy.lost_replies == 1)
    assert holder(name).fence == grant.fence

    # And an extension
    proxy.drop_reply(token.encode())
    assert store.extend(name, token, 5 * LONG)
    until(lambda: proxy.lost_replies == 2)
    assert (holder(name).ttl or 0) > 4 * LONG

    # And a release, which is known by the change: in that alone is the name of the clock's node
    proxy.drop_reply(b"/%clock")
    assert store.release(name, token), "it was this call that has ended the lease"
    until(lambda: proxy.lost_replies == 3)
    assert not store.release(name, token)


@pytest.mark.slow
def test_a_lease_outlives_the_session_that_took_it(
    proxy: CutProxy, zookeeper_server: ZooKeeper
) -> None:
    lease = taken("video:1")
    store: Any = locks.store
    session = f"{store._link.own().client.client_id[0]:x}"
    assert session in zookeeper_server.command("dump")
    proxy.refuse()
    assert proxy.cut() >= 1
    with pytest.raises(StoreUnavailable):
        lease.extend(LONG)
    until(lambda: session not in zookeeper_server.command("dump"))
    assert locks.using("direct").acquire("video:1") is None
    proxy.accept()
    until(lambda: answered(lambda: lease.extend(LONG)))
    assert lease.release()


@pytest.mark.nightly
@pytest.mark.parametrize("way", ["pause", "kill"])
def test_a_silent_server_is_an_outage_within_the_timeout(
    use_zookeeper: Callable[..., Any], way: str
) -> None:
    with own_zookeeper() as server:
        store = use_zookeeper(server.hosts, TIMEOUT=2.0)
        lease = taken("video:1")
        begin, end = {
            "pause": (server.pause, server.resume), "kill": (server.kill, server.restart),
        }[way]  # fmt: skip
        begin()
        for call in (partial(store.get_note, "note"), locks.list, partial(lease.extend, LONG)):
            began = time.monotonic()
            unavailable(call)
            assert time.monotonic() - began < 2.0 + PATIENCE / 4
        end()
        until(lambda: answered(lambda: lease.extend(LONG)))
        assert lease.release()


@pytest.mark.nightly
def test_a_client_that_has_ended_is_replaced(use_zookeeper: Callable[..., Any]) -> None:
    """kazoo's thread ends after what it does not expect, such as an answer out of turn."""
    store = use_zookeeper(TIMEOUT=1)
    lease = taken("video:1")
    store._link.own().client.stop()
    with pytest.raises(StoreUnavailable):
        lease.extend(LONG)
    assert lease.extend(LONG)
    assert lease.release()


@pytest.mark.nightly
@pytest.mark.slow
def test_a_follower_that_is_behind_says_nothing_that_is_over(
    use_zookeeper: Callable[..., Any],
) -> None:
    """It stood still for a moment. Meanwhile a lock was taken by way of another server; then the
    process that is connected to it asks."""
    with ensemble() as servers:
        leader = next(server for server in servers if server.leads)
        slow = next(server for server in servers if server is not leader)
        here = use_zookeeper(leader.hosts, TIMEOUT=PATIENCE)
        options = {**here.settings.options, "HOSTS": slow.hosts}
        there = ZooKeeperStore(replace(here.settings, options=options))
        with client_of(leader.hosts) as client:
            client.ensure_path("/backlog")
            for attempt in range(5):
                name, token = f"video:{attempt}", new_token()
                assert there.find(name) is None
                slow.pause()
                try:
                    backlog = [client.set_async("/backlog", b"x" * 2000) for _ in range(1000)]
                    assert here.put([Change(name, FREE, {"token": token}, LONG)]).made
                    asked = Meanwhile(partial(there.find, name))
                    for other in backlog:
                        other.get(PATIENCE)
                finally:
                    slow.resume()
                info = asked.result()
                assert info is not None
                assert info.token == token
        there.close_idle()
