"""A lease goes on without its process, or in another one."""

from __future__ import annotations

from typing import Any

from .._values.owner_record import ADOPTIONS, COOLING, MARK, owner_record
from .._values.tokens import new_token
from ..stores.base import BaseStore, Grant, Refusal
from .steps import (
    LONG_SECONDS,
    ROUNDING_SECONDS,
    Contract,
    granted,
    in_threads,
    needs,
    new_name,
    until,
)

__all__ = ["Rewriting"]

SHORT_SECONDS = 5.0


def marked(mark: str, **fields: Any) -> dict[str, Any]:
    """The record of an owner whose process need not live."""
    return {**owner_record(), "ttl": LONG_SECONDS, "renew": False, **fields, MARK: mark}


class Rewriting(Contract):
    """The contract of `rewrite`, for stores that have it."""

    def make_rewriting_store(self) -> BaseStore:
        store = self.make_store()
        needs(store.supports_rewrite, "can replace the owner of a lease")
        return store

    def test_a_rewritten_lease_is_the_same_lease_with_another_owner(self) -> None:
        store, name, token = self.make_rewriting_store(), new_name(), new_token()
        grant = granted(store, name, token)
        before = store.get(name)
        after = store.rewrite(name, token, SHORT_SECONDS, marked(COOLING), None, grant.proof)
        assert after is not None

        def cools() -> bool:
            info = store.get(name)
            if info is None or info.ttl is None:
                return False
            return info.cooling and info.ttl <= SHORT_SECONDS + ROUNDING_SECONDS

        until(cools)  # What a store shows may be a moment behind.
        info = store.get(name)
        assert before is not None
        assert info is not None
        assert not before.cooling
        assert (info.token, info.fence) == (token, before.fence)
        if self.one_clock:
            assert info.acquired_at == before.acquired_at
        assert (info.owner.host, info.owner.pid) == (before.owner.host, before.owner.pid)
        assert info.owner.alive() is None
        if store.supports_fence and after.fence is not None:
            assert after.fence == grant.fence

    def test_a_rewritten_lease_still_excludes(self) -> None:
        store, name, token = self.make_rewriting_store(), new_name(), new_token()
        granted(store, name, token)
        assert store.rewrite(name, token, LONG_SECONDS, marked(COOLING))
        assert not isinstance(store.acquire(name, new_token(), 1.0, owner_record()), Grant)

    def test_a_rewritten_lease_is_extended_and_released_by_its_token_and_new_proof(self) -> None:
        store, name, token = self.make_rewriting_store(), new_name(), new_token()
        granted(store, name, token)
        assert store.rewrite(name, token, LONG_SECONDS, marked("a"))
        assert store.extend(name, token, LONG_SECONDS)
        assert store.release(name, token)
        token = new_token()  # A member of a quorum may be slow to release the one before.
        grant = granted(store, name, token)
        after = store.rewrite(name, token, LONG_SECONDS, marked("a"), None, grant.proof)
        assert after is not None
        assert store.extend(name, token, LONG_SECONDS, after.proof)
        assert store.release(name, token, after.proof)
        assert store.get(name) is None

    def test_a_lease_that_was_given_up_is_rewritten_by_its_token(self) -> None:
        store, name, token = self.make_rewriting_store(), new_name(), new_token()
        assert not store.abandon_to(name, token, LONG_SECONDS, marked(COOLING))
        granted(store, name, token)
        for _ in range(2):
            assert store.abandon_to(name, token, SHORT_SECONDS, marked(COOLING))
        info = store.get(name)
        assert info is not None
        assert info.cooling
        assert info.ttl is not None
        assert info.ttl <= SHORT_SECONDS + ROUNDING_SECONDS

    def test_a_lease_that_is_over_is_not_rewritten(self) -> None:
        store, name, token = self.make_rewriting_store(), new_name(), new_token()
        # Of another token: one of several servers may be late with it, and find the lease there.
        assert store.rewrite(name, new_token(), LONG_SECONDS, marked(COOLING)) is None
        granted(store, name, token)
        assert store.rewrite(name, new_token(), LONG_SECONDS, marked(COOLING)) is None
        info = store.get(name)
        assert info is not None
        assert (info.token, info.cooling) == (token, False)

    def test_a_lease_with_another_mark_is_not_rewritten(self) -> None:
        store, name, token = self.make_rewriting_store(), new_name(), new_token()
        granted(store, name, token)
        assert store.rewrite(name, token, LONG_SECONDS, owner_record("b"), "first") is None
        assert store.rewrite(name, token, LONG_SECONDS, marked("first"))
        assert store.rewrite(name, token, LONG_SECONDS, owner_record("b"), "second") is None
        adopter = owner_record("b") | {ADOPTIONS: 1}
        assert store.rewrite(name, token, LONG_SECONDS, adopter, "first")
        info = store.get(name)
        assert info is not None
        assert (info.owner.task, info.owner.mark) == ("b", None)

    def test_a_waiter_hears_that_a_lease_was_rewritten_since_it_asked(self) -> None:
        store, name, token = self.make_rewriting_store(), new_name(), new_token()
        needs(store.supports_waiting, "hands over to waiters")
        grant = granted(store, name, token)
        waiter = store.waiter(name, new_token(), LONG_SECONDS, owner_record())
        assert waiter is not None
        assert isinstance(waiter.ask(), Refusal)
        assert store.rewrite(name, token, LONG_SECONDS, marked(COOLING), None, grant.proof)

        def hears() -> bool:
            news = waiter.wait(1.0)
            return isinstance(news, Refusal) and news.holder.cooling

        until(hears)
        waiter.quit()
        assert store.clear(name)

    def test_of_many_that_adopt_at_once_one_does(self) -> None:
        store, name, token = self.make_rewriting_store(), new_name(), new_token()
        needs(self.excludes and store.atomic_release, "compares and writes in one step")
        granted(store, name, token)
        assert store.rewrite(name, token, LONG_SECONDS, marked("handle"))
        won: list[str] = []

        def adopt() -> None:
            task = new_token()
            adopter = owner_record(task) | {ADOPTIONS: 1}
            if store.rewrite(name, token, LONG_SECONDS, adopter, "handle"):
                won.append(task)

        in_threads(8, adopt)
        info = store.get(name)
        assert info is not None
        assert won == [info.owner.task]
