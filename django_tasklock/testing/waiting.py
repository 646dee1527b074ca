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
    shown,
)

__all__ = ["Waiting"]


class Waiting(Contract):
    """The contract of `waiter` and `waiters`, of a store with ``supports_waiting``."""

    def test_a_waiter_of_a_lock_that_is_not_held_is_granted_it(self) -> None:
        store, name, token = self.make_store(), new_name(), new_token()
        waiter = store.waiter([name], token, LONG_SECONDS, owner_record())
        if not store.supports_waiting:
            assert waiter is None
            assert store.waiters(name) == []
            return
        assert waiter is not None
        assert isinstance(waiter.ask(), Grant)
        assert store.release(name, token)

    def test_a_release_hands_the_lock_over_in_order(self) -> None:
        """Of their first questions."""
        holder, waiters = queue(self.make_store(), 3)
        assert isinstance(waiters[0].waiter.ask(), Refusal)
        for waiter in waiters:
            assert holder.release()
            refused(holder.store, holder.name)  # No new caller overtakes it.
            holder = waiter.handed_over()
            assert assert_held_by(holder).fence == holder.grant.fence
        assert holder.release()
        assert holder.store.find(holder.name) is None

    def test_clear_hands_the_lock_over(self) -> None:
        holder, (following,) = queue(self.make_store(), 1)
        assert holder.store.clear(holder.name) is True
        assert following.handed_over().release()

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
        assert grant.fence == shown(holder.store, holder.name).fence
        assert holder.store.release(holder.name, following.token)

    def test_wait_without_news_returns_none_in_time(self) -> None:
        _, (following,) = queue(self.make_store(), 1)
        before = clock.now()
        assert following.waiter.wait(0.05) is None
        assert clock.now() - before < TIMEOUT_SECONDS
        assert following.waiter.leave() is None
