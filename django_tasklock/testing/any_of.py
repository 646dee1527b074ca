"""One of several locks is granted, in order, and none while somebody waits; or all of them."""

from __future__ import annotations

from .._values.owner_record import owner_record
from .._values.tokens import new_token
from ..stores.base import AllHeld, BaseStore, OneOf, Refusal
from .steps import LONG_SECONDS, Contract, granted, new_name

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
            holder = store.get(answer.name)
            assert holder is not None
            assert holder.owner.slots == len(names)
            assert bool(answer.grant.fence) == store.supports_fence
        assert store.get(gate) is None

    def test_a_refusal_describes_what_holds_each(self) -> None:
        store, gate, names = self.make_store(), new_name(), [new_name() for _ in range(2)]
        for name in names:
            granted(store, name)
        answer = asked(store, names, gate)
        assert isinstance(answer, AllHeld)
        assert [info.name for info in answer.holders] == names
        assert answer.gate is None

    def test_none_is_granted_while_somebody_holds_the_gate(self) -> None:
        store, gate, names = self.make_store(), new_name(), [new_name() for _ in range(2)]
        token = new_token()
        granted(store, gate, token)
        answer = asked(store, names, gate)
        assert isinstance(answer, AllHeld)
        assert answer.gate is not None
        assert answer.gate.token == token
        assert store.release(gate, token)
        assert isinstance(asked(store, names, gate), OneOf)


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
            holder = store.get(name)
            assert holder is not None
            assert (holder.token, holder.owner.task) == (token, "videos.process")
            assert (holder.ttl or 0) > LONG_SECONDS / 2
            assert store.release(name, token, grant.proof)
            assert store.get(name) is None

    def test_none_is_granted_if_one_is_held(self) -> None:
        store, tokens = self.make_store(), {new_name(): new_token() for _ in range(3)}
        for held in tokens:
            token = new_token()
            granted(store, held, token)
            answer = store.acquire_all(tokens, LONG_SECONDS, owner_record())
            if answer is None:
                return
            assert isinstance(answer, Refusal)
            assert (answer.holder.name, answer.holder.token) == (held, token)
            assert [name for name in tokens if store.get(name) is not None] == [held]
            assert store.release(held, token)
