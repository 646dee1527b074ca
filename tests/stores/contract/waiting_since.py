"""A wait queue shows since when its waiters wait."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from django_tasklock.stores.base import BaseStore, Refusal
from django_tasklock.testing.steps import Contract, granted, needs, queue, shown, until

__all__ = ["WaitingSince"]


class WaitingSince(Contract):
    """The contract of `waiters`, and of what the others show of a wait queue."""

    def test_a_waiter_that_asks_again_waits_since_its_first_question(self) -> None:
        holder, (following,) = queue(self.make_store(), 1)
        since = _waiting_since(holder.store, holder.name)
        assert since.utcoffset() is not None
        # Two machines' clocks may differ; the same instant in two time zones is an hour apart.
        assert abs(datetime.now(timezone.utc) - since) < timedelta(minutes=5)
        later = datetime.now(timezone.utc) + timedelta(seconds=0.05)
        until(lambda: datetime.now(timezone.utc) > later)
        assert isinstance(following.waiter.ask(), Refusal)
        assert _waiting_since(holder.store, holder.name) == since
        assert following.waiter.leave() is None

    def test_a_lock_shows_since_when_its_next_waiter_waits(self) -> None:
        holder, (first, second) = queue(self.make_store(), 2)
        store, name, other = holder.store, holder.name, granted(holder.store).name
        since = _waiting_since(store, name)
        held = shown(store, name)
        needs(held.waiters is not None, "counts its waiters")
        assert held.waiting_since == since
        assert [info and info.waiting_since for info in store.get_many([other, name])] == [
            None,
            since,
        ]
        if store.supports_listing:
            for infos in (store.list(name), list(store.walk(name))):
                assert [info.waiting_since for info in infos] == [since]
        assert first.waiter.leave() is None
        assert shown(store, name).waiting_since == _waiting_since(store, name) >= since
        assert second.waiter.leave() is None
        assert shown(store, name).waiting_since is None


def _waiting_since(store: BaseStore, name: str) -> datetime:
    """Since when the next waiter of a lock waits."""
    since = store.waiters(name, 1)[0].waiting_since
    needs(since is not None, "knows since when its waiters wait")
    assert since is not None
    return since
