"""Renewal: a thread for each store extends what asks for it, whatever happens to a call."""

from __future__ import annotations

import gc
import re
import secrets
import threading
import warnings
from collections.abc import Sequence
from typing import Any, cast

import psutil
import pytest

from django_tasklock import StoreUnavailable, lock, locks, signals
from django_tasklock.stores import stores
from django_tasklock.stores.base import Extension
from tests.conftest import UseCaches, UseRedis
from tests.inside import clock, extend_one_by_one, give_up, kept, no_thread_once
from tests.proxy import CutProxy
from tests.servers import RedisServer
from tests.steps import (
    LONG,
    RENEWED,
    Meanwhile,
    Traffic,
    all_of,
    ends,
    holder,
    renewed,
    sent,
    taken,
)
from tests.store_cases import redis_cache
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.usefixtures("on_redis")


@pytest.fixture
def proxy(use_redis: UseRedis, cut_proxy: CutProxy) -> CutProxy:
    use_redis(cut_proxy.url, SOCKET_TIMEOUT=0.5, SOCKET_CONNECT_TIMEOUT=0.5)
    return cut_proxy


def test_a_lease_that_was_dropped_and_not_released_is_a_resource_warning() -> None:
    """As of a file that nobody has closed. One that is not renewed may be meant to run out."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for name, renew in (("runs:out", False), ("leaked", True)):
            taken(name, ttl=LONG, renew=renew)
        gc.collect()
        until(lambda: any("leaked" in str(each.message) for each in seen), "a warning")
        with lock("held"):
            pass
    # Not those of sockets that other tests have left to be collected.
    (warning,) = (each for each in seen if "lease on" in str(each.message))
    assert warning.category is ResourceWarning
    assert "the lease on leaked was not released" in str(warning.message)


class TestThread:
    def test_one_thread_renews_a_thousand_leases_in_few_round_trips(
        self, own_redis_server: RedisServer, use_redis: UseRedis
    ) -> None:
        # Given a process that holds a thousand leases
        use_redis(own_redis_server.url)
        before = psutil.Process().num_threads()
        leases = [taken(f"video:{number}", ttl=9, renew=True) for number in range(1000)]
        assert psutil.Process().num_threads() <= before + 1
        # I expect all to be extended, by one thread and in few calls
        traffic, now = Traffic(own_redis_server), clock.now()
        until(lambda: all(ends(lease) > now + 9 for lease in leases), "renewal of all of them")
        assert 2 <= traffic.scripts() <= 25
        assert locks.count() == 1000

    def test_lease_of_an_ended_thread_is_renewed(self) -> None:
        lease = Meanwhile(lambda: taken("video:1", ttl=RENEWED, renew=True)).result()
        renewed(lease, 2)
        assert lease.extend(2 * RENEWED)
        renewed(lease)
        assert lease.remaining > RENEWED
        # Until nobody refers to it: then its end is put off no more.
        assert lease.extend(1.0)
        del lease
        gc.collect()
        until(lambda: not locks.is_locked("video:1"), "the end of the lease")

    def test_thread_that_could_not_be_started_is_started_later(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        no_thread_once(monkeypatch)
        with pytest.raises(StoreUnavailable, match="no renewal: can't start new thread"):
            taken("video:1", renew=True)
        renewed(taken("video:2", ttl=RENEWED, renew=True))
        assert not locks.is_locked("video:1")

    @pytest.mark.parametrize("renew", [False, True])
    def test_locks_that_are_taken_and_given_back_leave_nothing(
        self, redis_server: RedisServer, use_redis: UseRedis, renew: bool
    ) -> None:
        """No thread, no file and no connection more than the first few needed, and no entry."""
        client = secrets.token_hex(6)
        use_redis(f"{redis_server.url}?client_name={client}")
        process, store = psutil.Process(), cast("Any", stores["default"])

        def churn(times: int) -> None:
            for turn in range(times):
                assert taken(f"video:{turn % 7}", ttl=RENEWED, renew=renew).release()
                with lock(f"video:{turn % 7}", ttl=RENEWED, renew=renew):
                    pass

        def left() -> tuple[int, ...]:
            gc.collect()
            clients = store.client.command("CLIENT", "LIST").decode()
            connected = re.findall(f"name={client}", clients)
            return threading.active_count(), process.num_fds(), len(connected), kept()

        all_of(*[lambda: locks.is_locked("video:1")] * 4)  # As many connections as calls.
        churn(20)
        at_first = left()
        churn(300)
        # A thread that is about to end, or a history that is being written, is no leak.
        until(lambda: all(now <= then for now, then in zip(left(), at_first, strict=True)))


class TestOutage:
    @pytest.mark.parametrize("silent", [True, False])
    def test_outage_shorter_than_the_lease_is_survived(self, proxy: CutProxy, silent: bool) -> None:
        lease = taken("video:1", ttl=6, renew=True)
        for begin in [proxy.pause] if silent else [proxy.refuse, proxy.cut]:
            begin()
        until(lambda: lease.remaining < 3, "renewals that came to nothing")
        proxy.accept()
        proxy.resume()
        renewed(lease)

    def test_outage_longer_than_the_lease_is_a_loss(self, proxy: CutProxy) -> None:
        """It is told without anybody asking, once, and it stays lost."""
        with sent(signals.lock_lost) as lost:
            lease = taken("video:1", ttl=0.6, renew=True)
            proxy.pause()
            over = ends(lease)
            until(lambda: lost, "the loss")
            assert clock.now() >= over
            proxy.resume()
            renewed(taken("video:2", ttl=RENEWED, renew=True), 2)
        assert [told["lease"] for told in lost] == [lease]
        assert (lease.held, lease.extend(), lease.release()) == (False, False, False)

    def test_lease_that_may_be_shorter_now_is_renewed_in_time(self, proxy: CutProxy) -> None:
        lease, shorter = taken("video:1", ttl=LONG, renew=True), 10.0
        proxy.pause()
        with pytest.raises(StoreUnavailable):
            lease.extend(shorter)
        assert lease.remaining <= shorter
        proxy.resume()
        until(lambda: lease.remaining > shorter, "an extension by the ttl before")


def test_a_store_that_hangs_keeps_no_other_from_renewal_nor_from_a_release(
    redis_server: RedisServer, own_redis_server: RedisServer, use_caches: UseCaches
) -> None:
    caches = {"default": redis_cache(redis_server.url), "b": redis_cache(own_redis_server.url)}
    use_caches(caches, {"default": {}, "stopped": {"CACHE": "b"}})
    held_up = locks.using("stopped").acquire("video:1", ttl=3, renew=True)
    assert held_up is not None
    lease, other = taken("video:1", ttl=2, renew=True), taken("video:2")
    own_redis_server.pause()
    until(lambda: held_up.remaining < 1.8, "an extension that hangs")
    give_up(other)
    until(lambda: not locks.is_locked("video:2"))
    renewed(lease, 3)
    own_redis_server.resume()


def test_a_lease_that_is_detached_while_others_are_extended_keeps_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was due as well, and is in the next call."""
    leases = [taken(f"video:{number}", ttl=3, renew=True) for number in range(2)]
    calls, extend, detached = list[int](), stores["default"].extend_many, list[str]()

    def extend_many(batch: Sequence[Extension]) -> Sequence[bool | None]:
        calls.append(len(batch))
        if not detached:
            (other,) = (lease for lease in leases if lease.name != batch[0].name)
            other.detach(ttl=LONG)
            detached.append(other.name)
        return extend(batch)

    extend_one_by_one(monkeypatch)
    monkeypatch.setattr(stores["default"], "extend_many", extend_many)
    until(lambda: len(calls) > 1)
    assert (holder(detached[0]).ttl or 0.0) > LONG / 2


