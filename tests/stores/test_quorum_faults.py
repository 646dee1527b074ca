"""A quorum of five Redis servers that are killed, paused, emptied and cut off."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from functools import partial
from itertools import combinations_with_replacement

import pytest

from django_tasklock import Lease, StoreUnavailable, locks
from django_tasklock.stores import stores
from django_tasklock.stores.base import Extension, Grant, Refusal
from django_tasklock.stores.records import Held
from tests.conftest import UseCaches
from tests.inside import new_token, owner_record
from tests.quorum import FAULTS, SILENT, Five, given_to, quorum, use_quorum
from tests.seeds import drawn_seed
from tests.steps import LONG, Meanwhile, all_of, answered, holder, in_child, taken
from tests.waiting import until

pytestmark = pytest.mark.slow

ALL = {0, 1, 2, 3, 4}


def some(count: int) -> list[int]:
    """Some members, others in each run."""
    return random.Random(drawn_seed()).sample(range(5), count)


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(two, marks=() if two == ("killed", "paused") else pytest.mark.nightly)
        for two in combinations_with_replacement(FAULTS, 2)
    ],
    ids=" and ".join,
)
def test_with_any_two_members_gone_everything_works(five: Five, faults: tuple[str, str]) -> None:
    # Given a lease, and two members of five that are lost
    lease = taken("video:1")
    victims = list(zip(faults, some(2), strict=True))
    for fault, number in victims:
        five.harm(fault, number)

    # I expect every verb to do what it does with all five
    assert holder("video:1").token == lease.token
    assert locks.acquire("video:1") is None
    assert lease.extend() is True
    assert [info.name for info in locks.list()] == ["video:1"]
    assert locks.count() == 1
    waiter = Meanwhile(lambda: locks.acquire("video:1", ttl=LONG, wait=20))
    assert lease.release() is True
    following = waiter.result(25)
    assert following is not None
    assert (following.fence or 0) > (lease.fence or 0)
    assert holder("video:1").token == following.token
    assert holder("video:1").fence == following.fence
    assert locks.clear("video:1") is True
    assert following.extend() is False
    assert locks.get("video:1") is None

    # And those that are back to have a later lease soon, if nothing of an earlier one is left
    for fault, number in victims:
        five.mend(fault, number)
    last = taken("video:1")
    assert (last.fence or 0) > (following.fence or 0)
    until(lambda: last.extend() and len(five.having("video:1")) == 5)
    assert last.release() is True


def test_a_member_that_was_late_removes_what_was_released_meanwhile(five: Five) -> None:
    lease = taken("video:1")
    five.harm("paused", 0)
    for _ in range(2):  # It is found to be slow, and has a question that waits.
        assert lease.extend()
    assert lease.release()
    five.mend("paused", 0)
    until(lambda: not five.having("video:1"))


@pytest.mark.parametrize(
    "fault",
    [pytest.param(each, marks=() if each == "paused" else pytest.mark.nightly) for each in SILENT],
)
def test_with_three_members_silent_every_call_is_an_outage_that_names_them(
    five: Five, use_caches: UseCaches, fault: str
) -> None:
    # A list asks one member after the other, and gives up each after its SOCKET_TIMEOUT.
    use_quorum(five, use_caches, socket=0.8)
    lease = taken("video:1")
    store, name = quorum(), "video:1"
    victims = some(3)
    for number in victims:
        five.harm(fault, number)
    calls: list[Callable[[], object]] = [
        lambda: ask(name),
        lambda: ask("video:2"),
        lambda: store.extend(name, lease.token, LONG),
        lambda: store.release(name, new_token()),
        lambda: store.clear(name, new_token()),
        lambda: store.find(name),
        store.count,
        lambda: store.reserve(name, "text", LONG),
    ]
    for call in calls:
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match="2 of its 5 members answered") as caught:
            call()
        assert {each.split(":")[0].strip() for each in caught.value.reason.split(";")[1:]} == {
            "abcde"[number] for number in victims
        }
        assert time.monotonic() - began < 10
    assert list(store.extend_many([Extension(name, lease.token, LONG)])) == [None]
    assert lease.held, "an outage is no loss"

    for number in victims:
        five.mend(fault, number)
    if fault == "killed":
        # Three are empty now: the lease has no majority any more.
        until(lambda: not answered(lease.extend))
    else:
        until(lambda: answered(lease.extend))
        assert lease.release() is True


def test_a_silent_member_delays_few_calls(five: Five) -> None:
    """It is waited for until it was late once, and again only after it was in time."""
    (silent,) = some(1)
    five.harm("paused", silent)
    store, late = quorum(), 0
    for number in range(200):
        began = time.monotonic()
        assert taken(f"v:{number}").release()
        late += time.monotonic() - began > store.timeout * 0.9
    assert late <= 2
    five.mend("paused", silent)

    def reaches() -> bool:
        lease = taken("video:1")
        reached = silent in five.having("video:1")
        assert lease.release()
        return reached

    until(reaches)


def test_a_renewed_lease_outlives_the_loss_of_all_members_two_at_a_time(five: Five) -> None:
    lease = taken("video:1", ttl=4.5, renew=True)
    first, second, third, fourth, fifth = some(5)
    for lost in ((first, second), (third, fourth), (fifth, first)):
        for number in lost:
            five.harm("killed", number)
            five.mend("killed", number)
        assert locks.acquire("video:1") is None
        until(lambda: five.having("video:1") == ALL)
    assert lease.held
    assert holder("video:1").token == lease.token
    assert lease.release() is True
    assert five.having("video:1") == set()


def test_a_restarted_member_counts_after_the_longest_ttl(five: Five, use_caches: UseCaches) -> None:
    """It may have forgotten a lease."""
    use_quorum(five, use_caches, LONGEST_TTL=3.0, ttl=2.0)
    # All five were started a moment ago.
    until(lambda: "member_waits" not in {each.id for each in quorum().check()})
    # Three have the lease, and two do not know of it.
    given_to("abc", "video:1", "h" * 22, 3.0)
    five.harm("killed", 0)
    five.mend("killed", 0)
    assert "member_waits" in [each.id for each in quorum().check()]
    answer = ask("video:1")
    assert isinstance(answer, Refusal)
    assert answer.holder.token == "h" * 22
    # The others are a majority without it, until one of them is away.
    assert isinstance(ask("video:2"), Grant)
    five.harm("killed", 4)
    five.harm("killed", 3)
    with pytest.raises(StoreUnavailable, match=r"a: it was started lately, and counts in \d s"):
        ask("video:3")
    assert five.client(0).keys("*lock:video:3") == [], "its grant is taken back"
    until(lambda: isinstance(answered(lambda: ask("video:3")), Grant))


def ask(name: str) -> Grant | Refusal:
    return quorum().acquire([name], new_token(), 0.5, owner_record())


@pytest.mark.nightly
def test_what_a_dead_process_left_at_a_few_members_is_taken_over(five: Five) -> None:
    """It ended before they had answered its release; and two members are away."""
    gone = in_child(owner_record)
    assert isinstance(stores["c"].acquire(["video:1"], new_token(), LONG, gone), Grant)
    five.harm("cut off", 0)
    five.harm("killed", 1)
    assert taken("video:1").release()


NAME = "video:1"


def detached(name: str = NAME) -> str:
    """The handle of a new lease."""
    handle = taken(name).detach()
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


def test_members_that_have_missed_it_do_not_adopt_it_again(five: Five) -> None:
    lease = taken(NAME)
    with five.without(0, 1):
        handle = lease.detach()
        first = locks.adopt(handle)
    assert first is not None
    assert locks.adopt(handle) is None
    assert first.extend()
    assert holder(NAME).owner.pid == os.getpid()
    assert first.release()
    assert locks.get(NAME) is None


def test_what_only_a_minority_has_detached_is_held_until_it_ends(five: Five) -> None:
    lease, store = taken(NAME), quorum()
    with five.without(2, 3, 4), pytest.raises(StoreUnavailable):
        store.rewrite(NAME, Held(lease.token), LONG, owner_record(), "detached")
    assert lease.extend()
    assert locks.acquire(NAME) is None


@pytest.mark.nightly
def test_whatever_is_cut_while_many_adopt_never_do_two(five: Five) -> None:
    chance = random.Random(drawn_seed())
    for _ in range(8):
        handle = detached()
        pauses = [chance.random() / 20 for _ in range(5)]
        callers = [Meanwhile(partial(adopted, handle, pause)) for pause in pauses]
        while any(caller.is_alive() for caller in callers):
            number = chance.randrange(5)
            with five.without(number, (number + chance.randint(1, 4)) % 5):
                time.sleep(chance.random() / 20)
        won = [lease for caller in callers if (lease := caller.result())]
        assert len(won) + len(winners(handle, 2)) <= 1
        for number, member in enumerate(quorum().members):
            answered(partial(member.store.get, [NAME]))
            five.harm("emptied", number)
