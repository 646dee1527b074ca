"""One of several locks is granted, or all of them."""

from __future__ import annotations

from django_tasklock._values.owner import owner_record
from django_tasklock._values.slots import permit_names
from django_tasklock._values.tokens import new_token
from django_tasklock.stores.base import Grant, Refusal
from django_tasklock.testing.steps import (
    LONG_SECONDS,
    ContractTests,
    Granted,
    assert_held_by,
    granted,
    needs,
    new_name,
    shown,
)

__all__ = ["TakingSeveral"]


class TakingSeveral(ContractTests):
    """The contract of `acquire` for the permits of a name, and of `acquire_all`."""

    def test_the_first_free_one_of_several_permits_is_granted(self) -> None:
        store, names = self.make_store(), permit_names(new_name(), 3)
        granted(store, names[1], owner=owner_record() | {"slots": 3})
        taken = []
        for expected in names[::2]:
            token = new_token()
            for _ in range(2):  # As after a lost reply.
                grant = store.acquire(names, token, LONG_SECONDS, owner_record() | {"slots": 3})
                assert isinstance(grant, Grant)
                assert grant.name == expected
                assert bool(grant.fence) == store.supports_fence
            taken.append((expected, token))
            assert shown(store, expected).owner.slots == 3
        refusal = store.acquire(names, new_token(), LONG_SECONDS, owner_record() | {"slots": 3})
        assert isinstance(refusal, Refusal)
        assert sorted(info.name for info in refusal.holders) == names
        for name, token in taken:
            assert store.release(name, token)

    def test_several_locks_are_granted_each_with_its_own_token(self) -> None:
        store, tokens = self.make_store(), {new_name(): new_token() for _ in range(3)}
        for _ in range(2):  # As after a lost reply.
            grants = store.acquire_all(tokens, LONG_SECONDS, owner_record("videos.process"))
            if not store.puts_together:
                assert grants is None
                return
            assert isinstance(grants, list)
            assert [grant.name for grant in grants] == [*tokens]
            for (name, token), grant in zip(tokens.items(), grants, strict=True):
                info = assert_held_by(Granted(store, name, token, grant))
                assert (info.owner.task, info.fence) == ("videos.process", grant.fence)
        for name, token in tokens.items():
            assert store.release(name, token)

    def test_of_several_locks_none_is_granted_if_one_is_held(self) -> None:
        store, tokens = self.make_store(), {new_name(): new_token() for _ in range(3)}
        needs(store.puts_together, "grants several locks in one step")
        for name in tokens:
            held = granted(store, name)
            answer = store.acquire_all(tokens, LONG_SECONDS, owner_record())
            assert isinstance(answer, Refusal)
            assert [(info.name, info.token) for info in answer.holders] == [(name, held.token)]
            assert [each for each in tokens if store.find(each) is not None] == [name]
            assert held.release()
