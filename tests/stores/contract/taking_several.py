"""One of several locks is granted, in order, and none while somebody waits; or all of them."""

from __future__ import annotations

from django_tasklock._values.owner import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores.base import AllHeld, BaseStore, OneOf, Refusal
from django_tasklock.testing.steps import LONG_SECONDS, Contract, granted, new_name, shown

__all__ = ["TakingAll", "TakingAny"]


def asked(store: BaseStore, names: list[str], gate: str) -> OneOf | AllHeld:
    owner = owner_record("videos.process", "id-1") | {"slots": len(names)}
    return store.acquire_any(names, gate, new_token(), LONG_SECONDS, owner)


class TakingAny(Contract):
    """The contract of `acquire_any`."""

    def test_the_first_free_one_of_several_is_granted(self) -> None:
        store, gate, names = self.make_store(), new_name(), [new_name() for _ in range(3)]
        granted(store, names[1])
        answers = [asked(store, names, gate) for _ in range(2)]
        assert [answer.name for answer in answers if isinstance(answer, OneOf)] == names[::2]
        for answer in answers:
            assert isinstance(answer, OneOf)
            assert shown(store, answer.name).owner.slots == len(names)
            assert bool(answer.grant.fence) == store.supports_fence
        assert store.get(gate) is None

    def test_a_refusal_describes_what_holds_each(self) -> None:
        store, gate = self.make_store(), new_name()
        names = [granted(store).name for _ in range(2)]
        answer = asked(store, names, gate)
        assert isinstance(answer, AllHeld)
        assert [info.name for info in answer.holders] == names
        assert answer.gate is None

    def test_none_is_granted_while_somebody_holds_the_gate(self) -> None:
        store, names = self.make_store(), [new_name() for _ in range(2)]
        gate = granted(store)
        answer = asked(store, names, gate.name)
        assert isinstance(answer, AllHeld)
        assert answer.gate is not None
        assert answer.gate.token == gate.token
        assert store.release(gate.name, gate.token)
        assert isinstance(asked(store, names, gate.name), OneOf)


class TakingAll(Contract):
    """The contract of `acquire_all`, which many stores do not have."""

    def test_all_are_granted_each_with_its_own_token(self) -> None:
        store, tokens = self.make_store(), {new_name(): new_token() for _ in range(3)}
        grants = store.acquire_all(tokens, LONG_SECONDS, owner_record("videos.process"))
        if grants is None:
            return
        assert not isinstance(grants, Refusal)
        assert len(grants) == len(tokens)
        fences = {grant.fence for grant in grants}
        assert len(fences) == (len(tokens) if store.supports_fence else 1)
        if store.supports_listing:
            assert store.count(next(iter(tokens))) == 1
        for (name, token), grant in zip(tokens.items(), grants, strict=True):
            holder = shown(store, name)
            assert (holder.token, holder.owner.task) == (token, "videos.process")
            assert (holder.ttl or 0) > LONG_SECONDS / 2
            assert store.release(name, token, grant.proof)
            assert store.get(name) is None

    def test_none_is_granted_if_one_is_held(self) -> None:
        store, tokens = self.make_store(), {new_name(): new_token() for _ in range(3)}
        for name in tokens:
            held = granted(store, name)
            answer = store.acquire_all(tokens, LONG_SECONDS, owner_record())
            if answer is None:
                return
            assert isinstance(answer, Refusal)
            assert (answer.holder.name, answer.holder.token) == (name, held.token)
            assert [each for each in tokens if store.get(each) is not None] == [name]
            assert store.release(name, held.token)
