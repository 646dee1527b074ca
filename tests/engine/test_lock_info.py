"""What is known of a lock is a plain value, whatever anybody has written to its key."""

from __future__ import annotations

import copy
import pickle
from dataclasses import asdict, replace

import pytest
from django.core.cache import cache

from django_tasklock import LockInfo, locks
from django_tasklock.stores import stores
from tests.steps import holder, taken

pytestmark = pytest.mark.usefixtures("on_redis")


def test_it_is_equal_to_what_is_read_again_and_has_not_changed() -> None:
    lease = taken("video:1")
    (info,) = locks.list()
    again = holder("video:1")
    assert replace(again, ttl=info.ttl) == info
    assert hash(replace(again, ttl=info.ttl)) == hash(info)
    assert info.is_same_lease(again)
    assert not info.is_same_lease(None)
    lease.release()
    taken("video:1")
    assert not info.is_same_lease(holder("video:1"))


def test_it_can_be_pickled_copied_and_printed() -> None:
    lease, info = taken("video:1"), holder("video:1")
    pickles = [pickle.dumps(info, protocol) for protocol in range(2, 6)]
    for made in (*map(pickle.loads, pickles), copy.copy(info), copy.deepcopy(info)):
        assert isinstance(made, LockInfo)
        assert (made, made.fence) == (info, lease.fence)
    assert f"token={lease.token!r}" in repr(info)
    assert asdict(info)["owner"]["pid"] == lease.owner.pid


def test_what_it_was_read_from_stays_in_the_process() -> None:
    cache.set("lock:video:1", "a secret of other code", 60)
    info = holder("video:1")
    assert "secret" not in repr(info)
    assert b"secret" not in pickle.dumps(info)
    assert stores["default"].clear_many([pickle.loads(pickle.dumps(info))]) == [True]
