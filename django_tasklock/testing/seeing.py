"""Locks are described and listed."""

from __future__ import annotations

import random

from .._values import clock
from .._values.owner import operator_record, owner_record
from .steps import (
    LONG_SECONDS,
    Contract,
    assert_describes,
    assert_held_by,
    granted,
    listing,
    new_name,
    until,
)

__all__ = ["Seeing"]


class Seeing(Contract):
    """The contract of `get`; and of `list` and `count`, of a store with ``supports_listing``."""

    def test_get_describes_the_lease(self) -> None:
        store, name, before = self.make_store(), new_name(), clock.now()
        owner = owner_record("videos.процесс", "id-2")
        assert store.get(name) is None
        holder = granted(store, name, owner=owner)
        held = assert_held_by(holder)
        assert_describes(held, holder, owner, before)
        assert held.fence == holder.grant.fence

    def test_get_describes_an_operators_hold(self) -> None:
        """An owner without a process, whose texts are as long as they get."""
        store, before = self.make_store(), clock.now()
        owner = operator_record("维" * 85, "数据库迁移 " + "é" * 100)
        holder = granted(store, owner=owner)
        held = assert_held_by(holder)
        assert_describes(held, holder, owner, before)
        assert (held.held_by, held.reason) == (owner["held_by"], owner["reason"])

    def test_listing_shows_the_soonest_to_expire_first(self) -> None:
        store, prefix = listing(self.make_store()), f"{new_name()}*[x]:"
        order = [f"{prefix}{number}" for number in range(7)]
        for number, name in random.sample(list(enumerate(order)), len(order)):
            granted(store, name, ttl=LONG_SECONDS * (number + 1))
        granted(store)
        assert [info.name for info in store.list(prefix)] == order
        assert store.count(prefix) == 7
        assert [info.name for info in store.list(prefix, limit=3)] == order[:3]
        assert [info.name for info in store.list(prefix, limit=3, offset=5)] == order[5:]
        assert store.list(prefix, limit=0) == []
        assert store.list(prefix, offset=7) == []
        assert set(order) <= {info.name for info in store.list()}
        assert store.count() >= 8
        assert store.list(prefix[:-1] + "y") == []

    def test_listing_describes_leases_as_get_does(self) -> None:
        store, before = listing(self.make_store()), clock.now()
        owner = owner_record("videos.process", "id-3")
        holder = granted(store, owner=owner)
        (listed,) = store.list(holder.name)
        assert_describes(listed, holder, owner, before)
        assert listed.fence == holder.grant.fence

    def test_listing_follows_what_happens(self) -> None:
        store, prefix = listing(self.make_store()), f"{new_name()}:"
        holders = {
            word: granted(store, prefix + word, ttl=0.3 if word == "over" else LONG_SECONDS)
            for word in ("kept", "released", "cleared", "over", "extended")
        }
        holders["released"].release()
        store.clear(prefix + "cleared")
        assert holders["extended"].extend(LONG_SECONDS / 2)
        until(lambda: store.count(prefix) == 2)
        assert [info.name for info in store.list(prefix)] == [prefix + "extended", prefix + "kept"]
