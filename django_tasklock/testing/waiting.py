"""Locks are handed over to waiters, in order."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from .._values import clock
from .._values.owner_record import owner_record
from .._values.tokens import new_token
from ..stores.base import BaseStore, Grant, Refusal
from .steps import (
    LONG_SECONDS,
    TIMEOUT_SECONDS,
    Contract,
    granted,
    handed_over,
    needs,
    new_name,
    until,
    waiting_in_queue,
)

__all__ = ["Waiting"]


class Waiting(Contract):
    """The contract of `waiter`, of a store with ``supports_waiting``."""

    def test_a_waiter_of_a_lock_that_is_not_held_is_granted_it(self) -> None:
        store, name, token = self.make_store(), new_name(), new_token()
        waiter = store.waiter(name, token, LONG_SECONDS, owner_record())
        if not store.supports_waiting:
            assert waiter is None
            return
        assert waiter is not None
        grant = waiter.ask()
        assert isinstance(grant, Grant)
        assert store.release(name, token, grant.proof)

    def test_a_release_hands_the_lock_over_in_order(self) -> None:
        store, name, token = self.make_store(), new_name(), new_token()
        needs(store.supports_waiting, "hands over to waiters")
        proof = granted(store, name, token).proof
        waiters = [waiting_in_queue(store, name) for _ in range(3)]
        for next_token, waiter in waiters:
            assert store.release(name, token, proof)
            grant = handed_over(waiter)
            held = store.get(name)
            assert held is not None
            assert held.token == next_token
            assert held.fence == grant.fence
            assert grant.started is None or grant.started <= clock.now()
            token, proof = next_token, grant.proof
        assert store.release(name, token, proof)
        assert store.get(name) is None

    def test_asking_again_keeps_the_position_in_the_queue(self) -> None:
        store, name, token = self.make_store(), new_name(), new_token()
        needs(store.supports_waiting, "hands over to waiters")
        proof = granted(store, name, token).proof
        first_token, first = waiting_in_queue(store, name)
        second_token, second = waiting_in_queue(store, name)
        assert isinstance(first.ask(), Refusal)
        assert store.release(name, token, proof)
        grant = handed_over(first)
        held = store.get(name)
        assert held is not None
        assert held.token == first_token
        assert store.release(name, first_token, grant.proof)
        grant = handed_over(second)
        assert store.release(name, second_token, grant.proof)

    def test_a_waiter_that_left_is_not_handed_the_lock(self) -> None:
        store, name, token = self.make_store(), new_name(), new_token()
        needs(store.supports_waiting, "hands over to waiters")
        proof = granted(store, name, token).proof
        _, gone = waiting_in_queue(store, name)
        stays_token, stays = waiting_in_queue(store, name)
        assert gone.leave() is None
        assert store.release(name, token, proof)
        grant = handed_over(stays)
        assert store.release(name, stays_token, grant.proof)

    def test_a_waiter_that_leaves_after_the_hand_over_gets_the_grant(self) -> None:
        store, name, token = self.make_store(), new_name(), new_token()
        needs(store.supports_waiting, "hands over to waiters")
        proof = granted(store, name, token).proof
        next_token, waiter = waiting_in_queue(store, name)
        assert store.release(name, token, proof)
        grant = waiter.leave()
        assert grant is not None
        assert store.release(name, next_token, grant.proof)

    def test_clear_hands_over_to_the_next_waiter(self) -> None:
        store, name = self.make_store(), new_name()
        needs(store.supports_waiting, "hands over to waiters")
        granted(store, name)
        token, waiter = waiting_in_queue(store, name)
        assert store.clear(name) is True
        grant = handed_over(waiter)
        assert store.release(name, token, grant.proof)

    def test_a_new_caller_does_not_overtake_the_waiters(self) -> None:
        store, name, token = self.make_store(), new_name(), new_token()
        needs(store.supports_waiting, "hands over to waiters")
        proof = granted(store, name, token).proof
        next_token, waiter = waiting_in_queue(store, name)
        assert store.release(name, token, proof)
        assert isinstance(store.acquire(name, new_token(), LONG_SECONDS, owner_record()), Refusal)
        grant = handed_over(waiter)
        assert store.release(name, next_token, grant.proof)

    def test_a_waiter_that_asks_again_waits_since_its_first_question(self) -> None:
        store, name = self.make_store(), new_name()
        needs(store.supports_waiting, "hands over to waiters")
        granted(store, name)
        _, waiter = waiting_in_queue(store, name)
        since = _waiting_since(store, name)
        assert since.utcoffset() is not None
        # Two machines' clocks may differ; the same instant in two time zones is an hour apart.
        assert abs(datetime.now(timezone.utc) - since) < timedelta(minutes=5)
        later = datetime.now(timezone.utc) + timedelta(seconds=0.05)
        until(lambda: datetime.now(timezone.utc) > later)
        assert isinstance(waiter.ask(), Refusal)
        assert _waiting_since(store, name) == since
        assert waiter.leave() is None

    def test_a_lock_shows_since_when_its_next_waiter_waits(self) -> None:
        store, name, other = self.make_store(), new_name(), new_name()
        needs(store.supports_waiting, "hands over to waiters")
        granted(store, name)
        granted(store, other)
        _, first = waiting_in_queue(store, name)
        _, second = waiting_in_queue(store, name)
        since = _waiting_since(store, name)
        held = store.get(name)
        assert held is not None
        needs(held.waiters is not None, "counts its waiters")
        assert held.waiting_since == since
        assert [info and info.waiting_since for info in store.get_many([other, name])] == [
            None,
            since,
        ]
        if store.supports_listing:
            for infos in (
                store.list(name),
                list(store.walk(name)),
            ):
                assert [info.waiting_since for info in infos] == [since]
        assert first.leave() is None
        held = store.get(name)
        assert held is not None
        assert held.waiting_since == _waiting_since(store, name) >= since
        assert second.leave() is None
        held = store.get(name)
        assert held is not None
        assert held.waiting_since is None

    def test_wait_without_news_returns_none_in_time(self) -> None:
        store, name = self.make_store(), new_name()
        needs(store.supports_waiting, "hands over to waiters")
        granted(store, name)
        _, waiter = waiting_in_queue(store, name)
        before = clock.now()
        assert waiter.wait(0.05) is None
        assert clock.now() - before < TIMEOUT_SECONDS
        assert waiter.leave() is None


def _waiting_since(store: BaseStore, name: str) -> datetime:
    """Since when the next waiter of a lock waits."""
    since = store.waiters(name, 1)[0].waiting_since
    needs(since is not None, "knows since when its waiters wait")
    assert since is not None
    return since
