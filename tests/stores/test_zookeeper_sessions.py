"""What ends with a ZooKeeper session, and what outlives a server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KeeperState

from django_tasklock import LeaseLost, StoreUnavailable, locks
from django_tasklock._values import clock
from django_tasklock.signals import lock_lost
from django_tasklock.stores.zookeeper.link import Link
from tests.agent import Agent
from tests.conftest import ProxyTo, UseCaches, UseZooKeeper
from tests.proxy import CutProxy
from tests.steps import LONG, Meanwhile, holder, sent, taken, waiting
from tests.store_cases import zookeeper_store
from tests.waiting import PATIENCE, until
from tests.zookeepers import ZooKeeper, ensemble

SESSION_SECONDS = 2.0


TwoWays = Callable[[float], CutProxy]


@pytest.fixture
def two_ways(zookeeper_server: ZooKeeper, proxy_to: ProxyTo, use_caches: UseCaches) -> TwoWays:
    """``two_ways(session_seconds)``: a proxy before the store "default".

    The store "direct" has the same locks, without the proxy.
    """

    def begin(session_seconds: float) -> CutProxy:
        proxy = proxy_to(zookeeper_server.port)
        options = {"SESSION_TIMEOUT": session_seconds, "TIMEOUT": 2.0}
        default = zookeeper_store(f"127.0.0.1:{proxy.port}", **options)
        direct = zookeeper_store(zookeeper_server.hosts, SESSION_TIMEOUT=session_seconds)
        direct["KEY_PREFIX"] = default["KEY_PREFIX"]
        use_caches({}, {"default": default, "direct": direct})
        return proxy

    return begin


@pytest.mark.slow
def test_a_lease_is_lost_before_the_server_ends_its_session(two_ways: TwoWays) -> None:
    proxy = two_ways(8.0)
    lease = taken("video:1", renew=True)
    direct = locks.using("direct")
    assert direct.acquire("video:1") is None
    proxy.pause()
    with sent(lock_lost) as lost:
        with pytest.raises(StoreUnavailable):
            lease.extend(LONG)
        assert lease.remaining > 0, "nothing says yet that it is lost"
        next_one = direct.acquire("video:1", ttl=LONG, wait=PATIENCE)
        assert lease.remaining == 0.0
    assert next_one is not None
    assert (next_one.fence or 0) > (lease.fence or 0)
    with pytest.raises(LeaseLost):
        lease.assert_held()
    proxy.resume()
    assert not lease.extend(LONG)
    assert not lease.release()
    assert [each["lease"] for each in lost] == [lease]
    assert next_one.held
    until(lambda: holder("video:1").token == next_one.token)
    assert next_one.release()
    assert taken("video:1").release(), "in a new session"


@pytest.mark.nightly
def test_a_client_that_has_ended_is_replaced(use_zookeeper: UseZooKeeper) -> None:
    """kazoo's thread ends after what it does not expect, such as an answer out of turn."""
    store = use_zookeeper()
    lease = taken("video:1")
    old = store._connection.link()
    old.client.stop()
    assert not lease.held
    assert taken("video:1").release()
    assert old.closed, "its threads would go on"


@pytest.mark.nightly
@pytest.mark.parametrize("end", [Link.close, Link.close_soon])
def test_a_link_that_is_closed_while_it_starts_leaves_no_client(
    zookeeper_server: ZooKeeper, end: Callable[[Link], None]
) -> None:
    """As when the settings change, or the store is dropped, during its first call."""
    made, closed = threading.Event(), threading.Event()

    def new_client() -> KazooClient:
        made.set()
        assert closed.wait(PATIENCE)
        return KazooClient(zookeeper_server.hosts)

    link = Link(new_client)
    worker = Meanwhile(lambda: link.connected(clock.now() + PATIENCE))
    assert made.wait(PATIENCE)
    end(link)
    closed.set()
    with pytest.raises(KazooTimeoutError):
        worker.result()
    until(lambda: link.client.client_state == KeeperState.CLOSED, "the end of the client")


@pytest.mark.slow
def test_a_short_cut_costs_no_lease(two_ways: TwoWays) -> None:
    proxy = two_ways(8.0)
    lease = taken("video:1")
    proxy.refuse()
    assert proxy.cut() >= 1
    with pytest.raises(StoreUnavailable):
        lease.extend(LONG)
    proxy.accept()
    assert until(lambda: _extended(lease))
    time.sleep(9.0)
    assert lease.held
    assert locks.using("direct").acquire("video:1") is None
    assert lease.release()


