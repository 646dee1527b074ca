"""Leases of a quorum are handed on while members miss it: of several adopters, one or none."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from django_tasklock import Lease, StoreUnavailable, locks
from django_tasklock._values.owner import owner_record
from django_tasklock.stores.records import Held
from tests.conftest import UseCaches
from tests.quorum import Five, quorum, use_memory
from tests.seeds import drawn_seed
from tests.steps import LONG, Meanwhile, all_of, holder, taken
from tests.waiting import until

NAME = "video:1"


@contextmanager
def without(five: Five, *numbers: int) -> Iterator[None]:
    """These members are cut off, and have their data when they are back."""
    for number in numbers:
        five.harm("cut off", number)
    try:
        yield
    finally:
        for number in numbers:
            five.mend("cut off", number)


def detached(lease: Lease) -> str:
    handle = lease.detach()
    assert handle is not None
    return handle


def adopted(handle: str, pause: float = 0.0) -> Lease | None:
    """Adopt it after a pause; None also if the store does not answer."""
    time.sleep(pause)
    try:
        return locks.adopt(handle)
    except StoreUnavailable:
        return None


def winners(handle: str, callers: int) -> list[Lease]:
    """The leases of so many who adopt at the same time."""
    return [lease for lease in all_of(*[partial(adopted, handle)] * callers) if lease]


def test_of_several_adopters_at_the_same_time_at_most_one_is_made(use_caches: UseCaches) -> None:
    use_memory(use_caches)
    made = 0
    for number in range(20):
        handle = detached(taken(f"video:{number}"))
        won = winners(handle, 4)
        assert len(won) <= 1
        assert winners(handle, 2) == []
        made += len(won)
    assert made > 0


@pytest.mark.slow
class TestFaults:
    def test_members_that_have_missed_it_do_not_adopt_it_again(self, five: Five) -> None:
        lease = taken(NAME)
        with without(five, 0, 1):
            handle = detached(lease)
            first = locks.adopt(handle)
        assert first is not None
        assert locks.adopt(handle) is None
        assert first.extend()
        assert holder(NAME).owner.pid == os.getpid()
        assert first.release()
        assert locks.get(NAME) is None

    def test_what_only_a_minority_has_detached_is_held_until_it_ends(self, five: Five) -> None:
        lease, store = taken(NAME), quorum()
        with without(five, 2, 3, 4), pytest.raises(StoreUnavailable):
            store.rewrite(NAME, Held(lease.token), LONG, owner_record(), "detached")
        assert lease.extend()
        assert locks.acquire(NAME) is None

    @pytest.mark.nightly
    def test_whatever_is_cut_while_many_adopt_never_do_two(self, five: Five) -> None:
        chance = random.Random(drawn_seed())
        for _ in range(8):
            handle = detached(taken(NAME))
            pauses = [chance.random() / 20 for _ in range(5)]
            callers = [Meanwhile(partial(adopted, handle, pause)) for pause in pauses]
            while any(caller.is_alive() for caller in callers):
                number = chance.randrange(5)
                with without(five, number, (number + chance.randint(1, 4)) % 5):
                    time.sleep(chance.random() / 20)
            won = [lease for caller in callers if (lease := caller.result())]
            assert len(won) + len(winners(handle, 2)) <= 1
            until(all_answer)
            for number in range(5):
                five.harm("emptied", number)


def all_answer() -> bool:
    """Whether each member can be called again."""
    try:
        return all(member.store.get([NAME]) for member in quorum().members)
    except StoreUnavailable:
        return False
