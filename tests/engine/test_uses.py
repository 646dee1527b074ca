"""A `lock()` object that is used by many: each use leaves with the lease that it came with."""

from __future__ import annotations

import contextlib
import gc
import threading

import pytest

from django_tasklock import LeaseLost, lock, locks
from tests.inside import kept
from tests.steps import LONG, all_of, holder
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("on_redis")


def test_it_serves_many_blocks_and_many_threads() -> None:
    shared, inside, tokens = lock("video:1", ttl=LONG, wait=LONG), threading.Lock(), []

    def enter() -> None:
        for _ in range(5):
            with shared as lease:
                assert inside.acquire(blocking=False), "two at once"
                tokens.append(lease.token)
                assert holder("video:1").token == lease.token
                inside.release()

    all_of(*[enter] * 6)
    assert len(set(tokens)) == 30
    assert not locks.is_locked("video:1")
    until(lambda: kept() == 0, "nothing of its uses is kept")


def test_a_stack_leaves_the_last_first() -> None:
    shared = lock("video:1", ttl=LONG)
    outer, inner = contextlib.ExitStack(), contextlib.ExitStack()
    first = outer.enter_context(shared)
    assert locks.clear("video:1", first.token)
    assert inner.enter_context(shared).held
    inner.close()
    assert not locks.is_locked("video:1")
    with pytest.raises(LeaseLost):
        outer.close()


def test_a_use_that_is_dropped_and_never_left_gives_its_lease_back() -> None:
    """As when an exception came in the moment of leaving."""
    shared = lock("video:1", ttl=LONG)
    leave, lease = shared.__exit__, shared.__enter__()
    assert lease.held
    del leave, shared
    gc.collect()
    until(lambda: not locks.is_locked("video:1"))
    with pytest.raises(LeaseLost):
        lease.assert_held()
