"""Locks are handed over to waiters, in order."""

from __future__ import annotations

from .._values import clock
from .._values.owner import owner_record
from .._values.tokens import new_token
from ..stores.base import Grant, Refusal
from .steps import (
    LONG_SECONDS,
    TIMEOUT_SECONDS,
    Contract,
    assert_held_by,
    new_name,
    queue,
    refused,
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
        holder, waiters = queue(self.make_store(), 3)
        for waiter in waiters:
            assert holder.release()
            holder = waiter.handed_over()
            assert assert_held_by(holder).fence == holder.grant.fence
            assert holder.grant.started is None or holder.grant.started <= clock.now()
        assert holder.release()
        assert holder.store.get(holder.name) is None

    def test_asking_again_keeps_the_position_in_the_queue(self) -> None:
        holder, waiters = queue(self.make_store(), 2)
        assert isinstance(waiters[0].waiter.ask(), Refusal)
        for waiter in waiters:
            assert holder.release()
            holder = waiter.handed_over()
            assert_held_by(holder)
        assert holder.release()

    def test_a_waiter_that_left_is_not_handed_the_lock(self) -> None:
        holder, (gone, stays) = queue(self.make_store(), 2)
        assert gone.waiter.leave() is None
        assert holder.release()
        assert stays.handed_over().release()

    def test_a_waiter_that_leaves_after_the_hand_over_gets_the_grant(self) -> None:
        holder, (following,) = queue(self.make_store(), 1)
        assert holder.release()
        grant = following.waiter.leave()
        assert grant is not None
        assert holder.store.release(holder.name, following.token, grant.proof)

    def test_clear_hands_over_to_the_next_waiter(self) -> None:
        holder, (following,) = queue(self.make_store(), 1)
        assert holder.store.clear(holder.name) is True
        assert following.handed_over().release()

    def test_a_new_caller_does_not_overtake_the_waiters(self) -> None:
        holder, (following,) = queue(self.make_store(), 1)
        assert holder.release()
        refused(holder.store, holder.name)
        assert following.handed_over().release()

    def test_wait_without_news_returns_none_in_time(self) -> None:
        _, (following,) = queue(self.make_store(), 1)
        before = clock.now()
        assert following.waiter.wait(0.05) is None
        assert clock.now() - before < TIMEOUT_SECONDS
        assert following.waiter.leave() is None
