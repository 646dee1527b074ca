"""A lease goes on without its process, or in another one."""

from __future__ import annotations

from django_tasklock._values.owner import Owner, owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores.records import Held
from django_tasklock.testing.steps import (
    LONG_SECONDS,
    ContractTests,
    assert_held_by,
    granted,
    in_threads,
    needs,
    refused,
    shown,
)

__all__ = ["Rewriting"]

SHORT_SECONDS = LONG_SECONDS / 3


class Rewriting(ContractTests):
    """The contract of `rewrite`."""

    def test_a_rewritten_lease_is_the_same_lease_with_another_owner(self) -> None:
        store = self.make_store()
        needs(store.atomic_release, "compares and writes in one step")
        holder = granted(store)
        before, another = shown(store, holder.name), owner_record("videos.процесс", "id-5")
        for _ in range(2):  # As after a lost reply.
            grant = store.rewrite(holder.name, Held(holder.token), SHORT_SECONDS, another, "a")
            assert grant is not None
            assert (grant.name, grant.fence) == (holder.name, holder.grant.fence)
        info = assert_held_by(holder, at_most=SHORT_SECONDS)
        assert info.owner == Owner.from_record(another)
        assert info.fence == before.fence
        assert refused(store, holder.name).token == holder.token
        assert holder.extend(LONG_SECONDS)
        assert holder.release()
        assert store.find(holder.name) is None

    def test_of_many_that_adopt_at_once_one_does(self) -> None:
        store = self.make_store()
        needs(store.atomic_release, "compares and writes in one step")
        _, name, token, _ = granted(store)
        assert store.rewrite(name, Held(token), LONG_SECONDS, owner_record(), "detached")
        won: list[str] = []

        def adopt() -> None:
            version = new_token()
            held, owner = Held(token, "detached"), owner_record(version)
            if store.rewrite(name, held, LONG_SECONDS, owner, version):
                won.append(version)

        in_threads(8, adopt)
        assert won == [shown(store, name).owner.task]
