"""Renewal: a thread for each store extends what asks for it, whatever happens to a call."""

from __future__ import annotations

import gc
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psutil
import pytest
from django.db import connections

from django_tasklock import Lease, StoreUnavailable, lock, locks, signals
from django_tasklock._compat.native_threads import new_lock
from django_tasklock._engine import renewal_thread
from django_tasklock._engine.renewal import renewal
from django_tasklock._engine.store_renewal import StoreRenewal
from django_tasklock._values import clock
from django_tasklock.stores import stores
from django_tasklock.stores.base import Extension
from django_tasklock.stores.redis import RedisStore
from tests.agent import run_python
from tests.conftest import UseCaches, UseRedis
from tests.greenlets import LIBRARIES, run_in_greenlets
from tests.proxy import CutProxy
from tests.servers import RedisServer
from tests.steps import LONG, RENEWED, Meanwhile, Traffic, holder, in_child, sent, taken
from tests.store_cases import redis_cache
from tests.waiting import PATIENCE, until


@pytest.fixture(autouse=True)
def on_redis(use_redis: UseRedis) -> None:
    use_redis()


def renewed(lease: Lease, times: int = 1) -> None:
    """Wait until the lease was extended so often."""
    for _ in range(times):
        before = lease._deadline
        until(lambda: lease._deadline > before, "an extension")  # noqa: B023


@pytest.mark.django_db(transaction=True)
def test_a_thread_whose_store_is_gone_has_closed_what_it_opened() -> None:
    """Also if the store goes before the thread would have slept."""
    opened: list[Any] = []

    class Own:
        def work(self) -> float:
            opened.append(connections["default"])
            opened[0].ensure_connection()
            return 0.0

        def entries(self) -> list[Any]:
            return []

    def runs() -> bool:
        turns: list[Any] = [Own(), None]
        renewal_thread.run(lambda: turns.pop(0), new_lock(), new_lock())
        return bool(opened[0].connection is None)

    assert Meanwhile(runs).result()


