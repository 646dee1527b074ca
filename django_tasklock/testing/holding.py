"""A lease is extended, released and cleared by its token only."""

from __future__ import annotations

import time

from .._values import clock
from .._values.tokens import new_token
from ..stores.base import BaseStore
from .steps import (
    LONG_SECONDS,
    ROUNDING_SECONDS,
    Contract,
    Holder,
    assert_held_by,
    eventually_granted,
    granted,
    in_threads,
    lasts_from_now,
    needs,
    new_name,
    until,
)

__all__ = ["Holding"]


class Holding(Contract):
    """The contract of `release`, `extend` and `clear`."""

    def test_release_ends_the_lease_once(self) -> None:
        store = self.make_store()
        holder = granted(store)
        assert holder.release() is True
        assert store.find(holder.name) is None
        assert holder.release() is False
        granted(store, holder.name)
        assert store.release(new_name(), new_token()) is False

    def test_release_needs_the_token(self) -> None:
        """Who is late has that of a lease that is over."""
        late, following = _late_and_following(self.make_store())
        for token in (late.token, new_token()):
            assert late.store.release(late.name, token) is False
            assert late.store.clear(late.name, token) is False
            assert_held_by(following)

    def test_extend_needs_the_token(self) -> None:
        late, following = _late_and_following(self.make_store())
        for token in (late.token, new_token()):
            assert late.store.extend(late.name, token, 10 * LONG_SECONDS) is False
            assert_held_by(following, at_most=LONG_SECONDS)

    def test_of_many_releases_at_once_one_returns_true(self) -> None:
        store = self.make_store()
        needs(store.atomic_release, "releases in one step")
        holder = granted(store)
        answers: list[bool] = []
        in_threads(8, lambda: answers.append(holder.release()))
        assert sorted(answers) == [False] * 7 + [True]

    def test_extend_makes_the_lease_last_from_now(self) -> None:
        holder = granted(self.make_store())
        for ttl in (4 * LONG_SECONDS, LONG_SECONDS):
            assert holder.extend(ttl) is True
            lasts_from_now(holder, ttl)

    def test_an_extended_lease_outlives_its_first_ttl(self) -> None:
        store, before = self.make_store(), clock.now()
        holder = granted(store, ttl=2.0)
        assert holder.extend(LONG_SECONDS) is True
        while clock.now() < before + 2.0 + ROUNDING_SECONDS:
            assert_held_by(holder)
            time.sleep(0.1)

    def test_extend_does_not_bring_a_lease_back(self) -> None:
        store = self.make_store()
        holder = granted(store, ttl=0.05)
        until(lambda: store.find(holder.name) is None)
        assert holder.extend(LONG_SECONDS) is False
        assert store.find(holder.name) is None

    def test_clear_removes_what_holds_the_lock(self) -> None:
        store = self.make_store()
        holder = granted(store)
        assert store.clear(holder.name) is True
        assert store.find(holder.name) is None
        assert store.clear(holder.name) is False
        assert holder.extend(LONG_SECONDS) is False
        assert holder.release() is False

    def test_clear_with_a_token_removes_that_lease_only(self) -> None:
        store = self.make_store()
        holder = granted(store)
        assert store.clear(holder.name, digest="0" * 32) is False
        assert_held_by(holder)
        assert store.clear(holder.name, holder.token) is True
        assert store.find(holder.name) is None
        assert store.clear(holder.name, holder.token) is False


def _late_and_following(store: BaseStore) -> tuple[Holder, Holder]:
    """Who holds a lock no more, and who holds it now."""
    late = granted(store, ttl=0.05)
    return late, eventually_granted(store, late.name)
