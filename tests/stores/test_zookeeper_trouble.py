"""`ZooKeeperStore` beside servers that lag, and where no thread can be started for a moment."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from django_tasklock import StoreUnavailable
from django_tasklock._values.owner import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores.base import Grant
from django_tasklock.stores.zookeeper import ZooKeeperStore
from django_tasklock.stores.zookeeper import link as link_module
from django_tasklock.stores.zookeeper.requests import Requests
from tests.conftest import ProxyTo, UseZooKeeper
from tests.steps import LONG, Meanwhile, no_thread_once, taken
from tests.waiting import PATIENCE
from tests.zookeepers import ZooKeeper, client_of, ensemble

pytestmark = pytest.mark.nightly


def test_an_acquire_that_is_made_again_on_a_server_that_lags_leaves_one_node(
    use_zookeeper: UseZooKeeper,
    zookeeper_server: ZooKeeper,
    proxy_to: ProxyTo,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proxy = proxy_to(zookeeper_server.port)
    store = use_zookeeper(f"127.0.0.1:{proxy.port}")
    taken("video:1", ttl=LONG).release()
    token = new_token()
    # The create is carried out, its reply is lost.
    proxy.drop_reply(token.encode())
    real = Requests.children_if_any

    def children(self: Requests, lock: str) -> list[str]:
        self.client.sync_async(lock)
        return real(self, lock) or []

    def of_a_server_that_lags(self: Requests, lock: str) -> list[str] | None:
        # The client is on another server now, which has not heard of that create yet; nobody has
        # asked it to catch up.
        return [] if self.again else real(self, lock)

    with monkeypatch.context() as lagging:
        lagging.setattr(Requests, "children", children)
        lagging.setattr(Requests, "children_if_any", of_a_server_that_lags)
        answer = store.acquire("video:1", token, LONG, owner_record())
    assert proxy.lost_replies == 1
    assert isinstance(answer, Grant)
    assert store.release("video:1", token) is True
    assert store.get("video:1") is None, "nobody holds it, and it is not free"


def test_a_thread_that_could_not_be_started_once_is_started_later(
    use_zookeeper: UseZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = use_zookeeper(SESSION_TIMEOUT=2)
    failed = no_thread_once(monkeypatch, link_module)
    with pytest.raises(StoreUnavailable, match="can't start new thread"):
        store.count()
    assert failed
    time.sleep(3)
    lease = taken("video:1", ttl=LONG)
    assert lease.held, "each lease of this process is lost at once"
    lease.release()


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["unreserve", "reserve", "held"])
def test_a_follower_that_stood_still_for_a_moment(use_zookeeper: UseZooKeeper, verb: str) -> None:
    """A real ensemble. A follower pauses for a second (a garbage collection); meanwhile a
    reservation is made, or ended, by way of another server; then the worker that is connected to
    that follower ends it, or reserves. Or a lock is taken, and somebody asks whether it is held."""
    with ensemble() as servers:
        leader = next(server for server in servers if server.leads)
        _, slow = (server for server in servers if server is not leader)
        here = use_zookeeper(leader.hosts)
        options = {**here.settings.options, "HOSTS": slow.hosts}
        there = ZooKeeperStore(replace(here.settings, options=options))
        with client_of(leader.hosts) as client:
            client.ensure_path("/backlog")
            wrong = 0
            rights = {"reserve": None, "unreserve": True}
            for attempt in range(10):
                key = f"queued {attempt}"
                if verb == "reserve":
                    assert here.reserve(key, "first", LONG) is None
                there.get_note(key)
                slow.pause()
                try:
                    others = [client.set_async("/backlog", b"x" * 2000) for _ in range(1500)]
                    if verb == "reserve":
                        assert here.unreserve(key, "first") is True
                        ask: Any = partial(there.reserve, key, "second", LONG)
                    elif verb == "unreserve":
                        assert here.reserve(key, "first", LONG) is None
                        ask = partial(there.unreserve, key, "first")
                    else:
                        token = new_token()
                        assert isinstance(here.acquire(key, token, LONG, owner_record()), Grant)
                        ask = partial(there.held, [key])
                    asked = Meanwhile(ask)
                    time.sleep(0.2)
                    for other in others:
                        other.get(PATIENCE)
                finally:
                    slow.resume()
                wrong += asked.result() != rights.get(verb, {key})
            there.close_idle()
        assert wrong == 0, f"{wrong} of 10"
