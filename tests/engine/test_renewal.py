"""Renewal: a thread for each store extends what asks for it, whatever happens to a call."""

from __future__ import annotations

import gc
import secrets
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import psutil
import pytest

from django_tasklock import Lease, StoreUnavailable, lock, locks, signals
from django_tasklock.stores import stores
from django_tasklock.stores.base import Extension
from django_tasklock.stores.redis import RedisStore
from tests.agent import run_python
from tests.conftest import UseCaches, UseRedis
from tests.greenlets import LIBRARIES, run_in_greenlets
from tests.inside import clock, give_up, kept
from tests.proxy import CutProxy
from tests.servers import RedisServer
from tests.steps import (
    LONG,
    RENEWED,
    Meanwhile,
    Traffic,
    all_of,
    ends,
    renewed,
    sent,
    taken,
)
from tests.store_cases import redis_cache
from tests.waiting import PATIENCE, until


@pytest.fixture(autouse=True)
def on_redis(use_redis: UseRedis) -> None:
    use_redis()


class TestThread:
    def test_one_thread_renews_a_thousand_leases_in_few_round_trips(
        self, own_redis_server: RedisServer, use_redis: UseRedis
    ) -> None:
        use_redis(own_redis_server.url)
        before = psutil.Process().num_threads()
        leases = [taken(f"video:{number}", ttl=9, renew=True) for number in range(1000)]
        assert psutil.Process().num_threads() <= before + 1
        traffic = Traffic(own_redis_server)
        firsts = [ends(lease) + 0.1 for lease in leases]
        until(
            lambda: all(ends(lease) > first for lease, first in zip(leases, firsts, strict=True)),
            "renewal of all of them",
        )
        assert 2 <= traffic.scripts() <= 25
        assert all(lease.held for lease in leases)
        assert locks.count() == 1000

    def test_lease_that_nobody_refers_to_is_not_renewed(self) -> None:
        lease: Lease | None = taken("video:1", ttl=RENEWED, renew=True)
        assert lease is not None
        renewed(lease)
        lease = None
        gc.collect()
        until(lambda: not locks.is_locked("video:1"), "the end of the lease")

    def test_lease_of_an_ended_thread_is_renewed(self) -> None:
        lease = Meanwhile(lambda: taken("video:1", ttl=RENEWED, renew=True)).result()
        renewed(lease, 2)
        # It goes on as long as the last extension.
        assert lease.extend(2 * RENEWED)
        renewed(lease)
        assert lease.remaining > RENEWED
        assert lease.ttl == 2 * RENEWED
        assert lease.release()

    def test_thread_that_could_not_be_started_is_started_later(self) -> None:
        program = (
            "import threading\n"
            "from django_tasklock import locks\n"
            "from tests.steps import renewed\n"
            "usual = threading.stack_size(1 << 46)\n"
            "try:\n"
            "    locks.acquire('video:1', ttl=60, renew=True)\n"
            "except RuntimeError:\n"
            "    print('no thread')\n"
            "threading.stack_size(usual)\n"
            f"lease = locks.acquire('video:2', ttl={RENEWED}, renew=True)\n"
            "renewed(lease)\n"
            "print(locks.is_locked('video:1'))\n"
        )
        assert run_python(program).split("\n")[:2] == ["no thread", "False"]


