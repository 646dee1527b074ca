"""Many locks are described and cleared at once."""

from __future__ import annotations

from .._values.owner_record import owner_record
from .._values.tokens import new_token
from ..stores.base import Grant
from .steps import LONG_SECONDS, Contract, granted, handed_over, needs, new_name, waiting_in_queue

__all__ = ["SeeingMany"]


class SeeingMany(Contract):
    """The contract of `get_many` and `clear_many`."""

    def test_get_many_describes_each_lock_as_get_does(self) -> None:
        store, names = self.make_store(), [new_name() for _ in range(5)]
        for name in names[1:4]:
            granted(store, name)
        found = store.get_many(names)
        assert [info and info.name for info in found] == [None, *names[1:4], None]
        for info in found[1:4]:
            assert info is not None
            alone = store.get(info.name)
            assert alone is not None
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
        store, names = self.make_store(), [new_name() for _ in range(5)]
        tokens = {name: new_token() for name in names}
        proofs = {name: granted(store, name, token).proof for name, token in tokens.items()}
        shown = [info for info in store.get_many(names) if info is not None]
        # One changes hands, and one is released, after they were shown.
        successor = new_token()
        for name in names[1:3]:
            assert store.release(name, tokens[name], proofs[name])
        assert isinstance(store.acquire(names[1], successor, LONG_SECONDS, owner_record()), Grant)
        assert store.clear_many(shown) == [True, False, False, True, True]
        left = [info and info.token for info in store.get_many(names)]
        assert left == [None, successor, None, None, None]
        assert store.clear_many(shown) == [False] * 5
        assert store.clear_many([]) == []
        assert store.release(names[0], tokens[names[0]], proofs[names[0]]) is False

    def test_clear_many_hands_each_lock_over(self) -> None:
        store, names = self.make_store(), [new_name() for _ in range(3)]
        needs(store.supports_waiting, "hands over to waiters")
        for name in names:
            granted(store, name)
        token, waiter = waiting_in_queue(store, names[1])
        shown = [info for info in store.get_many(names) if info is not None]
        assert store.clear_many(shown) == [True] * 3
        grant = handed_over(waiter)
        first, second, third = store.get_many(names)
        assert second is not None
        assert (second.token, second.fence) == (token, grant.fence)
        assert first is None
        assert third is None
