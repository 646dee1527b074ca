"""A lease goes on without its process, or in another one."""

from __future__ import annotations

from typing import Any

from django_tasklock._values.owner import ADOPTIONS, COOLING, MARK, owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores.base import BaseStore, Grant, Refusal
from django_tasklock.testing.steps import (
    LONG_SECONDS,
    ROUNDING_SECONDS,
    Holder,
    assert_held_by,
    granted,
    in_threads,
    needs,
    new_name,
    queued,
    refused,
    shown,
    until,
)

from .clocks import Clocks

__all__ = ["Rewriting"]

SHORT_SECONDS = 5.0


def marked(mark: str, **fields: Any) -> dict[str, Any]:
    """The record of an owner whose process need not live."""
    return {**owner_record(), "ttl": LONG_SECONDS, "renew": False, **fields, MARK: mark}


class Rewriting(Clocks):
    """The contract of `rewrite`, for stores that have it."""

    def make_rewriting_store(self) -> BaseStore:
        store = self.make_store()
        needs(store.supports_rewrite, "can replace the owner of a lease")
        return store

    def test_a_rewritten_lease_is_the_same_lease_with_another_owner(self) -> None:
        store = self.make_rewriting_store()
        holder = granted(store)
        before = shown(store, holder.name)
        after = rewritten(holder, COOLING, SHORT_SECONDS)

        def cools() -> bool:
            info = store.get(holder.name)
            if info is None or info.ttl is None:
                return False
            return info.cooling and info.ttl <= SHORT_SECONDS + ROUNDING_SECONDS

        until(cools)  # What a store shows may be a moment behind.
        info = assert_held_by(holder)
        assert not before.cooling
        assert info.fence == before.fence
        if self.one_clock:
            assert info.acquired_at == before.acquired_at
        assert (info.owner.host, info.owner.pid) == (before.owner.host, before.owner.pid)
        assert info.owner.alive() is None
        if store.supports_fence and after.grant.fence is not None:
            assert after.grant.fence == holder.grant.fence

    def test_a_rewritten_lease_still_excludes(self) -> None:
        store = self.make_rewriting_store()
        holder = granted(store)
        assert store.rewrite(holder.name, holder.token, LONG_SECONDS, marked(COOLING))
        refused(store, holder.name)

    def test_a_rewritten_lease_is_extended_and_released_by_its_token_and_new_proof(self) -> None:
        store = self.make_rewriting_store()
        holder = granted(store)
        assert store.rewrite(holder.name, holder.token, LONG_SECONDS, marked("a"))
        assert store.extend(holder.name, holder.token, LONG_SECONDS)
        assert store.release(holder.name, holder.token)
        # A member of a quorum may be slow to release the one before.
        after = rewritten(granted(store, holder.name), "a", LONG_SECONDS)
        assert after.extend(LONG_SECONDS)
        assert after.release()
        assert store.get(holder.name) is None

    def test_a_lease_that_was_given_up_is_rewritten_by_its_token(self) -> None:
        store, name, token = self.make_rewriting_store(), new_name(), new_token()
        assert not store.abandon_to(name, token, LONG_SECONDS, marked(COOLING))
        holder = granted(store, name, token)
        for _ in range(2):
            assert store.abandon_to(name, token, SHORT_SECONDS, marked(COOLING))
        assert assert_held_by(holder, at_most=SHORT_SECONDS).cooling

    def test_a_lease_that_is_over_is_not_rewritten(self) -> None:
        store, name = self.make_rewriting_store(), new_name()
        # Of another token: one of several servers may be late with it, and find the lease there.
        assert store.rewrite(name, new_token(), LONG_SECONDS, marked(COOLING)) is None
        holder = granted(store, name)
        assert store.rewrite(name, new_token(), LONG_SECONDS, marked(COOLING)) is None
        assert not assert_held_by(holder).cooling

    def test_a_lease_with_another_mark_is_not_rewritten(self) -> None:
        store = self.make_rewriting_store()
        _, name, token, _ = granted(store)
        assert store.rewrite(name, token, LONG_SECONDS, owner_record("b"), "first") is None
        assert store.rewrite(name, token, LONG_SECONDS, marked("first"))
        assert store.rewrite(name, token, LONG_SECONDS, owner_record("b"), "second") is None
        adopter = owner_record("b") | {ADOPTIONS: 1}
        assert store.rewrite(name, token, LONG_SECONDS, adopter, "first")
        owner = shown(store, name).owner
        assert (owner.task, owner.mark) == ("b", None)

    def test_a_waiter_hears_that_a_lease_was_rewritten_since_it_asked(self) -> None:
        store = self.make_rewriting_store()
        needs(store.supports_waiting, "hands over to waiters")
        holder = granted(store)
        waiter = queued(store, holder.name).waiter
        rewritten(holder, COOLING, LONG_SECONDS)

        def hears() -> bool:
            news = waiter.wait(1.0)
            return isinstance(news, Refusal) and news.holder.cooling

        until(hears)
        waiter.quit()
        assert store.clear(holder.name)

    def test_of_many_that_adopt_at_once_one_does(self) -> None:
        store = self.make_rewriting_store()
        needs(self.excludes and store.atomic_release, "compares and writes in one step")
        _, name, token, _ = granted(store)
        assert store.rewrite(name, token, LONG_SECONDS, marked("handle"))
        won: list[str] = []

        def adopt() -> None:
            task = new_token()
            adopter = owner_record(task) | {ADOPTIONS: 1}
            if store.rewrite(name, token, LONG_SECONDS, adopter, "handle"):
                won.append(task)

        in_threads(8, adopt)
        assert won == [shown(store, name).owner.task]


def rewritten(holder: Holder, mark: str, ttl: float) -> Holder:
    """The same lease with an owner that has this mark, and with its new proof."""
    store, name, token, before = holder
    after = store.rewrite(name, token, ttl, marked(mark), None, before.proof)
    assert isinstance(after, Grant)
    return holder._replace(grant=after)
