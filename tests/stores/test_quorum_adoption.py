"""Leases of a quorum are handed on while members miss it: cut off, emptied, or slow."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import combinations

import pytest

from django_tasklock import Lease, StoreUnavailable, locks
from django_tasklock._values.handle import Handle, new_mark
from django_tasklock._values.owner import ADOPTIONS, COOLING, owner_record
from tests.quorum import Five, quorum
from tests.seeds import drawn_seed
from tests.steps import LONG, Meanwhile, all_of, holder, in_child, killed_in_child, taken
from tests.stores.contract.rewriting import marked
from tests.waiting import until

pytestmark = [pytest.mark.nightly, pytest.mark.slow]

NAME = "video:1"
ROUNDS = 8


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


def detached_without(five: Five, *numbers: int) -> Handle:
    """The handle of a lease whose detaching these members have missed, and all others know."""
    lease = taken(NAME)
    until(lambda: five.having(NAME) == set(range(5)))
    mark = new_mark()
    # At each by itself: nothing is on its way to the others.
    for member in quorum().members:
        if member.number not in numbers:
            assert member.store.rewrite(NAME, lease.token, LONG, marked(mark)) is not None
    return Handle("default", NAME, lease.token, lease.fence, mark, LONG)


def saying(five: Five, text: bytes) -> set[int]:
    """The members whose record of the lock has this text. All servers must answer."""
    found = set()
    for number in five.having(NAME):
        client = five.client(number)
        if text in client.get(client.keys(f"*lock:{NAME}")[0]):
            found.add(number)
    return found


def adopted(handle: Handle, pause: float = 0.0) -> Lease | None:
    """Adopt it after a pause, as often as it takes for the store to answer."""
    time.sleep(pause)
    for _ in range(20):
        try:
            return locks.adopt(str(handle))
        except StoreUnavailable:
            time.sleep(0.05)
    return None


def winners(handle: Handle, callers: int) -> list[Lease]:
    """The leases of so many who adopt at the same time."""
    return [lease for lease in all_of(*[lambda: adopted(handle)] * callers) if lease]


@pytest.mark.parametrize("behind", list(combinations(range(5), 2)), ids=str)
def test_members_that_have_missed_the_detaching_do_not_pass_for_an_adopter(
    five: Five, behind: tuple[int, int]
) -> None:
    handle = str(detached_without(five, *behind))
    lease = locks.adopt(handle)
    assert lease is not None
    assert lease.held
    assert locks.adopt(handle) is None
    # It is that of the adopter at each of them.
    until(lambda: saying(five, b"adoptions") == set(range(5)))
    assert lease.release()


@pytest.mark.parametrize("behind", [(0, 1), (3, 4)], ids=str)
def test_one_member_that_knows_of_the_detaching_and_two_that_have_missed_it_are_enough(
    five: Five, behind: tuple[int, int]
) -> None:
    handle = detached_without(five, *behind)
    with without(five, *sorted(set(range(5)) - {*behind, 2})):
        assert len(winners(handle, 4)) == 1
    assert locks.adopt(str(handle)) is None


def test_members_that_come_back_with_old_data_adopt_nothing_twice(five: Five) -> None:
    handle = detached_without(five, 0, 1)
    with without(five, 0, 1):
        lease = locks.adopt(str(handle))
    assert lease is not None
    # Each has the record of before the detaching, and is asked before those that know.
    assert locks.adopt(str(handle)) is None
    assert lease.extend()
    # Detached again, and missed once more.
    second = lease.detach()
    assert locks.adopt(str(handle)) is None
    third = locks.adopt(second)
    assert third is not None
    assert locks.adopt(second) is None
    assert locks.adopt(str(handle)) is None
    assert third.release()


def test_a_member_with_old_data_says_nothing_of_the_holder(five: Five) -> None:
    """Else a new caller would find the process that has detached the lease dead, and take over."""

    def take_and_end() -> list[object]:
        lease = taken(NAME)
        until(lambda: five.having(NAME) == set(range(5)))
        return [lease.token, lease.fence]

    token, fence = in_child(take_and_end)
    mark = new_mark()
    with without(five, 0, 1):
        assert in_child(lambda: quorum().rewrite(NAME, token, LONG, marked(mark)) is not None)
        lease = locks.adopt(str(Handle("default", NAME, token, fence, mark, LONG)))
    assert lease is not None
    # Renewed at the members with the old record for longer than at those with ours.
    for number in (0, 1):
        assert quorum().members[number].store.extend(NAME, token, 2 * LONG)
    with without(five, 3, 4):
        assert holder(NAME).owner.pid == os.getpid()
        assert locks.acquire(NAME) is None
    assert lease.extend()
    assert lease.release()


def test_a_lease_at_a_minority_is_not_adopted(five: Five) -> None:
    handle = detached_without(five, 0)
    for number in (2, 3, 4):
        five.harm("emptied", number)
    assert locks.adopt(str(handle)) is None


def test_what_only_a_minority_has_detached_is_held_by_its_holder(five: Five) -> None:
    token = taken(NAME).token
    until(lambda: five.having(NAME) == set(range(5)))
    with without(five, 2, 3, 4), pytest.raises(StoreUnavailable):
        quorum().rewrite(NAME, token, LONG, marked(new_mark()))
    assert quorum().extend(NAME, token, LONG)
    assert locks.acquire(NAME) is None


@pytest.mark.parametrize("alias", "abcde")
def test_a_late_detaching_replaces_no_adopter(five: Five, alias: str) -> None:
    member = quorum().members["abcde".index(alias)].store
    handle = detached_without(five)
    lease = locks.adopt(str(handle))
    assert lease is not None
    until(lambda: saying(five, b"adoptions") == set(range(5)))
    assert member.rewrite(NAME, lease.token, LONG, marked(handle.mark)) is None
    assert locks.adopt(str(handle)) is None
    cooling = marked(COOLING) | {ADOPTIONS: 1}
    assert member.rewrite(NAME, lease.token, LONG, cooling) is not None


def test_an_adopter_that_dies_half_way_is_taken_over(five: Five) -> None:
    handle = detached_without(five)
    member = quorum().members[0].store

    def begin_and_die() -> None:
        owner = owner_record() | {ADOPTIONS: 1}
        assert member.rewrite(NAME, handle.token, LONG, owner, handle.mark)
        os.kill(os.getpid(), signal.SIGKILL)

    killed_in_child(begin_and_die)
    assert locks.adopt(str(handle)) is None
    # One member names the dead adopter, the others the mark. A caller sees it in the answers of
    # whichever majority comes first: it may have to ask again. The lease itself lasts longer.
    following = until(lambda: locks.acquire(NAME, ttl=LONG), within=LONG / 2)
    assert following is not None
    assert following.token != handle.token
    assert (following.fence or 0) > (handle.fence or 0)


def test_with_any_two_at_random_cut_off_behind_or_emptied_one_of_many_adopts_it(
    five: Five,
) -> None:
    chance = random.Random(drawn_seed())
    for _ in range(ROUNDS):
        handle = detached_without(five, *chance.sample(range(5), chance.randrange(3)))
        gone = chance.sample(range(5), chance.randrange(3))
        faults = {number: chance.choice(["cut off", "emptied"]) for number in gone}
        for number, fault in faults.items():
            five.harm(fault, number)
        won = winners(handle, chance.randint(2, 5))
        assert len(won) == 1, (faults, won)
        for number, fault in faults.items():
            five.mend(fault, number)
        assert winners(handle, 2) == []
        assert holder(NAME).token == won[0].token
        assert won[0].extend()
        assert won[0].release()
        until(lambda: five.having(NAME) == set())


def test_whatever_is_cut_while_many_adopt_never_do_two(five: Five) -> None:
    chance = random.Random(drawn_seed())
    for _ in range(ROUNDS):
        handle = detached_without(five, *chance.sample(range(5), chance.randrange(3)))
        pauses = [chance.random() / 20 for _ in range(5)]
        callers = [Meanwhile(partial(adopted, handle, pause)) for pause in pauses]
        while any(caller.is_alive() for caller in callers):
            number = chance.randrange(5)
            with without(five, number, (number + chance.randint(1, 4)) % 5):
                time.sleep(chance.random() / 20)
        won = [lease for caller in callers if (lease := caller.result())]
        assert len(won) + len(winners(handle, 2)) <= 1
        until(lambda: all_answer(five))
        locks.clear(NAME)
        until(lambda: five.having(NAME) == set())


def all_answer(five: Five) -> bool:
    """Whether each member can be called again."""
    try:
        return quorum().get(NAME) is not None and five.having(NAME) <= set(range(5))
    except StoreUnavailable:
        return False