class TestOutage:
    @pytest.fixture(autouse=True)
    def through_a_proxy(self, use_redis: UseRedis, cut_proxy: CutProxy) -> None:
        use_redis(cut_proxy.url, SOCKET_TIMEOUT=0.5, SOCKET_CONNECT_TIMEOUT=0.5)

    @pytest.mark.parametrize("how", ["silent", "refusing"])
    def test_outage_shorter_than_the_lease_is_survived(self, cut_proxy: CutProxy, how: str) -> None:
        with sent(signals.lock_lost) as lost:
            lease = taken("video:1", ttl=6, renew=True)
            if how == "silent":
                cut_proxy.pause()
            else:
                cut_proxy.refuse()
                cut_proxy.cut()
            until(lambda: lease.remaining < 3, "renewals that came to nothing")
            cut_proxy.accept()
            cut_proxy.resume()
            renewed(lease)
        assert lease not in [told["lease"] for told in lost]
        assert lease.release()

    def test_a_lease_that_was_cleared_is_lost_at_the_next_renewal(self) -> None:
        """Not only at its end, until which its body would go on."""
        with sent(signals.lock_lost) as lost:
            lease = taken("video:1", ttl=RENEWED, renew=True)
            assert stores["default"].clear("video:1")
            until(lambda: [told for told in lost if told["lease"] is lease], "the loss")
        (told,) = [told for told in lost if told["lease"] is lease]
        assert (told["reason"], told["cause"]) == ("the store no longer has it", "gone")
        assert not lease.held

    def test_outage_longer_than_the_lease_is_a_loss(self, cut_proxy: CutProxy) -> None:
        """It is told without anybody asking, once, and it stays lost."""
        with sent(signals.lock_lost) as lost:
            lease = taken("video:1", ttl=0.6, renew=True)
            cut_proxy.pause()
            over = ends(lease)
            until(lambda: [told for told in lost if told["lease"] is lease], "the loss")
            assert clock.now() >= over
            cut_proxy.resume()
            renewed(taken("video:2", ttl=RENEWED, renew=True), 2)
        assert [told["lease"] for told in lost].count(lease) == 1
        assert (lease.held, lease.extend(), lease.release()) == (False, False, False)

    def test_lease_whose_release_failed_is_released_later(self, cut_proxy: CutProxy) -> None:
        """Though somebody still refers to it, it is neither held nor renewed."""
        lease = taken("video:1", ttl=LONG, renew=True)
        with sent(signals.lock_released) as released:
            cut_proxy.refuse()
            cut_proxy.cut()
            with pytest.raises(StoreUnavailable):
                lease.release()
            assert not lease.held
            cut_proxy.accept()
            until(lambda: not locks.is_locked("video:1"))
            until(lambda: [told["lease"] for told in released] == [lease], "the signal")
        assert (lease.held, lease.extend()) == (False, False)

    def test_lease_that_may_have_been_made_shorter_is_renewed_in_time(
        self, cut_proxy: CutProxy
    ) -> None:
        lease = taken("video:1", ttl=LONG, renew=True)
        cut_proxy.pause()
        shorter = 10.0  # A machine that stands still for a while must not end the lease.
        with pytest.raises(StoreUnavailable):
            lease.extend(shorter)
        assert lease.remaining <= shorter
        cut_proxy.resume()
        until(lambda: lease.remaining > shorter, "an extension by the ttl before")


class TestStores:
    """No store's leases wait for another store."""

    @pytest.fixture(autouse=True)
    def two_servers(
        self, use_caches: UseCaches, redis_server: RedisServer, own_redis_server: RedisServer
    ) -> Iterator[None]:
        use_caches(
            {"default": redis_cache(redis_server.url), "b": redis_cache(own_redis_server.url)},
            {"default": {}, "stopped": {"CACHE": "b"}},
        )
        yield
        own_redis_server.resume()

    def test_store_that_hangs_keeps_no_other_from_renewal_nor_from_a_release(
        self, own_redis_server: RedisServer
    ) -> None:
        held_up = locks.using("stopped").acquire("video:1", ttl=3, renew=True)
        assert held_up is not None
        lease, other = taken("video:1", ttl=2, renew=True), taken("video:2")
        own_redis_server.pause()
        until(lambda: held_up.remaining < 1.8, "an extension that hangs")
        give_up(other)
        until(lambda: not locks.is_locked("video:2"))
        renewed(lease, 3)
        assert lease.release()


class Faulty(RedisStore):
    """A store with a mistake of its own."""

    fault: BaseException | None = None
    says_too_little = False

    def extend_many(self, batch: Sequence[Extension]) -> list[bool]:
        if Faulty.fault is not None:
            raise Faulty.fault
        return [] if Faulty.says_too_little else super().extend_many(batch)