class TestThread:
    def test_one_thread_renews_a_thousand_leases_in_few_round_trips(
        self, own_redis_server: RedisServer, use_redis: UseRedis
    ) -> None:
        use_redis(own_redis_server.url)
        before = psutil.Process().num_threads()
        leases = [taken(f"video:{number}", ttl=9, renew=True) for number in range(1000)]
        assert psutil.Process().num_threads() <= before + 1
        traffic = Traffic(own_redis_server)
        firsts = [lease._deadline for lease in leases]
        until(
            lambda: all(
                lease._deadline > first for lease, first in zip(leases, firsts, strict=True)
            ),
            "renewal of all of them",
        )
        assert 2 <= traffic.scripts() <= 25
        assert all(lease.held for lease in leases)
        assert locks.count() == 1000

    def test_released_leases_are_not_kept(self) -> None:
        for number in range(3000):
            taken(f"video:{number}", ttl=3600, renew=True).release()
        # Of this store alone: those of other tests' stores leave when they come due.
        assert len(renewal.of(stores["default"]).entries()) < 2500

    def test_released_leases_do_not_wake_the_thread_one_by_one(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each would have been due at a moment of its own."""
        turns: list[float] = []
        work = StoreRenewal.work

        def counted(of: StoreRenewal) -> float:
            turns.append(clock.now())
            return work(of)

        monkeypatch.setattr(StoreRenewal, "work", counted)
        for number in range(300):
            taken(f"video:{number}", ttl=3, renew=True).release()
        held = taken("video:held", ttl=3, renew=True)
        own = renewal.of(stores["default"])
        until(lambda: len(own.entries()) == 1, "the end of what was planned for the others")
        assert len(turns) < 100
        renewed(held)
        assert held.release()

    def test_lease_that_nobody_refers_to_is_not_renewed(self) -> None:
        lease: Lease | None = taken("video:1", ttl=RENEWED, renew=True)
        assert lease is not None
        renewed(lease)
        lease = None
        gc.collect()
        until(lambda: not locks.is_locked("video:1"), "the end of the lease")

    def test_lease_of_an_ended_thread_is_renewed(self) -> None:
        leases: list[Lease] = []
        thread = threading.Thread(target=lambda: leases.append(taken("a", ttl=RENEWED, renew=True)))
        thread.start()
        thread.join()
        renewed(leases[0], 2)
        assert leases[0].release()

    def test_it_goes_on_as_long_as_the_last_extension(self) -> None:
        lease = taken("video:1", ttl=RENEWED, renew=True)
        assert lease.extend(2 * RENEWED)
        renewed(lease)
        assert lease.remaining > RENEWED
        assert lease.ttl == 2 * RENEWED

    def test_thread_that_could_not_be_started_is_started_later(self) -> None:
        program = (
            "import threading, time\n"
            "from django_tasklock import locks\n"
            "locks.acquire('video:1', ttl=60).release()\n"
            "usual = threading.stack_size(1 << 46)\n"
            "try:\n"
            "    locks.acquire('video:1', ttl=60, renew=True)\n"
            "except RuntimeError:\n"
            "    print('no thread')\n"
            "threading.stack_size(usual)\n"
            f"lease = locks.acquire('video:2', ttl={RENEWED}, renew=True)\n"
            "ends = lease._deadline\n"
            "while lease.held and lease._deadline == ends:\n"
            "    time.sleep(0.01)\n"
            "print(lease.held, locks.is_locked('video:1'))\n"
        )
        assert run_python(program).split("\n")[:2] == ["no thread", "True False"]


class TestOutage:
    @pytest.fixture(autouse=True)
    def through_a_proxy(self, use_redis: UseRedis, cut_proxy: CutProxy) -> None:
        use_redis(cut_proxy.url, SOCKET_TIMEOUT=0.5, SOCKET_CONNECT_TIMEOUT=0.5)

    def test_outage_shorter_than_the_lease_is_survived(self, cut_proxy: CutProxy) -> None:
        with sent(signals.lock_lost) as lost:
            lease = taken("video:1", ttl=6, renew=True)
            cut_proxy.pause()
            until(lambda: lease.remaining < 3, "renewals that came to nothing")
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
            ends = lease._deadline
            until(lambda: [told for told in lost if told["lease"] is lease], "the loss")
            assert clock.now() >= ends
            cut_proxy.resume()
            other = taken("video:2", ttl=RENEWED, renew=True)
            renewed(other, 2)
        assert [told["lease"] for told in lost].count(lease) == 1
        assert (lease.held, lease.extend(), lease.release()) == (False, False, False)

    def test_refused_connections_are_survived(self, cut_proxy: CutProxy) -> None:
        lease = taken("video:1", ttl=6, renew=True)
        renewed(lease)
        cut_proxy.refuse()
        cut_proxy.cut()
        until(lambda: lease.remaining < 3)
        cut_proxy.accept()
        renewed(lease, 2)

    def test_lost_reply_does_not_end_it(self, cut_proxy: CutProxy) -> None:
        lease = taken("video:1", ttl=RENEWED, renew=True)
        for turn in range(1, 4):
            cut_proxy.drop_reply(b"EVAL")
            cut_proxy.wait_lost(turn)
            renewed(lease)
        assert lease.held

    def test_lease_whose_release_failed_is_not_renewed(self, cut_proxy: CutProxy) -> None:
        """Though somebody still refers to it."""
        lease = taken("video:1", ttl=1.5, renew=True)
        cut_proxy.refuse()
        cut_proxy.cut()
        with pytest.raises(StoreUnavailable):
            lease.release()
        ends = lease._deadline
        cut_proxy.accept()
        until(lambda: clock.now() >= ends)
        assert lease.held is False
        until(lambda: not locks.is_locked("video:1"))

    def test_release_that_failed_may_be_tried_again(self, cut_proxy: CutProxy) -> None:
        lease = taken("video:1", ttl=LONG, renew=True)
        cut_proxy.refuse()
        cut_proxy.cut()
        with pytest.raises(StoreUnavailable):
            lease.release()
        assert not lease.held
        cut_proxy.accept()
        assert lease.release() is True
        assert not locks.is_locked("video:1")


class TestShorter:
    """A lease is extended in time for the end that it was given last."""

    def test_lease_that_was_made_shorter_is_renewed_in_time(self) -> None:
        lease = taken("video:1", ttl=LONG, renew=True)
        assert lease.extend(RENEWED)
        assert lease.remaining <= RENEWED
        renewed(lease, 3)
        assert lease.held
        assert lease.release()

    def test_lease_that_was_made_shorter_during_an_extension(
        self, use_redis: UseRedis, cut_proxy: CutProxy
    ) -> None:
        """By the renewal's own, whose longer end was not heard of when the caller's was."""
        use_redis(cut_proxy.url)
        lease = taken("video:1", ttl=12, renew=True)
        cut_proxy.pause()
        first = lease._deadline
        until(lambda: lease._calls == 1, "an extension without a reply yet")
        call = Meanwhile(lambda: lease.extend(4.5))
        until(lambda: lease._calls == 2)
        cut_proxy.resume()
        assert call.result() is True
        assert lease._deadline < first
        renewed(lease, 3)
        assert lease.release()

    def test_lease_that_may_have_been_made_shorter_is_renewed_in_time(
        self, use_redis: UseRedis, cut_proxy: CutProxy
    ) -> None:
        use_redis(cut_proxy.url, SOCKET_TIMEOUT=0.5)
        lease = taken("video:1", ttl=LONG, renew=True)
        cut_proxy.pause()
        shorter = 10.0  # A machine that stands still for a while must not end the lease.
        with pytest.raises(StoreUnavailable):
            lease.extend(shorter)
        assert lease.remaining <= shorter
        cut_proxy.resume()
        until(lambda: lease.remaining > shorter, "an extension by the ttl before")

    def test_many_extensions_leave_no_more_entries(self) -> None:
        lease = taken("video:1", ttl=LONG, renew=True)
        for number in range(4000):
            assert lease.extend(LONG - number / 200)
        until(lambda: len(renewal.of(stores["default"]).entries()) < 2500)
        assert lease.release()


class TestStores:
    """No store's leases wait for another store."""

    @pytest.fixture(autouse=True)
    def two_servers(
        self, use_caches: UseCaches, redis_server: RedisServer, own_redis_server: RedisServer
    ) -> None:
        use_caches(
            {"default": redis_cache(redis_server.url), "b": redis_cache(own_redis_server.url)},
            {"default": {}, "stopped": {"CACHE": "b"}},
        )

    @pytest.fixture
    def stopped(self, own_redis_server: RedisServer) -> Iterator[Callable[[], None]]:
        """``stopped()``: the server of the store "stopped" hangs from now on."""
        yield own_redis_server.pause
        own_redis_server.resume()

    def test_store_that_hangs_keeps_no_other_from_renewal(
        self, stopped: Callable[[], None]
    ) -> None:
        held_up = locks.using("stopped").acquire("video:1", ttl=3, renew=True)
        assert held_up is not None
        lease = taken("video:1", ttl=3, renew=True)
        stopped()
        until(lambda: held_up._calls == 1, "an extension that hangs")
        renewed(lease, 3)
        assert held_up._calls == 1
        assert lease.release()

    def test_store_that_hangs_keeps_no_other_from_a_release(
        self, stopped: Callable[[], None]
    ) -> None:
        held_up = locks.using("stopped").acquire("video:1", ttl=3, renew=True)
        assert held_up is not None
        lease = taken("video:1", ttl=LONG)
        stopped()
        until(lambda: held_up._calls == 1, "an extension that hangs")
        renewal.abandon("video:1", lease.token, LONG, stores["default"])
        until(lambda: not locks.is_locked("video:1"))
        assert held_up._calls == 1

    def test_thread_ends_with_its_store(self) -> None:
        lease: Lease | None = taken("video:1", ttl=RENEWED, renew=True)
        assert lease is not None
        renewed(lease)
        threads = psutil.Process().num_threads()
        lease = None
        until(lambda: not renewal.of(stores["default"]).entries())
        stores.forget()
        gc.collect()
        until(lambda: psutil.Process().num_threads() < threads)


class Faulty(RedisStore):
    """A store with a mistake of its own."""

    fault: Any = None

    def extend_many(self, batch: Sequence[Extension]) -> list[bool]:
        if isinstance(Faulty.fault, BaseException):
            raise Faulty.fault
        said = super().extend_many(batch)
        return said if Faulty.fault is None else []


class TestMistakes:
    @pytest.mark.parametrize("fault", [KeyError("x"), [], SystemExit()], ids=repr)
    def test_mistake_of_a_store_does_not_end_the_thread(
        self, use_redis: UseRedis, fault: Any
    ) -> None:
        use_redis(tasklock={"BACKEND": f"{__name__}.Faulty"})
        try:
            Faulty.fault = fault
            lease = taken("video:1", ttl=3, renew=True)
            until(lambda: lease.remaining < 1.7, "renewals that came to nothing")
            Faulty.fault = None
            renewed(lease, 2)
        finally:
            Faulty.fault = None

    def test_mistake_of_a_store_is_logged_once(
        self, use_redis: UseRedis, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Without it nothing but "its ttl ran out" would say why the lease is lost."""
        use_redis(tasklock={"BACKEND": f"{__name__}.Faulty"})
        try:
            Faulty.fault = OSError("the disk is gone")
            lease = taken("video:1", ttl=0.6, renew=True)
            until(lambda: not lease.held)
            until(lambda: any(record.exc_info for record in caplog.records))
        finally:
            Faulty.fault = None
        said = [record for record in caplog.records if record.exc_info]
        assert [record.getMessage() for record in said] == [
            "the lock store default could not extend its leases"
        ]
        assert said[0].exc_info is not None
        assert said[0].exc_info[1] is not None
        assert str(said[0].exc_info[1]) == "the disk is gone"

    def test_receiver_that_ends_its_thread_does_not_end_this_one(self) -> None:
        def receiver(**kwargs: Any) -> None:
            raise SystemExit

        signals.lock_lost.connect(receiver)
        try:
            lease = taken("video:1", ttl=0.6, renew=True)
            locks.clear("video:1")
            until(lambda: lease._state == 2, "the loss")
        finally:
            signals.lock_lost.disconnect(receiver)
        renewed(taken("video:2", ttl=RENEWED, renew=True), 2)


class TestFork:
    def test_parent_and_child_have_a_thread_each(self) -> None:
        mine = taken("video:1", ttl=RENEWED, renew=True)
        renewed(mine)

        def child() -> list[object]:
            before = mine._deadline
            own = taken("video:2", ttl=RENEWED, renew=True)
            renewed(own, 2)
            return [mine._deadline == before, own.held, own.release()]

        assert in_child(child) == [True, True, True]
        renewed(mine, 2)
        assert holder("video:1").token == mine.token

    def test_child_renews_nothing_of_its_parents(self) -> None:
        mine = taken("video:1", ttl=LONG, renew=True)

        def child() -> int:
            renewed(taken("video:2", ttl=RENEWED, renew=True))
            return len(renewal.entries())

        assert in_child(child) == 1
        assert mine.release()


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


def test_block_outlives_its_ttl() -> None:
    with lock("video:1", ttl=RENEWED) as lease:
        ends = lease._deadline
        until(lambda: clock.now() > ends)
        assert lease.held


def test_a_renewal_that_a_release_has_overtaken_writes_nothing(
    use_caches: UseCaches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain cache compares and writes in two steps; the release comes between them."""
    backend = "django.core.cache.backends.locmem.LocMemCache"
    use_caches({"default": {"BACKEND": backend, "LOCATION": secrets.token_hex(4)}})
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
        entries = sum(len(own.entries()) for own in renewal._all)
        return threading.active_count(), process.num_fds(), len(connected), entries

    churn(20)
    at_first = left()
    churn(300)
    # A thread that is about to end, or a history that is being written, is no leak.
    until(lambda: all(now <= then for now, then in zip(left(), at_first, strict=True)))
