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
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.cache import cache

from django_tasklock import Lease, LeaseLost, locks, signals
from tests.conftest import UseRedis
from tests.inside import clock
from tests.proxy import CutProxy
from tests.steps import LONG, Meanwhile, all_of, ends, holder, in_child, sent, taken
from tests.waiting import until


@pytest.fixture(autouse=True)
def on_redis(use_redis: UseRedis) -> None:
    use_redis()


class TestClock:
    """A lease counts from before the question, whenever the answer comes."""

    DELAY = 0.3

    @pytest.fixture(autouse=True)
    def through_a_proxy(self, use_redis: UseRedis, cut_proxy: CutProxy) -> None:
        use_redis(cut_proxy.url)
        taken("warm").release()

    def delayed(self, proxy: CutProxy, work: Callable[[], Any]) -> Any:
        """What a call returns whose answer comes late."""
        proxy.pause()
        call = Meanwhile(work)
        time.sleep(self.DELAY)
        assert call.is_alive()
        proxy.resume()
        return call.result()

    def test_grant_counts_from_before_the_call(self, cut_proxy: CutProxy) -> None:
        lease: Lease = self.delayed(cut_proxy, lambda: taken("video:1", ttl=LONG))
        assert lease.remaining <= LONG - self.DELAY

    def test_extension_counts_from_before_the_call(self, cut_proxy: CutProxy) -> None:
        lease = taken("video:1", ttl=5)
        assert self.delayed(cut_proxy, lambda: lease.extend(LONG)) is True
        assert 5 < lease.remaining <= LONG - self.DELAY


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

    def test_many_who_release_at_once_do_it_once(self, restless: None) -> None:
        with sent(signals.lock_released) as released:
            lease = taken("video:1")
            assert sorted(all_of(*[lease.release] * 6)) == [False] * 5 + [True]
        assert len(released) == 1


class TestExtend:
    def test_lease_lasts_from_now_as_long_as_it_is_told_or_as_the_last_time(self) -> None:
        lease = taken("video:1", ttl=5)
        assert lease.extend(ttl=LONG) is True
        assert lease.ttl == LONG
        assert 5 < lease.remaining <= LONG
        assert (holder("video:1").ttl or 0) > 5
        before = ends(lease) + 0.05
        until(lambda: clock.now() + LONG > before)
        assert lease.extend()
        assert before < ends(lease) < clock.now() + LONG + 0.05

    def test_lease_may_be_made_shorter(self) -> None:
        lease = taken("video:1", ttl=LONG)
        assert lease.extend(0.05) is True
        assert lease.remaining <= 0.05
        until(lambda: not lease.held)
        until(lambda: not locks.is_locked("video:1"))

    def test_of_two_that_overlap_none_is_believed_for_longer_than_the_server_does(self) -> None:
        """Nobody knows which of them the server saw last."""
        lease = taken("video:1")
        for _ in range(50):
            both = (lambda: lease.extend(LONG), lambda: lease.extend(2 * LONG))
            assert all_of(*both) == [True, True]
            believed = ends(lease)
            assert believed <= (holder("video:1").ttl or 0) + clock.now() + 0.01
        assert lease.extend(2 * LONG)
        assert lease.remaining > LONG, "one that overlaps with none counts in full"


class TestFork:
    def test_child_owns_nothing_of_its_parents(self) -> None:
        lease = taken("video:1")

        def child() -> list[object]:
            with sent(signals.lock_lost) as lost:
                answers: list[object] = [lease.held, lease.remaining]
                answers += [lease.extend(LONG), lease.release()]
            with pytest.raises(LeaseLost, match="it belongs to the parent of this forked process"):
                lease.assert_held()
            own = taken("video:2")
            answers += [locks.acquire("video:1") is None, own.extend(LONG)]
            return [*answers, len(lost), own.owner.pid == os.getpid(), own.release()]

        assert in_child(child) == [False, 0.0, False, False, True, True, 0, True, True]
        assert lease.held
        assert holder("video:1").token == lease.token
        assert lease.release() is True


class TestCopies:
    """A lease is one thing, of one process."""

    def test_lease_is_not_held_where_it_is_unpickled(self) -> None:
        lease = taken("video:1", renew=True)
        code = (
            "import json, pickle, sys; from django_tasklock import LeaseLost\n"
            "lease, why = pickle.loads(sys.stdin.buffer.read()), ''\n"
            "try: lease.assert_held()\n"
            "except LeaseLost as error: why = error.reason\n"
            "print(json.dumps([lease.held, lease.remaining, lease.extend(), lease.release(), why, "
            "lease.name, lease.token, lease.fence, lease.owner.pid]))"
        )
        said = subprocess.check_output([sys.executable, "-c", code], input=pickle.dumps(lease))
        assert json.loads(said) == [
            *(False, 0.0, False, False, "it belongs to another process"),
            *("video:1", lease.token, lease.fence, os.getpid()),
        ]
        assert lease.extend()
        assert lease.release()

    @pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
    def test_unpickled_in_its_own_process_it_is_no_second_one(self, protocol: int) -> None:
        """Such as that of an error that is about it."""
        lease = taken("video:1")
        error = LeaseLost("video:1")
        error.add_lease = lease  # type: ignore[attr-defined]
        again = pickle.loads(pickle.dumps(error, protocol)).add_lease
        assert (again.held, again.release(), again.extend()) == (False, False, False)
        with pytest.raises(LeaseLost, match="unpickled copy"):
            again.assert_held()
        assert (again.name, again.token, again.owner) == (lease.name, lease.token, lease.owner)
        assert lease.release()

    def test_copy_is_the_lease(self) -> None:
        """Also where an object that refers to it is copied."""
        lease = taken("video:1", renew=True)
        assert copy.copy(lease) is lease
        assert copy.deepcopy({"lease": [lease]})["lease"][0] is lease
        assert lease.release()
