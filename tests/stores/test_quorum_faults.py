"""A quorum of five whose members are killed, paused, emptied and cut off."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable
from itertools import combinations_with_replacement

import pytest

from django_tasklock import StoreUnavailable, locks
from django_tasklock._values import clock
from django_tasklock._values.owner import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores import stores
from django_tasklock.stores.base import Extension, Grant, Refusal
from tests import inside
from tests.conftest import UseCaches, use_quorum
from tests.quorum import FAULTS, SILENT, Five, quorum
from tests.steps import LONG, Meanwhile, holder, in_child, taken
from tests.waiting import until

pytestmark = pytest.mark.slow


def some(count: int) -> list[int]:
    """Some members, others in each run."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    return random.Random(seed).sample(range(5), count)


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(two, marks=() if two == ("killed", "paused") else pytest.mark.nightly)
        for two in combinations_with_replacement(FAULTS, 2)
    ],
    ids=" and ".join,
)
def test_with_any_two_members_gone_everything_works(five: Five, faults: tuple[str, str]) -> None:
    lease = taken("video:1")
    # A call returns with the third grant: if only three have it, and two of them go, it is lost.
    until(lambda: five.having("video:1") == set(range(5)))
    victims = list(zip(faults, some(2), strict=True))
    for fault, number in victims:
        five.harm(fault, number)

    assert holder("video:1").token == lease.token
    assert locks.acquire("video:1") is None
    assert lease.extend() is True
    assert [info.name for info in locks.list()] == ["video:1"]
    assert locks.count() == 1
    assert quorum().held(["video:1", "video:2"]) == {"video:1"}
    waiter = Meanwhile(lambda: locks.acquire("video:1", ttl=LONG, wait=20))
    assert lease.release() is True
    following = waiter.result(25)
    assert following is not None
    assert following.fence is not None
    assert lease.fence is not None
    assert following.fence > lease.fence
    assert holder("video:1").token == following.token
    assert holder("video:1").fence == following.fence
    assert locks.clear("video:1") is True
    assert following.extend() is False
    assert locks.get("video:1") is None

    for fault, number in victims:
        five.mend(fault, number)
    last = taken("video:1")
    assert last.fence is not None
    assert last.fence > following.fence
    until(lambda: five.having("video:1") == set(range(5)) or not last.extend())
    assert last.release() is True
    until(lambda: five.having("video:1") == set())


@pytest.mark.parametrize(
    "fault",
    [
        *(pytest.param(each, marks=pytest.mark.nightly) for each in SILENT if each != "paused"),
        "paused",
    ],
)
def test_with_three_members_silent_every_call_is_an_outage_in_bounded_time(
    five: Five, fault: str
) -> None:
    lease = taken("video:1")
    store, token, name = quorum(), new_token(), "video:1"
    victims = some(3)
    for number in victims:
        five.harm(fault, number)
    calls: dict[str, Callable[[], object]] = {
        "acquire": lambda: store.acquire(name, token, LONG, owner_record()),
        "acquire another": lambda: store.acquire("video:2", token, LONG, owner_record()),
        "extend": lambda: store.extend(name, lease.token, LONG),
        "extend_many": lambda: store.extend_many([Extension(name, lease.token, LONG)]),
        "release": lambda: store.release(name, new_token()),
        "clear": lambda: store.clear(name, new_token()),
        "get": lambda: store.get(name),
        "held": lambda: store.held([name]),
        "list": lambda: store.list(),
        "count": lambda: store.count(),
        "scan": lambda: list(store.scan()),
        "get_note": lambda: store.get_note(name),
        "reserve": lambda: store.reserve(name, "text", LONG),
    }
    for verb, call in calls.items():
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match=r"^the lock store 'default' is unavailable"):
            call()
        # Its members answer, or are given up, within a second; a list may wait for ten.
        assert time.monotonic() - began < 15, verb
    assert lease.held, "an outage is no loss"

    for number in victims:
        five.mend(fault, number)
    if fault == "killed":
        # Three are empty now: the lease has no majority any more.
        until(lambda: locks.get("video:1") is None)
        assert lease.extend() is False
    else:
        until(lambda: answers(lambda: lease.extend() is True))
        assert lease.release() is True
        # Nor is anything left of the lock that was not acquired.
        until(lambda: five.having("video:2") == set())


def answers(call: Callable[[], bool]) -> bool:
    try:
        return call()
    except StoreUnavailable:
        return False


