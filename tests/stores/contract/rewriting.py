"""A lease goes on without its process, or in another one; and what is made of a note."""

from __future__ import annotations

from django_tasklock._values.owner import Owner, owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores.records import Held
from django_tasklock.testing.records import new_key
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
    """The contract of `rewrite`, and of `update_note`."""

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

    def test_an_update_writes_what_is_made_of_a_note(self) -> None:
        """Whatever its caller has seen before."""
        store, key = self.make_store(), new_key()
        longer = "{}+".format
        assert store.update_note(key, lambda _: None, LONG_SECONDS) is None
        assert store.update_note(key, lambda _: "a", LONG_SECONDS) == "a"
        for times, seen in enumerate((None, "a+", "other", ""), 1):
            assert store.update_note(key, longer, LONG_SECONDS, seen) == "a" + "+" * times
        assert store.update_note(key, lambda text: text and None, LONG_SECONDS, "a++++") == "a++++"
        assert store.get_note(key) == "a++++"
        assert store.update_note(key, lambda _: "", LONG_SECONDS) is None
        assert store.get_note(key) is None

    def test_of_many_updates_none_is_lost(self) -> None:
        store, key = self.make_store(), new_key()
        needs(store.atomic_release, "compares and writes in one step")
        made: list[str] = []

        def adds() -> None:
            for _ in range(3):
                made.append(own := new_token()[:6])
                store.update_note(key, lambda text: f"{text or ''} {own}", LONG_SECONDS)

        in_threads(4, adds)
        assert sorted((store.get_note(key) or "").split()) == sorted(made)
