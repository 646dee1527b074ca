"""One of several locks is granted, in order, and none while somebody waits."""

from __future__ import annotations

from .._values.owner import owner_record
from .._values.tokens import new_token
from ..stores.base import AllHeld, BaseStore, OneOf
from .steps import LONG_SECONDS, Contract, granted, new_name

__all__ = ["TakingAny"]


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
