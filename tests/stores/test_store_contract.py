"""The store contract, held against every store; what those on a cache add to it; and a handful of
tests by day of the stores that few projects have, which meet the whole contract at night."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from django.core.cache import cache, caches

from django_tasklock import ListingNotSupported, LockNotAcquired, lock, locks
from django_tasklock.stores.base import BaseStore, Note
from django_tasklock.testing.steps import LONG_SECONDS, granted, refused
from tests.inside import new_token
from tests.steps import LONG, holder, taken
from tests.stores.contract import WholeContract
from tests.stores.contract.verbs import assert_a_child_and_its_parent_go_on
from tests.waiting import until

NAME = "video:123"
SHORT = 1.0


class TestOtherStores:
    def test_one_holds_the_lock_and_others_are_refused_until_its_lease_ends(
        self, other_store: BaseStore
    ) -> None:
        # Given who holds a lock, I expect others to be refused
        lease = taken(NAME, ttl=SHORT)
        assert holder(NAME).token == lease.token
        with pytest.raises(LockNotAcquired), lock(NAME):
            raise AssertionError

        # And the lock to be free at the end of the lease
        until(lambda: not locks.is_locked(NAME), "the end of the lease")

        # And its first holder to change nothing of the next lease
        later = taken(NAME)
        assert lease.release() is False
        assert later.fence is None or later.fence > (lease.fence or 0)
        assert later.extend(2 * LONG)
        assert holder(NAME).token == later.token
        assert LONG < (holder(NAME).ttl or 0) <= 2 * LONG
        assert later.release()
        assert not locks.is_locked(NAME)

    def test_locks_are_listed_and_cleared_as_they_were_seen(self, other_store: BaseStore) -> None:
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
        assert taken(NAME).release()

    def test_a_note_keeps_a_key(self, other_store: BaseStore) -> None:
        other_store.set_note(Note("key", "text", LONG))
        assert other_store.reserve("key", "other", LONG) == "text"

    @pytest.mark.usefixtures("each_fork")
    def test_a_forked_child_and_its_parent_both_go_on(self, other_store: BaseStore) -> None:
        assert_a_child_and_its_parent_go_on(other_store)


class TestEveryStore(WholeContract):
    @pytest.fixture(autouse=True)
    def _every_store(self, each_store: BaseStore) -> Iterator[None]:
        self.store = each_store
        yield
        del self.store  # pytest keeps this object, and with it the threads of the store's client.

    def make_store(self) -> BaseStore:
        return self.store

    def make_silent_store(self) -> BaseStore | None:
        settings = self.store.settings
        if "HOSTS" in settings.options:
            changed = replace(settings, options={"HOSTS": "127.0.0.1:1", "TIMEOUT": 0.2})
        elif "LOCATION" in settings.options:
            options = {"LOCATION": "redis://127.0.0.1:1", "SOCKET_TIMEOUT": 0.2}
            changed = replace(settings, options=options)
        elif self.store.uses_cache and "silent" in caches.settings:
            changed = replace(settings, cache="silent")
        else:
            return None
        return type(self.store)(changed)


@pytest.fixture
def key(cache_store: BaseStore) -> str:
    """What the cache calls the lock."""
    prefix = cache_store.settings.key_prefix
    return f"{prefix}:{NAME}" if prefix else NAME


def test_the_key_is_the_caches_own(cache_store: BaseStore, key: str) -> None:
    """The cache itself finds the lock under ``KEY_PREFIX:name``, and cannot add to it."""
    token = granted(cache_store, NAME).token
    assert holder(NAME).key == cache.make_key(key)
    assert token in str(cache.get(key))
    assert cache.add(key, "somebody's", LONG) is False
    assert cache.delete(key) is True
    assert cache_store.find(NAME) is None


@pytest.mark.parametrize("value", ["locked", 1, True, {"token": 5}, [1], b"\xff", "", None])
def test_a_key_that_somebody_else_set_is_a_lock_too(
    cache_store: BaseStore, key: str, value: Any
) -> None:
    """None: a key that never expires."""
    value, lasts = ("for ever", None) if value is None else (value, LONG)
    try:
        assert cache.add(key, value, lasts) is True
    except TypeError:
        pytest.skip("this serializer cannot carry the value")
    held = holder(NAME)
    assert (held.token, held.acquired_at, held.fence) == (None, None, None)
    assert lasts or held.ttl is None
    assert set(held.owner.as_dict().values()) == {None}
    assert refused(cache_store, NAME).token is None
    assert cache_store.release(NAME, new_token()) is False
    assert cache_store.extend(NAME, new_token(), LONG_SECONDS) is False
    assert cache_store.clear(NAME, new_token()) is False
    assert cache_store.clear(NAME, digest="0" * 32) is False
    assert cache.get(key) == value
    assert cache_store.clear(NAME) is True
    assert cache.get(key) is None
    granted(cache_store, NAME)