@pytest.mark.nightly
def test_a_waiter_is_told_of_an_outage(two_ways: TwoWays) -> None:
    proxy = two_ways(PATIENCE)
    lease = taken("video:1")
    waiter = Meanwhile(lambda: taken("video:1", wait=None))
    until(lambda: waiting("video:1") == 1)
    proxy.refuse()
    proxy.cut()
    with pytest.raises(StoreUnavailable):
        waiter.result()
    proxy.accept()
    assert until(lambda: _extended(lease))
    until(lambda: waiting("video:1") == 0)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_process_that_stands_still_for_longer_than_its_session(
    use_zookeeper: UseZooKeeper,
) -> None:
    use_zookeeper(SESSION_TIMEOUT=SESSION_SECONDS)
    with Agent() as stopped:
        stopped.ask("acquire", name="video:1", ttl=LONG)
        stopped.stop()
        lease = taken("video:1", wait=PATIENCE)
        stopped.resume()
        assert stopped.ask("held") is False
        assert stopped.ask("release") is False
        assert lease.release()


@pytest.mark.nightly
@pytest.mark.slow
def test_a_process_that_is_killed_elsewhere_holds_nothing_after_its_session(
    use_zookeeper: UseZooKeeper,
) -> None:
    use_zookeeper(SESSION_TIMEOUT=SESSION_SECONDS, TAKEOVER=False)
    with Agent() as dead:
        dead.ask("acquire", name="video:1", ttl=LONG)
        dead.kill()
        assert locks.acquire("video:1") is None
        assert taken("video:1", wait=PATIENCE).release()


@pytest.mark.nightly
def test_a_process_that_is_killed_here_is_noticed_at_once(use_zookeeper: UseZooKeeper) -> None:
    use_zookeeper(SESSION_TIMEOUT=2 * PATIENCE)
    with Agent() as dead:
        held = dead.ask("acquire", name="video:1", ttl=LONG)
        dead.kill()
        lease = taken("video:1")
        assert (lease.fence or 0) > held["fence"]
        assert lease.release()


@pytest.mark.nightly
@pytest.mark.slow
def test_leases_and_waiters_outlive_a_restart_of_the_server(
    own_zookeeper_server: ZooKeeper, use_zookeeper: UseZooKeeper, proxy_to: ProxyTo
) -> None:
    # A server that starts may accept a connection and never answer on it, and kazoo waits for as
    # long as a session lasts then.
    proxy = proxy_to(own_zookeeper_server.port)
    use_zookeeper(f"127.0.0.1:{proxy.port}", SESSION_TIMEOUT=LONG, TIMEOUT=LONG)
    lease = taken("video:1", ttl=2 * LONG, renew=True)
    waiter = Meanwhile(lambda: taken("video:1", wait=LONG))
    until(lambda: waiting("video:1") == 1)
    proxy.refuse()
    own_zookeeper_server.kill()
    own_zookeeper_server.restart()
    proxy.accept()
    assert lease.extend(LONG)
    assert lease.held
    assert locks.acquire("video:1") is None
    assert lease.release()
    assert (waiter.result().fence or 0) > (lease.fence or 0)


@pytest.mark.nightly
@pytest.mark.parametrize("way", ["pause", "kill"])
def test_a_silent_server_is_an_outage_within_the_timeout(
    own_zookeeper_server: ZooKeeper, use_zookeeper: UseZooKeeper, way: str
) -> None:
    store = use_zookeeper(own_zookeeper_server.hosts, TIMEOUT=2.0)
    lease = taken("video:1")
    getattr(own_zookeeper_server, way)()
    began = time.monotonic()
    for call in (
        lambda: locks.acquire("video:1"),
        lambda: locks.get("video:1"),
        lambda: locks.list(),
        lambda: lease.extend(LONG),
        lambda: store.get_note("note"),
    ):
        with pytest.raises(StoreUnavailable):
            call()
    assert time.monotonic() - began < PATIENCE


@pytest.mark.nightly
@pytest.mark.slow
def test_locks_are_exclusive_while_the_leader_is_killed(use_caches: UseCaches) -> None:
    with ensemble() as servers:
        hosts = ",".join(server.hosts for server in servers)
        use_caches({}, {"default": zookeeper_store(hosts, SESSION_TIMEOUT=8, TIMEOUT=PATIENCE)})
        kept = taken("kept", renew=True)
        inside: list[int] = []
        most: list[int] = []
        fences: list[int] = []
        errors: list[StoreUnavailable] = []

        def work() -> None:
            mine = 0
            while mine < 40:
                try:
                    lease = taken("video:1", wait=None)
                except StoreUnavailable as error:
                    errors.append(error)
                    continue
                inside.append(1)
                most.append(len(inside))
                fences.append(lease.fence or 0)
                inside.pop()
                mine += 1
                assert lease.release()

        threads = [Meanwhile(work) for _ in range(5)]
        until(lambda: len(fences) >= 60)
        (leader,) = [server for server in servers if server.leads]
        leader.kill()
        for thread in threads:
            thread.result(3 * PATIENCE)
        assert max(most) == 1
        assert fences == sorted(set(fences))
        assert len(fences) == 200
        assert errors == []
        assert kept.held
        assert kept.extend(LONG)
        leader.restart()
        assert locks.count() == 1
        assert kept.release()


def _extended(lease: Any) -> bool:
    try:
        return bool(lease.extend(LONG))
    except StoreUnavailable:
        return False