@pytest.mark.parametrize("fault", [None, OSError("the disk is gone"), SystemExit()], ids=repr)
def test_mistake_of_a_store_is_logged_once_and_does_not_end_the_thread(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: BaseException | None
) -> None:
    """Without it nothing but "its ttl ran out" would say why the lease is lost."""

    def mistaken(batch: Sequence[Extension]) -> list[bool]:
        if fault is not None:
            raise fault
        return []

    with monkeypatch.context() as mistake:
        mistake.setattr(stores["default"], "extend_many", mistaken)
        lease = taken("video:1", ttl=3, renew=True)
        until(lambda: lease.remaining < 1.7, "renewals that came to nothing")
    renewed(lease, 2)
    said = [(each.getMessage(), each.exc_info[1]) for each in caplog.records if each.exc_info]
    words = "the lock store default could not extend its leases"
    assert said == [(words, fault)] * (fault is not None)


def test_a_renewal_that_a_release_has_overtaken_writes_nothing(
    on_locmem: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain cache compares and writes in two steps; the release comes between them."""
    store: Any = stores["default"]
    lease, write = taken("video:1"), store._write
    compared, go_on = threading.Event(), threading.Event()

    def slow_write(*args: Any, **kwargs: Any) -> Any:
        compared.set()
        assert go_on.wait(PATIENCE)
        return write(*args, **kwargs)

    monkeypatch.setattr(store, "_write", slow_write)
    renewing = Meanwhile(lease.extend)
    assert compared.wait(PATIENCE)
    releasing = Meanwhile(lease.release)
    releasing.join(0.2)
    go_on.set()
    renewing.result()
    assert (releasing.result(), locks.is_locked("video:1")) == (True, False)
