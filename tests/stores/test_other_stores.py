"""The stores that few projects have: that each of them is a store. At night they meet the whole
contract (`test_store_contract`)."""

from __future__ import annotations

import pytest

from django_tasklock import ListingNotSupported, LockNotAcquired, lock, locks
from django_tasklock._values.tokens import new_token
from django_tasklock.stores.base import BaseStore
from tests.steps import LONG, RENEWED, holder, taken
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("other_store")

NAME = "video:1"
SHORT = 1.0


def test_one_holds_the_lock_and_others_are_refused() -> None:
    lease = taken(NAME)
    assert holder(NAME).token == lease.token
    assert locks.acquire(NAME) is None
    with pytest.raises(LockNotAcquired), lock(NAME):
        raise AssertionError
    assert lease.release()
    assert not locks.is_locked(NAME)
    assert taken(NAME).release()


def test_release_and_extend_need_the_token(other_store: BaseStore) -> None:
    lease = taken(NAME)
    for verb in (other_store.release, lambda name, token: other_store.extend(name, token, LONG)):
        assert verb(NAME, new_token()) is False
    assert holder(NAME).token == lease.token
    assert lease.extend(LONG)
    assert lease.release()


def test_an_extended_lease_outlives_its_ttl_and_the_fence_grows(other_store: BaseStore) -> None:
    lease = taken(NAME, ttl=RENEWED)
    assert lease.extend(LONG)
    left = holder(NAME).ttl
    assert left is not None
    assert left > RENEWED
    assert lease.release()
    later = taken(NAME)
    if other_store.supports_fence:
        assert (later.fence or 0) > (lease.fence or 0) > 0


def test_a_lease_that_nobody_extends_ends_by_itself() -> None:
    lease = taken(NAME, ttl=SHORT)
    until(lambda: not locks.is_locked(NAME), "the end of the lease")
    later = taken(NAME)
    assert lease.release() is False
    assert holder(NAME).token == later.token


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
