"""Locks are described, listed and cleared."""

from __future__ import annotations

import random
from unittest import SkipTest

from .._values import clock
from .._values.owner import Owner
from .._values.owner_record import operator_record, owner_record
from .._values.tokens import new_token
from ..exceptions import ListingNotSupported
from ..stores.base import Finding, Grant, Note
from .steps import (
    LONG_SECONDS,
    Contract,
    assert_cannot_list,
    assert_describes,
    granted,
    new_name,
    until,
)

__all__ = ["Seeing"]


class Seeing(Contract):
    """The contract of `get`, `clear`, `held`, `list`, `count`, `scan` and `check`."""

    def test_get_describes_the_lease(self) -> None:
        store, name, token = self.make_store(), new_name(), new_token()
        owner = owner_record("videos.процесс", "id-2")
        before = clock.now()
        grant = store.acquire(name, token, LONG_SECONDS, owner)
        assert isinstance(grant, Grant)
        held = store.get(name)
        assert held is not None
        assert_describes(held, store, name, token, Owner.from_record(owner), before)
        assert held.fence == grant.fence

    def test_get_describes_an_operators_hold(self) -> None:
        """An owner without a process."""
        store, name, token = self.make_store(), new_name(), new_token()
        owner = operator_record("维" * 85, "数据库迁移 " + "é" * 100)
        before = clock.now()
        assert isinstance(store.acquire(name, token, LONG_SECONDS, owner), Grant)
        held = store.get(name)
        assert held is not None
        assert_describes(held, store, name, token, Owner.from_record(owner), before)
        assert (held.held_by, held.reason) == (owner["held_by"], owner["reason"])

    def test_get_of_a_lock_that_is_not_held_is_none(self) -> None:
        assert self.make_store().get(new_name()) is None

    def test_clear_removes_what_holds_the_lock(self) -> None:
        store, name, token = self.make_store(), new_name(), new_token()
        grant = granted(store, name, token)
        assert store.clear(name) is True
        assert store.get(name) is None
        assert store.clear(name) is False
        assert store.extend(name, token, LONG_SECONDS, grant.proof) is False
        assert store.release(name, token, grant.proof) is False

    def test_clear_with_a_token_removes_that_lease_only(self) -> None:
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
            granted(store, name, ttl=LONG_SECONDS * (number + 1))
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
        grant = store.acquire(name, token, LONG_SECONDS, owner)
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
            granted(store, prefix + name, token, ttl=0.3 if name == "over" else LONG_SECONDS)
        store.release(prefix + "released", tokens["released"])
        store.clear(prefix + "cleared")
        assert store.extend(prefix + "extended", tokens["extended"], LONG_SECONDS / 2)
        until(lambda: store.count(prefix) == 2)
        assert [info.name for info in store.list(prefix)] == [prefix + "extended", prefix + "kept"]

    def test_check_yields_findings(self) -> None:
        assert all(isinstance(found, Finding) for found in self.make_store().check())

    def test_held_returns_the_names_that_are_held(self) -> None:
        store = self.make_store()
        names = [new_name() for _ in range(6)]
        assert store.held(names) == set()
        tokens = {name: new_token() for name in names[:4]}
        proofs = {name: granted(store, name, token).proof for name, token in tokens.items()}
        assert store.release(names[0], tokens[names[0]], proofs[names[0]])
        assert store.held(names) == set(names[1:4])
        assert store.held([]) == set()

    def test_scan_finds_the_locks_and_nothing_else(self) -> None:
        store, prefix = self.make_store(), f"{new_name()}*[x]:"
        try:
            assert list(store.scan(prefix)) == []
        except ListingNotSupported as error:
            raise SkipTest("only for a store that can distinguish its keys from others") from error
        tokens = {f"{prefix}{number}": new_token() for number in range(3)}
        for name, token in tokens.items():
            granted(store, name, token)
        granted(store, new_name())
        store.set_note(Note(f"{prefix}note", "a", LONG_SECONDS))
        found = {info.name: info.token for info in store.scan(prefix)}
        assert found == tokens
        assert set(tokens) < {info.name for info in store.scan()}