class TestMistakes:
    @pytest.mark.parametrize("fault", [None, OSError("the disk is gone"), SystemExit()], ids=repr)
    def test_mistake_of_a_store_is_logged_once_and_does_not_end_the_thread(
        self,
        use_redis: UseRedis,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        fault: BaseException | None,
    ) -> None:
        """Without it nothing but "its ttl ran out" would say why the lease is lost."""
        use_redis(tasklock={"BACKEND": f"{__name__}.Faulty"})
        with monkeypatch.context() as mistake:
            mistake.setattr(Faulty, "fault", fault)
            mistake.setattr(Faulty, "says_too_little", True)
            lease = taken("video:1", ttl=3, renew=True)
            until(lambda: lease.remaining < 1.7, "renewals that came to nothing")
        renewed(lease, 2)
        said = [record for record in caplog.records if record.exc_info]
        assert [(each.getMessage(), (each.exc_info or (None, None))[1]) for each in said] == [
            ("the lock store default could not extend its leases", fault)
        ] * (fault is not None)


PATCHED = """
import threading, time
from django_tasklock import lock, locks

def compute(seconds):
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        sum(range(1000))

def others():
    while True:
        lease = locks.acquire("video:2", ttl=60, wait=None)
        sleep(0)
        lease.release()
        sleep(0)

for _ in range(3):
    spawn(others)
with lock("video:1", ttl=3) as lease:
    compute(4)
    sleep(0.01)
    compute(1)
    lease.assert_held()
print("held")
waited = locks.acquire("video:3", ttl=0.5)
assert locks.acquire("video:3", wait=60), "a greenlet waits for the end of a lease"
print("waited")
"""


@pytest.mark.parametrize("library", LIBRARIES)
def test_greenlet_that_computes_keeps_its_lease(library: str) -> None:
    assert run_in_greenlets(PATCHED, library) == ["held", "waited"]


def test_a_renewal_that_a_release_has_overtaken_writes_nothing(
    on_locmem: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain cache compares and writes in two steps; the release comes between them."""
    store: Any = stores["default"]
    lease, write = taken("video:1"), store._write
    compared, go_on = threading.Event(), threading.Event()

    def slow_write(*arguments: Any) -> None:
        compared.set()
        assert go_on.wait(PATIENCE)
        write(*arguments)

    monkeypatch.setattr(store, "_write", slow_write)
    renewing = Meanwhile(lease.extend)
    assert compared.wait(PATIENCE)
    releasing = Meanwhile(lease.release)
    releasing.join(0.2)
    go_on.set()
    renewing.result()
    assert releasing.result()
    assert not locks.is_locked("video:1")


@pytest.mark.parametrize("renew", [False, True])
def test_locks_that_are_taken_and_given_back_leave_nothing(
    redis_server: RedisServer, use_redis: UseRedis, renew: bool
) -> None:
    """No thread, no file and no connection more than the first few needed, and no entry."""
    client = secrets.token_hex(6)
    use_redis(f"{redis_server.url}?client_name={client}")
    process = psutil.Process()

    def churn(times: int) -> None:
        for turn in range(times):
            lease = taken(f"video:{turn % 7}", ttl=RENEWED, renew=renew)
            assert lease.release()
            with lock(f"video:{turn % 7}", ttl=RENEWED, renew=renew):
                pass

    def left() -> tuple[int, int, int, int]:
        gc.collect()
        admin: Any = stores["default"].client.redis  # type: ignore[attr-defined]
        connected = [each for each in admin.client_list() if each["name"] == client]
        return threading.active_count(), process.num_fds(), len(connected), kept()

    all_of(*[lambda: locks.is_locked("video:1")] * 4)  # As many connections as there are calls.
    churn(20)
    at_first = left()
    churn(300)
    # A thread that is about to end, or a history that is being written, is no leak.
    until(lambda: all(now <= then for now, then in zip(left(), at_first, strict=True)))
