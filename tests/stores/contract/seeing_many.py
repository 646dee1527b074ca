"""Many locks are described and cleared at once."""

from __future__ import annotations

from django_tasklock.testing.steps import LONG_SECONDS, granted, needs, new_name, queued, shown

from .clocks import Clocks

__all__ = ["SeeingMany"]


class SeeingMany(Clocks):
    """The contract of `get_many` and `clear_many`."""

    def test_get_many_describes_each_lock_as_get_does(self) -> None:
        store, names = self.make_store(), [new_name() for _ in range(5)]
        for name in names[1:4]:
            granted(store, name)
        found = store.get_many(names)
        assert [info and info.name for info in found] == [None, *names[1:4], None]
        for info in found[1:4]:
            assert info is not None
            alone = shown(store, info.name)
            assert (info.token, info.owner, info.fence) == (alone.token, alone.owner, alone.fence)
            assert (info.waiters, info.waiting_since) == (alone.waiters, None)
            assert info.ttl is not None
            assert alone.ttl is not None
            assert info.ttl <= LONG_SECONDS + 1
            if self.one_clock:  # Else each look may be answered by other ones of several servers.
                assert info.key == alone.key
                assert alone.ttl <= info.ttl
        assert store.get_many([]) == []

    def test_clear_many_removes_those_that_are_held_as_shown(self) -> None:
        store = self.make_store()
        holders = [granted(store) for _ in range(5)]
        names = [holder.name for holder in holders]
        seen = [info for info in store.get_many(names) if info is not None]
        # One changes hands, and one is released, after they were shown.
        for holder in holders[1:3]:
            assert holder.release()
        successor = granted(store, names[1])
        assert store.clear_many(seen) == [True, False, False, True, True]
        left = [info and info.token for info in store.get_many(names)]
        assert left == [None, successor.token, None, None, None]
        assert store.clear_many(seen) == [False] * 5
        assert store.clear_many([]) == []
        assert holders[0].release() is False

    def test_clear_many_hands_each_lock_over(self) -> None:
        store = self.make_store()
        needs(store.supports_waiting, "hands over to waiters")
        names = [granted(store).name for _ in range(3)]
        waiter = queued(store, names[1])
        seen = [info for info in store.get_many(names) if info is not None]
        assert store.clear_many(seen) == [True] * 3
        following = waiter.handed_over()
        first, second, third = store.get_many(names)
        assert second is not None
        assert (second.token, second.fence) == (following.token, following.grant.fence)
        assert first is None
        assert third is None