@pytest.mark.nightly
def test_emptying_three_members_at_once_loses_the_lease(five: Five) -> None:
    lease = taken("video:1")
    until(lambda: five.having("video:1") == set(range(5)))
    for number in some(3):
        five.harm("emptied", number)
    assert lease.extend() is False
    assert not lease.held
    assert locks.get("video:1") is None


@pytest.mark.nightly
def test_a_renewed_lease_outlives_the_loss_of_all_members_one_after_the_other(five: Five) -> None:
    lease = taken("video:1", ttl=4.5, renew=True)
    until(lambda: five.having("video:1") == set(range(5)))
    for number in [*some(5), *some(5)]:
        five.harm("killed", number)
        five.mend("killed", number)
        assert locks.acquire("video:1") is None
        until(lambda: five.having("video:1") == set(range(5)))
    assert lease.held
    assert holder("video:1").token == lease.token
    assert lease.release() is True
    until(lambda: five.having("video:1") == set())


@pytest.mark.nightly
def test_what_a_paused_member_grants_too_late_is_released(five: Five) -> None:
    paused = some(2)
    for number in paused:
        five.harm("paused", number)
    for name in ("video:1", "video:2", "video:3"):
        assert taken(name).release() is True
    kept = taken("video:4")
    # Their clients have given up; what they sent is read when the servers go on.
    owed = [quorum().members[number].owed for number in paused]
    until(lambda: all(len(each) >= 3 for each in owed))
    until(lambda: not any(quorum().members[number].callers.doubtful() for number in paused))
    for number in paused:
        five.mend("paused", number)
    for name in ("video:1", "video:2", "video:3"):
        until(lambda name=name: five.having(name) == set())  # type: ignore[misc]
    until(lambda: kept.extend() and five.having("video:4") == set(range(5)))


@pytest.mark.nightly
def test_a_refused_call_leaves_nothing_at_paused_members(five: Five) -> None:
    """Three members are paused while the lock is asked for: some of them grant it later."""
    paused = some(3)
    for number in paused:
        five.harm("paused", number)
    with pytest.raises(StoreUnavailable):
        locks.acquire("video:1", ttl=LONG)
    for number in paused:
        five.mend("paused", number)
    until(lambda: five.having("video:1") == set())
    lease = taken("video:1")
    time.sleep(1.5)  # longer than what was owed to the first call is repeated
    assert len(five.having("video:1")) == 5
    assert lease.release()


@pytest.mark.nightly
def test_a_silent_member_takes_few_threads_and_no_time(five: Five) -> None:
    """A thousand locks are taken meanwhile, and none waits for it."""
    before = set(threading.enumerate())  # Those of the quorums of other tests may live on a while.
    store = quorum()
    (silent,) = some(1)
    five.harm("paused", silent)
    began = time.monotonic()
    for number in range(1000):
        token, name = new_token(), f"video:{number % 7}"
        grant = store.acquire(name, token, LONG, owner_record())
        assert isinstance(grant, Grant)
        assert store.release(name, token, grant.proof)
        assert store.members[silent].callers.living() <= store.options.threads
    # If each call had waited for the member only once, for its second: a thousand seconds.
    assert time.monotonic() - began < 100
    started = set(threading.enumerate()) - before
    ours = [thread for thread in started if thread.name == "tasklock-quorum"]
    assert len(ours) <= 5 * store.options.threads
    crew = store.members[silent].callers
    grown: list[int] = []
    until(crew.stuck)
    while not grown:
        stuck, jobs = crew.stuck(), len(crew._jobs)
        for _ in range(10):
            assert taken("video:1").release()
        if stuck and crew.stuck() and jobs >= store.options.threads:
            grown.append(len(crew._jobs) - jobs)
    assert grown[0] <= 0
    five.mend("paused", silent)
    for number in range(7):
        until(lambda number=number: five.having(f"video:{number}") == set())  # type: ignore[misc]


@pytest.mark.nightly
def test_calls_after_an_outage_of_one_member_reach_it_again(five: Five) -> None:
    (silent,) = some(1)
    five.harm("paused", silent)
    for _ in range(20):
        assert taken("video:1").release()
    five.mend("paused", silent)

    def reaches() -> bool:
        lease = taken("video:1")
        reached = silent in five.having("video:1")
        assert lease.release()
        return reached

    until(reaches)


@pytest.mark.nightly
def test_an_interrupted_release_is_made_good_when_a_majority_is_back(five: Five) -> None:
    lease = taken("video:1")
    victims = some(3)
    for number in victims:
        five.harm("paused", number)
    with pytest.raises(StoreUnavailable):
        lease.release()
    assert not lease.held
    for number in victims:
        five.mend("paused", number)
    until(lambda: five.having("video:1") == set())
    until(lambda: not inside.kept(quorum().alias))


