"""Verbs with a default that does nothing, or that calls a required method for each lease."""

from __future__ import annotations

from django_tasklock.stores.base import Extension, Finding
from django_tasklock.testing.steps import (
    LONG_SECONDS,
    Contract,
    eventually_granted,
    granted,
    new_name,
    refused,
)

__all__ = ["OtherVerbs"]


class OtherVerbs(Contract):
    """The contract of `close_idle`, `extend_many`, `held`, `next_fence` and `check`."""

    def test_a_lease_outlives_the_connections_that_are_idle(self) -> None:
        store = self.make_store()
        holder = granted(store)
        store.close_idle()
        assert refused(store, holder.name).token == holder.token
        store.close_idle()
        assert holder.release()

    def test_a_batch_is_extended_each_on_its_own(self) -> None:
        store = self.make_store()
        holders = [granted(store) for _ in range(12)]
        for holder in holders[::3]:
            assert holder.release()
        batch = [
            Extension(holder.name, holder.token, 4 * LONG_SECONDS, holder.grant.proof)
            for holder in holders
        ]
        assert store.extend_many(batch) == [number % 3 != 0 for number in range(12)]
        assert store.extend_many([]) == []

    def test_held_returns_the_names_that_are_held(self) -> None:
        store, names = self.make_store(), [new_name() for _ in range(6)]
        assert store.held(names) == set()
        first, *_ = [granted(store, name) for name in names[:4]]
        assert first.release()
        assert store.held(names) == set(names[1:4])
        assert store.held([]) == set()

    def test_the_next_fence_is_larger_than_that_of_the_last_lease(self) -> None:
        store, name = self.make_store(), new_name()
        for turn in range(4):
            holder = eventually_granted(store, name, ttl=0.05 if turn == 1 else LONG_SECONDS)
            following = store.next_fence()
            assert following is None or following > (holder.grant.fence or 0)
            if turn == 0:
                holder.release()
            elif turn == 2:
                store.clear(name)

    def test_check_yields_findings(self) -> None:
        assert all(isinstance(found, Finding) for found in self.make_store().check())
