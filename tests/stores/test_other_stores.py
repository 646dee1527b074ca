"""The stores that few projects have: that each of them is a store. At night they meet the whole
contract (`test_store_contract`)."""

from __future__ import annotations

import pytest

from django_tasklock import ListingNotSupported, LockNotAcquired, lock, locks
from tests.steps import holder, taken
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("other_store")

NAME = "video:1"
SHORT = 1.0


def test_one_holds_the_lock_and_others_are_refused_until_its_lease_ends() -> None:
    lease = taken(NAME, ttl=SHORT)
    assert holder(NAME).token == lease.token
    with pytest.raises(LockNotAcquired), lock(NAME):
        raise AssertionError
    until(lambda: not locks.is_locked(NAME), "the end of the lease")
    later = taken(NAME)
    assert lease.release() is False
    assert later.fence is None or later.fence > (lease.fence or 0)
    assert later.extend()
    assert holder(NAME).token == later.token
    assert later.release()
    assert not locks.is_locked(NAME)


def test_locks_are_listed_and_cleared_as_they_were_seen() -> None:
    held = {name: taken(name).token for name in (NAME, "video:2", "report")}
    try:
        assert {info.name for info in locks.list("video:")} == {NAME, "video:2"}
        assert locks.count() == len(held)
    except ListingNotSupported:
        assert {name for name in held if locks.is_locked(name)} == set(held)
    assert locks.clear(NAME, token=held["video:2"]) is False
    assert locks.clear(NAME, token=held[NAME]) is True
    assert not locks.is_locked(NAME)
    assert locks.is_locked("video:2")
