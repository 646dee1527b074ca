"""Locks are described and listed."""

from __future__ import annotations

import random

from .._values import clock
from .._values.owner import owner_record
from ..exceptions import ListingNotSupported
from .steps import (
    LONG_SECONDS,
    Contract,
    assert_describes,
    assert_held_by,
    granted,
    listing,
    needs,
    new_name,
    until,
)

__all__ = ["Seeing"]


class Seeing(Contract):
    """The contract of `find`; and of `list`, and `walk`, `page` and `count`, which are made of it,
    of a store with ``supports_listing``."""

    def test_find_describes_the_lease(self) -> None:
        store, name, before = self.make_store(), new_name(), clock.now()
        owner = owner_record("videos.процесс", "id-2") | {"ttl": 12.5, "renew": True}
        assert store.find(name) is None
        holder = granted(store, name, owner=owner)
        held = assert_held_by(holder)
        for info in (held, *(store.page(name) if store.supports_listing else ())):
            assert_describes(info, holder, owner, before)
            assert info.fence == holder.grant.fence
            assert (info.granted, info.renewing) == (12.5, True)

    def test_listing_shows_the_soonest_to_expire_first(self) -> None:
        store, prefix = listing(self.make_store()), f"{new_name()}*[x]:"
        order = [f"{prefix}{number}" for number in range(7)]
        for number, name in random.sample(list(enumerate(order)), len(order)):
            granted(store, name, ttl=LONG_SECONDS * (number + 1))
        granted(store)
        assert [info.name for info in store.page(prefix)] == order
        assert [info.name for info in store.walk(prefix)] == order
        assert store.count(prefix) == 7
        assert [info.name for info in store.page(prefix, limit=3)] == order[:3]
        assert [info.name for info in store.page(prefix, limit=3, offset=5)] == order[5:]
        assert store.page(prefix, limit=0) == []
        assert set(order) <= {info.name for info in store.walk()}
        assert store.count() >= 8
        assert store.page(prefix[:-1] + "y") == []

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
        assert [info.name for info in store.page(prefix)] == [prefix + "extended", prefix + "kept"]

    def test_a_store_that_cannot_list_says_so(self) -> None:
        store = self.make_store()
        needs(not store.supports_listing, "cannot list")
        for question in (store.list, store.walk, store.page, store.count, store.reservations):
            try:
                assert not [*question()]  # type: ignore[misc]
            except ListingNotSupported:
                continue
            raise AssertionError(f"{question} answered, though supports_listing is False")
