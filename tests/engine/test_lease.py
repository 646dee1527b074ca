"""A lease, as its holder has it: when it is over, and that over is final."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.cache import cache

from django_tasklock import Lease, LeaseLost, lock, locks, signals
from django_tasklock._values import clock
from django_tasklock.stores import stores
from django_tasklock.stores.redis import RedisStore
from tests.conftest import UseCaches, UseRedis
from tests.proxy import CutProxy
from tests.steps import LONG, Meanwhile, all_of, holder, in_child, sent, taken
from tests.waiting import PATIENCE, until


@pytest.fixture(autouse=True)
def on_redis(use_redis: UseRedis) -> None:
    use_redis()


class SlowReplies(RedisStore):
    """A network on which the replies to extensions come when the test says so."""

    arrived: dict[float, threading.Event]
    deliver: dict[float, threading.Event]

    def extend(self, name: str, token: str, ttl: float, proof: Any = None) -> bool:
        said = super().extend(name, token, ttl, proof)
        if ttl in self.deliver:
            self.arrived[ttl].set()
            assert self.deliver[ttl].wait(PATIENCE)
        return said


class TestClock:
    """A lease counts from before the question, whenever the answer comes."""

    DELAY = 0.3

    @pytest.fixture(autouse=True)
    def through_a_proxy(self, use_redis: UseRedis, cut_proxy: CutProxy) -> None:
        use_redis(cut_proxy.url)
        taken("warm").release()

    def delayed(self, proxy: CutProxy, call: Meanwhile[Lease] | Meanwhile[bool]) -> None:
        time.sleep(self.DELAY)
        assert call.is_alive()
        proxy.resume()

    def test_grant_counts_from_before_the_call(self, cut_proxy: CutProxy) -> None:
        cut_proxy.pause()
        call = Meanwhile(lambda: taken("video:1", ttl=LONG))
        self.delayed(cut_proxy, call)
        lease = call.result()
        assert lease.remaining <= LONG - self.DELAY

    def test_extension_counts_from_before_the_call(self, cut_proxy: CutProxy) -> None:
        lease = taken("video:1", ttl=5)
        cut_proxy.pause()
        call = Meanwhile(lambda: lease.extend(LONG))
        self.delayed(cut_proxy, call)
        assert call.result() is True
        assert 5 < lease.remaining <= LONG - self.DELAY

    def test_lease_that_ran_out_before_the_answer_came_is_asked_for_again(
        self, cut_proxy: CutProxy
    ) -> None:
        # Nobody is handed a lease that is over already.
        cut_proxy.pause()
        before = clock.now()
        call = Meanwhile(lambda: taken("video:1", ttl=self.DELAY / 2))
        self.delayed(cut_proxy, call)
        lease = call.result()
        # Longer than the lease of the first answer could have lasted.
        assert lease._deadline > before + self.DELAY * 1.4
        info = locks.get("video:1")
        assert info is None or info.token == lease.token


class TestLoss:
    @pytest.fixture
    def restless(self) -> Iterator[None]:
        """Threads that take turns at any moment."""
        usual = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        yield
        sys.setswitchinterval(usual)

    def test_lease_is_over_by_our_clock_whatever_the_server_says(self) -> None:
        lease = taken("video:1", ttl=1)
        assert cache.touch("lock:video:1", None)
        until(lambda: not lease.held)
        assert lease.remaining == 0.0
        assert (lease.extend(LONG), lease.release()) == (False, False)
        assert holder("video:1").token == lease.token, "it touched what it no longer held"

    def test_lost_is_final(self) -> None:
        lease = taken("video:1")
        kept = cache.get("lock:video:1")
        cache.delete("lock:video:1")
        assert lease.held, "nobody has asked the store yet"
        assert lease.extend() is False
        cache.set("lock:video:1", kept, LONG)
        assert (lease.held, lease.extend(), lease.release()) == (False, False, False)
        with pytest.raises(LeaseLost, match="the store no longer has it"):
            lease.assert_held()
        assert "lost" in repr(lease)

    def test_loss_is_told_once_though_many_notice(self, restless: None) -> None:
        for _ in range(20):
            with sent(signals.lock_lost) as lost:
                # A lease whose grant came too late is none.
                lease = until(lambda: locks.acquire("video:1", ttl=0.02))
                assert lease is not None
                together = threading.Barrier(6)

                def notice(lease: Lease = lease, together: threading.Barrier = together) -> None:
                    together.wait()
                    until(lambda: not lease.held)
                    lease.extend()
                    lease.release()

                all_of(*[notice] * 6)
            assert [told["lease"] for told in lost] == [lease]
            until(lambda: not locks.is_locked("video:1"))

    def test_release_that_finds_the_lock_gone_is_a_loss(self) -> None:
        lease = taken("video:1")
        cache.delete("lock:video:1")
        with sent(signals.lock_lost) as lost:
            assert lease.release() is False
        assert len(lost) == 1

    def test_late_holder_leaves_the_next_one_alone(self) -> None:
        late = taken("video:1", ttl=0.05)
        until(lambda: not locks.is_locked("video:1"))
        lease = taken("video:1", ttl=5)
        assert (late.extend(LONG), late.release()) == (False, False)
        info = holder("video:1")
        assert info.token == lease.token
        assert info.ttl is not None
        assert info.ttl <= 5

    def test_many_who_release_at_once_do_it_once(self) -> None:
        with sent(signals.lock_released) as released:
            lease = taken("video:1")
            assert sorted(all_of(*[lease.release] * 6)) == [False] * 5 + [True]
        assert len(released) == 1


class TestExtend:
    def test_lease_lasts_from_now_as_long_as_it_is_told(self) -> None:
        lease = taken("video:1", ttl=5)
        assert lease.extend(ttl=LONG) is True
        assert lease.ttl == LONG
        assert 5 < lease.remaining <= LONG
        assert (holder("video:1").ttl or 0) > 5

    def test_without_a_ttl_it_lasts_as_long_as_the_last_time(self) -> None:
        lease = taken("video:1", ttl=5)
        assert lease.extend(ttl=LONG)
        before = lease._deadline
        until(lambda: clock.now() + LONG > before)
        assert lease.extend()
        assert before < lease._deadline <= clock.now() + LONG

    def test_lease_may_be_made_shorter(self) -> None:
        lease = taken("video:1", ttl=LONG)
        assert lease.extend(0.05) is True
        assert lease.remaining <= 0.05
        until(lambda: not lease.held)
        until(lambda: not locks.is_locked("video:1"))

    @pytest.mark.parametrize(
        ("first_sent", "first_heard"), [(LONG, LONG), (LONG, 2.0), (2.0, LONG), (2.0, 2.0)]
    )
    def test_of_two_that_overlap_the_earlier_end_counts(
        self, use_redis: UseRedis, first_sent: float, first_heard: float
    ) -> None:
        """Nobody knows which of them the server saw last."""
        use_redis(tasklock={"BACKEND": f"{__name__}.SlowReplies"})
        slow = stores["default"]
        assert isinstance(slow, SlowReplies)
        slow.arrived = {ttl: threading.Event() for ttl in (2.0, LONG)}
        slow.deliver = {ttl: threading.Event() for ttl in (2.0, LONG)}
        lease = taken("video:1", ttl=5)
        other = {2.0: LONG, LONG: 2.0}

        calls = {}
        for ttl in (first_sent, other[first_sent]):
            calls[ttl] = Meanwhile(lambda ttl=ttl: lease.extend(ttl))  # type: ignore[misc]
            assert slow.arrived[ttl].wait(PATIENCE)
        for ttl in (first_heard, other[first_heard]):
            slow.deliver[ttl].set()
            assert calls[ttl].result() is True

        assert lease.remaining <= 2
        slow.deliver.clear()
        assert lease.extend(LONG)
        assert lease.remaining > 5, "one that overlaps with none counts in full"


class TestCaches:
    def test_lease_in_a_plain_cache_has_no_fence(self, use_caches: UseCaches) -> None:
        use_caches({"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}})
        with lock("video:1") as lease:
            assert lease.fence is None
            assert lease.extend(LONG)


class TestFork:
    def test_child_owns_nothing_of_its_parents(self) -> None:
        lease = taken("video:1")

        def child() -> list[object]:
            with sent(signals.lock_lost) as lost:
                answers: list[object] = [lease.held, lease.remaining]
                answers += [lease.extend(LONG), lease.release()]
            try:
                lease.assert_held()
            except LeaseLost as error:
                answers.append(error.reason)
            return [*answers, len(lost)]

        assert in_child(child) == [
            *(False, 0.0, False, False),
            "it belongs to the parent of this forked process",
            0,
        ]
        assert lease.held
        assert holder("video:1").token == lease.token
        assert lease.release() is True

    def test_child_is_refused_and_has_leases_of_its_own(self) -> None:
        lease = taken("video:1")

        def child() -> list[object]:
            own = taken("video:2")
            answers = [locks.acquire("video:1") is None, own.extend(LONG), own.owner.pid]
            return [*answers, own.release()]

        refused, extended, pid, released = in_child(child)
        assert (refused, extended, released) == (True, True, True)
        assert pid != lease.owner.pid
        assert lease.held

    def test_child_is_not_held_up_by_what_another_thread_was_doing(self) -> None:
        """At the moment of the fork it had the pool, and in the child it never gives it back."""
        taken("video:1").release()
        store: Any = stores["default"]
        at_the_pool, over = threading.Event(), threading.Event()

        def hold() -> None:
            with store.client.pool._lock:
                at_the_pool.set()
                over.wait(PATIENCE)

        thread = Meanwhile(hold)
        assert at_the_pool.wait(PATIENCE)
        try:
            assert in_child(lambda: taken("video:1").release()) is True
        finally:
            over.set()
            thread.result()

    def test_child_that_leaves_its_parents_block_releases_nothing(self) -> None:
        block = lock("video:1")
        lease = block.__enter__()

        def child() -> str:
            try:
                block.__exit__(None, None, None)
            except LeaseLost:
                return "lost"
            return "left"

        assert in_child(child) == "lost"
        assert lease.held
        assert holder("video:1").token == lease.token
        block.__exit__(None, None, None)
        assert not locks.is_locked("video:1")


class TestCopies:
    """A lease is one thing, of one process."""

    def unpickled_there(self, lease: Lease) -> list[Any]:
        """What a process that did not fork from this one says of it."""
        code = (
            "import json, pickle, sys; from django_tasklock import LeaseLost\n"
            "lease, why = pickle.loads(sys.stdin.buffer.read()), ''\n"
            "try: lease.assert_held()\n"
            "except LeaseLost as error: why = error.reason\n"
            "print(json.dumps([lease.held, lease.remaining, lease.extend(), lease.extend(ttl=9.0), "
            "lease.release(), why, lease.name, lease.token, lease.fence, lease.owner.pid]))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], input=pickle.dumps(lease), capture_output=True, check=True
        )
        said: list[Any] = json.loads(done.stdout)
        return said

    @pytest.mark.parametrize("renew", [False, True])
    def test_lease_is_not_held_where_it_is_unpickled(self, renew: bool) -> None:
        lease = taken("video:1", renew=renew)
        why = "it belongs to another process"
        told = ["video:1", lease.token, lease.fence, os.getpid()]
        assert self.unpickled_there(lease) == [False, 0.0, False, False, False, why, *told]
        assert lease.extend()
        assert lease.release()

    def test_forked_child_may_not_use_it_either(self) -> None:
        lease = taken("video:1")
        pickled = pickle.dumps(lease)

        def there() -> list[Any]:
            again = pickle.loads(pickled)
            return [again.held, again.release(), str(again._reason)]

        assert in_child(there) == [False, False, "it belongs to another process"]
        assert lease.release()

    @pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
    def test_unpickled_in_its_own_process_it_is_no_second_one(self, protocol: int) -> None:
        lease = taken("video:1")
        again = pickle.loads(pickle.dumps(lease, protocol))
        assert (again.held, again.release(), again.extend()) == (False, False, False)
        with pytest.raises(LeaseLost, match="unpickled copy"):
            again.assert_held()
        assert (again.name, again.token, again.fence) == (lease.name, lease.token, lease.fence)
        assert again.owner == lease.owner
        assert lease.release()

    def test_copy_is_the_lease(self) -> None:
        """Also where an object that refers to it is copied."""
        lease = taken("video:1", renew=True)
        assert copy.copy(lease) is lease
        assert copy.deepcopy({"lease": [lease]})["lease"][0] is lease
        assert lease.release()

    def test_error_with_the_lease_it_is_about_can_be_pickled(self) -> None:
        lease = taken("video:1")
        error = LeaseLost("video:1")
        error.add_lease = lease  # type: ignore[attr-defined]
        again = pickle.loads(pickle.dumps(error))
        assert (again.reason, again.add_lease.held) == (error.reason, False)