@pytest.mark.nightly
def test_of_one_lease_nothing_is_known_and_the_others_of_its_batch_are_extended(five: Five) -> None:
    """Two members have it, two do not, and the fifth does not answer."""
    whole, split = taken("video:1"), taken("video:2")
    until(lambda: five.having("video:1") == five.having("video:2") == set(range(5)))
    for alias in "ab":
        assert stores[alias].clear("video:2")
    five.harm("killed", 4)
    batch = [Extension(each.name, each.token, LONG, each._entry.proof) for each in (whole, split)]
    assert list(quorum().extend_many(batch)) == [True, None]
    with pytest.raises(StoreUnavailable):
        split.extend()
    assert split.held
    stores["c"].clear("video:2")
    assert list(quorum().extend_many(batch)) == [True, False]
    until(lambda: stores["d"].get("video:2") is None, "what is left of a lost lease is released")


@pytest.mark.nightly
def test_an_interrupted_call_leaves_nothing_behind(five: Five) -> None:
    """As by a soft time limit: at members that have granted the lock, and at those that will."""
    assert taken("video:1").release()
    victims = some(3)
    for number in victims:
        five.harm("paused", number)

    class TimeIsUp(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise TimeIsUp

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.4)
        with pytest.raises(TimeIsUp):
            locks.acquire("video:2", ttl=LONG)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    for number in victims:
        five.mend("paused", number)
    until(lambda: five.having("video:2") == set())
    assert taken("video:2").release()


@pytest.mark.nightly
def test_slow_members_do_not_make_a_lease_longer(five: Five) -> None:
    """What is left of a lease is counted from before the first member was asked."""
    assert taken("video:1").release()  # The connections are made.
    for proxy in five.proxies:
        proxy.latency = 0.1
    began = clock.now()
    lease = taken("video:1", ttl=3.0)
    elapsed = clock.now() - began
    assert elapsed >= 0.2
    assert lease.remaining <= 3.0 - elapsed + 0.02
    for name in ("video:2", "video:3"):
        with pytest.raises(StoreUnavailable, match="later than a lease"):
            locks.acquire(name, ttl=0.15)


@pytest.mark.nightly
def test_waiters_of_two_processes_worth_of_threads_get_the_lock_each(five: Five) -> None:
    """While two members are paused; nobody is refused a lock that nobody has for long."""
    for number in some(2):
        five.harm("paused", number)

    def work() -> int:
        lease = locks.acquire("video:1", ttl=LONG, wait=60)
        assert lease is not None
        fence = lease.fence
        assert lease.release()
        assert fence is not None
        return fence

    threads = [Meanwhile(work) for _ in range(6)]
    fences = [thread.result(70) for thread in threads]
    assert len(set(fences)) == 6


@pytest.mark.nightly
def test_a_lock_that_two_have_split_is_refused_and_named(five: Five) -> None:
    """Of leases that no majority has, as two dead processes may leave them behind."""
    ours, theirs = "o" * 22, "t" * 22
    for alias in "ab":
        stores[alias].acquire("video:1", ours, LONG, owner_record())
    for alias in "cd":
        stores[alias].acquire("video:1", theirs, LONG, owner_record())
    assert locks.get("video:1") is None
    assert locks.list() == []
    assert quorum().held(["video:1"]) == {"video:1"}
    answer = quorum().acquire("video:1", new_token(), LONG, owner_record())
    assert isinstance(answer, Refusal)
    assert answer.holder.token in (ours, theirs)
    until(lambda: five.having("video:1") == {0, 1, 2, 3})
    stores["a"].release("video:1", ours)
    assert locks.acquire("video:1") is None
    stores["c"].release("video:1", theirs)
    lease = taken("video:1")
    until(lambda: five.having("video:1") == set(range(5)))
    assert lease.release()
    until(lambda: five.having("video:1") == {1, 3})


@pytest.mark.nightly
def test_what_a_dead_process_left_at_a_few_members_is_taken_over(
    five: Five, use_caches: UseCaches
) -> None:
    """It ended before they had answered its release. Two that were emptied do not count yet."""
    use_quorum(five, use_caches, LONGEST_TTL=300.0, PERSISTENT=list("abcde"))
    five.plant_age(1000.0)
    gone = in_child(owner_record)
    assert isinstance(stores["c"].acquire("video:1", new_token(), LONG, gone), Grant)
    five.harm("emptied", 0)
    five.harm("emptied", 1)
    assert locks.get("video:1") is None
    assert taken("video:1").release()
