"""A lock is handed over to those who wait for it."""

from __future__ import annotations

from .. import clock
from ..lease import new_token
from ..owner import owner_record
from ..stores.base import Grant, Refusal
from .steps import (
    LONG,
    PATIENCE,
    Contract,
    granted,
    handed_over,
    needs,
    new_name,
    standing_in_line,
)

__all__ = ["Waiting"]


class Waiting(Contract):
    """The contract of `line`, of a store with ``supports_waiting``."""

    def test_the_line_of_a_lock_that_nobody_holds_is_a_grant(self) -> None:
        store, name, token = self.make_store(), new_name(), new_token()
        line = store.line(name, token, LONG, owner_record())
        if not store.supports_waiting:
            assert line is None
            return
        assert line is not None
        grant = line.ask()
        assert isinstance(grant, Grant)
        assert store.release(name, token, grant.proof)

    def test_a_release_hands_the_lock_over_in_order(self) -> None:
        store, name, token = self.make_store(), new_name(), new_token()
        needs(store.supports_waiting, "hands over to waiters")
        proof = granted(store, name, token).proof
        waiters = [standing_in_line(store, name) for _ in range(3)]
        for next_token, line in waiters:
            assert store.release(name, token, proof)
            grant = handed_over(line)
            held = store.get(name)
            assert held is not None
            assert held.token == next_token
            assert held.fence == grant.fence
            assert grant.started is None or grant.started <= clock.now()
            token, proof = next_token, grant.proof
        assert store.release(name, token, proof)
        assert store.get(name) is None

    def test_asking_again_keeps_the_place_in_the_line(self) -> None:
        store, name, token = self.make_store(), new_name(), new_token()
        needs(store.supports_waiting, "hands over to waiters")
        proof = granted(store, name, token).proof
        first_token, first = standing_in_line(store, name)
        second_token, second = standing_in_line(store, name)
        assert isinstance(first.ask(), Refusal)
        assert store.release(name, token, proof)
        grant = handed_over(first)
        held = store.get(name)
        assert held is not None
        assert held.token == first_token
        assert store.release(name, first_token, grant.proof)
        grant = handed_over(second)
        assert store.release(name, second_token, grant.proof)

    def test_who_leaves_the_line_is_not_handed_the_lock(self) -> None:
        store, name, token = self.make_store(), new_name(), new_token()
        needs(store.supports_waiting, "hands over to waiters")
        proof = granted(store, name, token).proof
        _, gone = standing_in_line(store, name)
        stays_token, stays = standing_in_line(store, name)
        assert gone.leave() is None
        assert store.release(name, token, proof)
        grant = handed_over(stays)
        assert store.release(name, stays_token, grant.proof)

    def test_who_leaves_as_the_lock_is_handed_over_gets_the_grant(self) -> None:
        store, name, token = self.make_store(), new_name(), new_token()
        needs(store.supports_waiting, "hands over to waiters")
        proof = granted(store, name, token).proof
        next_token, line = standing_in_line(store, name)
        assert store.release(name, token, proof)
        grant = line.leave()
        assert grant is not None
        assert store.release(name, next_token, grant.proof)

    def test_clear_hands_over_to_the_line(self) -> None:
        store, name = self.make_store(), new_name()
        needs(store.supports_waiting, "hands over to waiters")
        granted(store, name)
        token, line = standing_in_line(store, name)
        assert store.clear(name) is True
        grant = handed_over(line)
        assert store.release(name, token, grant.proof)

    def test_a_new_caller_does_not_overtake_the_line(self) -> None:
        store, name, token = self.make_store(), new_name(), new_token()
        needs(store.supports_waiting, "hands over to waiters")
        proof = granted(store, name, token).proof
        next_token, line = standing_in_line(store, name)
        assert store.release(name, token, proof)
        assert isinstance(store.acquire(name, new_token(), LONG, owner_record()), Refusal)
        grant = handed_over(line)
        assert store.release(name, next_token, grant.proof)

    def test_wait_without_news_returns_none_in_time(self) -> None:
        store, name = self.make_store(), new_name()
        needs(store.supports_waiting, "hands over to waiters")
        granted(store, name)
        _, line = standing_in_line(store, name)
        before = clock.now()
        assert line.wait(0.05) is None
        assert clock.now() - before < PATIENCE
        assert line.leave() is None
