"""A lease, as its holder has it: when it is over, and that over is final."""

from __future__ import annotations

import copy
import os
import pickle
import sys
import threading
import time
from typing import Any

import pytest
from django.core.cache import cache

from django_tasklock import Lease, LeaseLost, lock, locks, signals
from tests import steps
from tests.conftest import UseRedis
from tests.inside import clock, give_up, kept
from tests.interruptions import EVERY, interrupted
from tests.proxy import CutProxy
from tests.steps import LONG, RENEWED, Meanwhile, all_of, ends, holder, in_child, sent, taken
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.usefixtures("on_redis")


@pytest.mark.parametrize("extends", [False, True], ids=["grant", "extension"])
def test_a_lease_counts_from_before_the_call(
    cut_proxy: CutProxy, use_redis: UseRedis, extends: bool
) -> None:
    # Given a grant, or an extension, whose answer comes late
    use_redis(cut_proxy.url)
    lease, delay = taken("video:1" if extends else "warm", ttl=5), 0.3
    cut_proxy.pause()
    before = cut_proxy.arrived
    call: Any = Meanwhile(lambda: lease.extend(LONG) and lease if extends else taken("video:1"))
    until(lambda: cut_proxy.arrived > before, "the call is on its way")
    time.sleep(delay)
    cut_proxy.resume()
    # I expect the lease to end by our clock no later than on the server
    assert 5 < call.result().remaining <= LONG - delay


class TestLoss:
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
        said = (lease.held, lease.extend(), lease.release(), lease.remaining)
        assert said == (False, False, False, 0.0)
        with pytest.raises(LeaseLost, match="the store no longer has it"):
            lease.assert_held()
        assert "lost" in repr(lease)

    @pytest.mark.parametrize("lost", [True, False])
    def test_of_many_at_once_one_releases_it_or_tells_its_loss(self, lost: bool) -> None:
        usual = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)  # Threads take turns at any moment.
        try:
            for _ in range(20):
                with sent(signals.lock_lost) as losses, sent(signals.lock_released) as releases:
                    lease = taken("video:1")
                    if lost:
                        cache.delete("lock:video:1")
                    answers = all_of(*[lease.release] * 6)
                assert sorted(answers) == [False] * 5 + [not lost]
                assert [told["lease"] for told in (losses if lost else releases)] == [lease]
        finally:
            sys.setswitchinterval(usual)


class TestExtend:
    def test_lease_lasts_from_now_as_long_as_it_is_told_or_as_the_last_time(self) -> None:
        lease = taken("video:1", ttl=5)
        assert (lease.extend(ttl=LONG), lease.ttl) == (True, LONG)
        assert 5 < lease.remaining <= LONG
        assert (holder("video:1").ttl or 0) > 5
        before = ends(lease) + 0.05
        until(lambda: clock.now() + LONG > before)
        assert lease.extend()
        assert before < ends(lease) < clock.now() + LONG + 0.05
        assert lease.extend(0.05) is True, "it may be made shorter"
        until(lambda: not lease.held)
        until(lambda: not locks.is_locked("video:1"))

    def test_of_two_that_overlap_none_is_believed_for_longer_than_the_server_does(self) -> None:
        lease = taken("video:1")
        for _ in range(50):
            both = (lambda: lease.extend(LONG), lambda: lease.extend(2 * LONG))
            assert all_of(*both) == [True, True]
            believed = ends(lease)
            assert believed <= (holder("video:1").ttl or 0) + clock.now() + 0.01
        assert lease.extend(2 * LONG)
        assert lease.remaining > LONG, "one that overlaps with none counts in full"


@pytest.mark.usefixtures("each_fork")
def test_child_owns_nothing_of_its_parents() -> None:
    def child() -> list[object]:
        with sent(signals.lock_lost) as lost:
            answers: list[object] = [lease.held, lease.remaining, lease.extend(LONG)]
            answers.append(lease.release())
        for say in (lease.assert_held, lambda: block.__exit__(None, None, None)):
            with pytest.raises(LeaseLost, match="it belongs to the parent of this forked process"):
                say()
        with lock("video:3", ttl=RENEWED) as own:
            steps.renewed(own)
        works = (own.owner.pid == os.getpid(), not locks.is_locked("video:3"), kept() == 0)
        return [*answers, len(lost), *works]

    lease, block = taken("video:1", renew=True), lock("video:2", ttl=LONG)
    with block:
        waits = Meanwhile(lambda: taken("video:2", wait=LONG))
        until(lambda: locks.waiters("video:2"))
        of_nothing = [False, 0.0, False, False, 0, True, True, True]
        assert in_child(child) == of_nothing
        assert in_child(lambda: in_child(child)) == of_nothing, "a daemon forks twice"
        assert locks.is_locked("video:2")
    assert holder("video:1").token == lease.token
    assert lease.release() is waits.result().release() is True


@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
def test_lease_cannot_be_pickled_and_a_copy_is_the_lease(protocol: int) -> None:
    lease = taken("video:1", renew=True)
    with pytest.raises(TypeError, match=r"hand on lease\.detach\(\)"):
        pickle.dumps(lease, protocol)
    assert copy.copy(lease) is copy.deepcopy([lease])[0] is lease
    assert lease.extend()
    assert lease.release()


def test_a_lease_that_was_given_up_is_never_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though an extension of it is under way, to which the store says that it has it no more."""
    lease, extend = taken("video:1"), locks.store.extend
    gone, begun = threading.Event(), threading.Event()

    def slow(*extension: Any) -> bool:
        begun.set()
        assert gone.wait(PATIENCE)
        return extend(*extension)

    monkeypatch.setattr(locks.store, "extend", slow)
    with sent(signals.lock_lost) as lost, sent(signals.lock_released) as released:
        extending = Meanwhile(lease.extend)
        assert begun.wait(PATIENCE)
        give_up(lease)
        until(lambda: released)
        gone.set()
        assert extending.result() is False
    assert (len(lost), len(released)) == (0, 1)


def test_what_the_store_has_lost_is_not_held_whatever_interrupts_that_news() -> None:
    """The thread hears it too, at the next renewal: long before the end by the clock."""
    leases, ttl = list[Lease](), 3 * RENEWED
    number, where = 1 - EVERY, ["at no instruction yet"]
    while where:
        number += EVERY
        lease = taken(f"video:{number}", ttl=ttl, renew=True)
        locks.clear(lease.name)
        with interrupted(number) as where:
            lease.extend()
        leases.append(lease)
    until(lambda: not any(lease.held for lease in leases), within=ttl / 2)
    for lease in leases:
        with pytest.raises(LeaseLost):
            lease.assert_held()
