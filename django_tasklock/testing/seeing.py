"""What others see of a lock, and how they remove it."""

from __future__ import annotations

import random

from .. import clock
from ..lease import new_token
from ..owner import Owner, owner_record
from ..stores.base import Finding, Grant
from .steps import (
    LONG,
    Contract,
    assert_cannot_list,
    assert_describes,
    granted,
    new_name,
    until,
)

__all__ = ["Seeing"]


class Seeing(Contract):
    """The contract of `get`, `list`, `count`, `clear` and `check`."""

    def test_get_describes_the_lease(self) -> None:
        store, name, token = self.make_store(), new_name(), new_token()
        owner = owner_record("videos.процесс", "id-2")
        before = clock.now()
        grant = store.acquire(name, token, LONG, owner)
        assert isinstance(grant, Grant)
        held = store.get(name)
        assert held is not None
        assert_describes(held, store, name, token, Owner.from_record(owner), before)
        assert held.fence == grant.fence

    def test_get_of_what_nobody_holds_is_none(self) -> None:
        assert self.make_store().get(new_name()) is None

    def test_clear_removes_whoever_holds_the_lock(self) -> None:
        store, name, token = self.make_store(), new_name(), new_token()
        grant = granted(store, name, token)
        assert store.clear(name) is True
        assert store.get(name) is None
        assert store.clear(name) is False
        assert store.extend(name, token, LONG, grant.proof) is False
        assert store.release(name, token, grant.proof) is False

    def test_clear_with_a_token_removes_that_very_lease(self) -> None:
        store, name, token = self.make_store(), new_name(), new_token()
        granted(store, name, token)
        assert store.clear(name, new_token()) is False
        held = store.get(name)
        assert held is not None
        assert held.token == token
        assert store.clear(name, token) is True
        assert store.get(name) is None
        assert store.clear(name, token) is False

    def test_listing_shows_the_soonest_to_expire_first(self) -> None:
        store, prefix = self.make_store(), f"{new_name()}*[x]:"
        if not store.supports_listing:
            assert_cannot_list(store)
            return
        order = [f"{prefix}{number}" for number in range(7)]
        for number, name in random.sample(list(enumerate(order)), len(order)):
            granted(store, name, ttl=LONG * (number + 1))
        granted(store, new_name())
        names = [info.name for info in store.list(prefix)]
        assert names == order
        assert store.count(prefix) == 7
        assert [info.name for info in store.list(prefix, limit=3)] == order[:3]
        assert [info.name for info in store.list(prefix, limit=3, offset=5)] == order[5:]
        assert store.list(prefix, limit=0) == []
        assert store.list(prefix, offset=7) == []
        everything = [info.name for info in store.list()]
        assert set(order) <= set(everything)
        assert store.count() >= 8
        assert store.list(prefix[:-1] + "y") == []

    def test_listing_describes_leases_as_get_does(self) -> None:
        store, name, token = self.make_store(), new_name(), new_token()
        if not store.supports_listing:
            assert_cannot_list(store)
            return
        owner, before = owner_record("videos.process", "id-3"), clock.now()
        grant = store.acquire(name, token, LONG, owner)
        assert isinstance(grant, Grant)
        (listed,) = store.list(name)
        assert_describes(listed, store, name, token, Owner.from_record(owner), before)
        assert listed.fence == grant.fence

    def test_listing_follows_what_happens(self) -> None:
        store, prefix = self.make_store(), f"{new_name()}:"
        if not store.supports_listing:
            assert_cannot_list(store)
            return
        tokens = {name: new_token() for name in ("kept", "released", "cleared", "over", "extended")}
        for name, token in tokens.items():
            granted(store, prefix + name, token, ttl=0.3 if name == "over" else LONG)
        store.release(prefix + "released", tokens["released"])
        store.clear(prefix + "cleared")
        assert store.extend(prefix + "extended", tokens["extended"], LONG / 2)
        until(lambda: store.count(prefix) == 2)
        assert [info.name for info in store.list(prefix)] == [prefix + "extended", prefix + "kept"]

    def test_check_yields_findings(self) -> None:
        assert all(isinstance(found, Finding) for found in self.make_store().check())
