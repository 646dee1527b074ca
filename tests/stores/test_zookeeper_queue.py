"""The wait queues of `ZooKeeperStore`: nodes, in order, each of which watches the one before."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import time
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
from billiard.exceptions import SoftTimeLimitExceeded

from django_tasklock import LockNotAcquired, lock, locks
from django_tasklock._values.owner import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores.base import Grant, Refusal
from django_tasklock.stores.zookeeper import ZooKeeperStore
from django_tasklock.stores.zookeeper import verbs as verbs_module
from tests.agent import Agent
from tests.conftest import UseZooKeeper
from tests.steps import LONG, Meanwhile, holder, taken, waiting
from tests.waiting import PATIENCE, until
from tests.zookeepers import ZooKeeper, children, client_of


@pytest.fixture
def store(use_zookeeper: UseZooKeeper) -> ZooKeeperStore:
    return use_zookeeper()


@pytest.fixture
def other(zookeeper_server: ZooKeeper) -> Iterator[Any]:
    """Somebody else's client of the same server."""
    with client_of(zookeeper_server.hosts) as client:
        yield client


def test_threads_get_the_lock_in_the_order_in_which_they_came(
    store: ZooKeeperStore, other: Any
) -> None:
    lease, order, waiters = taken("video:1"), [], []
    for number in range(6):

        def work(number: int = number) -> None:
            mine = taken("video:1", wait=PATIENCE)
            order.append((number, mine.fence))
            assert mine.release()

        waiters.append(Meanwhile(work))
        until(lambda: waiting("video:1") == number + 1)  # noqa: B023 - called at once
    assert locks.acquire("video:1") is None
    assert lease.release()
    for waiter in waiters:
        waiter.result(PATIENCE)
    assert [number for number, _ in order] == [0, 1, 2, 3, 4, 5]
    fences = [fence or 0 for _, fence in order]
    assert fences == sorted(set(fences))
    assert children(other, store.key("video:1")) == []


@pytest.mark.nightly
def test_the_waiters_are_shown_in_order(store: ZooKeeperStore) -> None:
    lease = taken("video:1")
    with Agent() as first, Agent() as second:
        for number, agent in enumerate((first, second)):
            agent.tell("acquire", name="video:1", wait=LONG)
            until(lambda: waiting("video:1") == number + 1)  # noqa: B023 - called at once
        assert [owner.pid for owner in locks.waiters("video:1")] == [first.pid, second.pid]
        assert [info.waiters for info in locks.list()] == [2]
        assert locks.waiters("video:2") == []
        assert lease.release()
        assert first.answer()["fence"] > (lease.fence or 0)
        assert [owner.pid for owner in locks.waiters("video:1")] == [second.pid]


@pytest.mark.nightly
def test_a_release_wakes_the_next_waiter_and_nobody_else(
    own_zookeeper_server: ZooKeeper, use_zookeeper: UseZooKeeper
) -> None:
    use_zookeeper(own_zookeeper_server.hosts)
    lease, count = taken("video:1"), 20
    waiters = [Meanwhile(lambda: taken("video:1", wait=PATIENCE)) for _ in range(count)]
    until(lambda: waiting("video:1") == count)

    def packets() -> int:
        return int(own_zookeeper_server.figures()["zk_packets_received"])

    def quiet() -> bool:
        seen = packets()
        time.sleep(0.2)
        return packets() - seen <= 2  # Our own question, and perhaps a heartbeat.

    until(quiet, "each waiter has set its watch")
    before = packets()
    assert lease.release()
    (done,) = until(lambda: [waiter for waiter in waiters if not waiter.is_alive()])
    time.sleep(0.3)
    # The release, what the next one reads and writes, and what the one behind it reads when that
    # has changed: 4 requests for each that looks. A heartbeat now and then.
    assert packets() - before <= 1 + 4 + 4 + 5
    while True:
        waiters.remove(done)
        assert done.result().release()
        if not waiters:
            break
        (done,) = until(lambda: [waiter for waiter in waiters if not waiter.is_alive()])


def test_a_waiter_that_was_killed_is_passed_over_at_once(use_zookeeper: UseZooKeeper) -> None:
    """Long before its session ends."""
    use_zookeeper(SESSION_TIMEOUT=2 * PATIENCE)
    lease = taken("video:1")
    with Agent() as dead, Agent() as next_one:
        for number, agent in enumerate((dead, next_one)):
            agent.tell("acquire", name="video:1", wait=LONG)
            until(lambda: waiting("video:1") == number + 1)  # noqa: B023 - called at once
        dead.kill()
        until(lambda: waiting("video:1") == 1)
        assert lease.release()
        next_one.answer()
        assert holder("video:1").owner.pid == next_one.pid


@pytest.mark.nightly
def test_a_holder_that_had_waited_and_is_killed_is_noticed_at_once(
    use_zookeeper: UseZooKeeper,
) -> None:
    """By the next waiter, which has begun to wait for another holder."""
    use_zookeeper(SESSION_TIMEOUT=2 * PATIENCE)
    lease = taken("video:1")
    with Agent() as dead:
        dead.tell("acquire", name="video:1", wait=LONG)
        until(lambda: waiting("video:1") == 1)
        next_one = Meanwhile(lambda: taken("video:1", wait=LONG))
        until(lambda: waiting("video:1") == 2)
        assert lease.release()
        assert dead.answer()["fence"]
        dead.kill()
        assert next_one.result().release()


@pytest.mark.nightly
def test_a_killed_waiter_whose_turn_it_is_holds_nobody_up(use_zookeeper: UseZooKeeper) -> None:
    use_zookeeper(SESSION_TIMEOUT=2 * PATIENCE)
    lease = taken("video:1")
    with Agent() as dead:
        dead.tell("acquire", name="video:1", wait=LONG)
        until(lambda: waiting("video:1") == 1)
        dead.kill()
        assert lease.release()
        assert taken("video:1").release()


@pytest.mark.nightly
def test_a_killed_waiter_of_elsewhere_is_passed_over_when_its_session_ends(
    use_zookeeper: UseZooKeeper,
) -> None:
    store = use_zookeeper(SESSION_TIMEOUT=1.0, TAKEOVER=False)
    lease = taken("video:1")
    with Agent() as dead:
        dead.tell("acquire", name="video:1", wait=LONG)
        until(lambda: waiting("video:1") == 1)
        dead.kill()
        assert lease.release()
        assert isinstance(store.acquire("video:1", new_token(), LONG, owner_record()), Refusal)
        until(lambda: locks.get("video:1") is None)
        assert taken("video:1").release()


@pytest.mark.nightly
def test_a_waiter_that_does_not_take_the_lock_loses_its_position(
    store: ZooKeeperStore, other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process lives, and its session too."""
    monkeypatch.setattr(verbs_module, "HAND_OVER_SECONDS", 0.5)
    token = new_token()
    record = {"token": token, "at": time.time(), "lasts": 60.0, "waiting": True}
    node = other.create(
        f"{store.key('video:1')}/{token}.", json.dumps(record).encode(), ephemeral=True,
        sequence=True, makepath=True,
    )  # fmt: skip
    assert locks.acquire("video:1") is None
    assert holder("video:1").token == token
    assert taken("video:1", wait=PATIENCE).release()
    assert other.exists(node) is None


@pytest.mark.nightly
def test_a_waiter_that_gives_up_leaves_no_node(store: ZooKeeperStore, other: Any) -> None:
    lease = taken("video:1")
    assert locks.acquire("video:1", wait=0.2) is None
    assert len(children(other, store.key("video:1"))) == 1
    assert lease.release()


@pytest.mark.nightly
def test_a_lease_begins_when_it_is_granted(store: ZooKeeperStore) -> None:
    lease = taken("video:1")
    waiter = Meanwhile(lambda: taken("video:1", ttl=20.0, wait=PATIENCE))
    until(lambda: waiting("video:1") == 1)
    time.sleep(2.0)
    assert lease.release()
    assert waiter.result().remaining > 18.2


@pytest.mark.nightly
def test_a_waiter_asks_again_when_a_lease_that_nobody_ends_is_over(
    store: ZooKeeperStore, other: Any
) -> None:
    token = new_token()
    record = {"token": token, "at": time.time(), "lasts": 0.7}
    other.create(
        f"{store.key('video:1')}/{token}.", json.dumps(record).encode(), ephemeral=True,
        sequence=True, makepath=True,
    )  # fmt: skip
    waiters = [Meanwhile(lambda: taken("video:1", wait=PATIENCE).release()) for _ in range(3)]
    assert [waiter.result() for waiter in waiters] == [True] * 3


@pytest.mark.nightly
def test_a_waiter_whose_connection_is_cut_is_still_handed_the_lock(
    zookeeper_server: ZooKeeper, proxy_to: Any, use_zookeeper: UseZooKeeper
) -> None:
    """kazoo forgets its watches then; the waiter looks again, and sets another one."""
    proxy = proxy_to(zookeeper_server.port)
    use_zookeeper(f"127.0.0.1:{proxy.port}")
    lease = taken("video:1")
    waiter = Meanwhile(lambda: taken("video:1", wait=PATIENCE))
    until(lambda: waiting("video:1") == 1)
    for _ in range(3):
        until(proxy.cut, "a connection that is cut")
        time.sleep(0.3)
    assert lease.release()
    assert waiter.result().release()


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_calls_that_are_interrupted_leave_no_node(store: ZooKeeperStore, other: Any) -> None:
    """As by Celery's soft time limit, at any moment; and the store goes on working."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    armed = False
    raised_in: list[str] = []

    def interrupt(signum: int, frame: FrameType | None) -> None:
        if armed:
            raised_in.append("".join(traceback.format_stack(frame)))
            raise SoftTimeLimitExceeded

    before = signal.signal(signal.SIGALRM, interrupt)
    interrupted = 0
    swallowed: list[str] = []
    try:
        for turn in range(150):
            raised_in.clear()
            wait = chance.choice((0, LONG))
            # What the last turn has begun may still be under way, and given back a moment later.
            blocker = taken("video:1", wait=PATIENCE) if chance.random() < 0.5 else None
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0001, 0.008))
                with (
                    contextlib.suppress(LockNotAcquired),
                    lock("video:1", ttl=LONG, wait=wait, renew=False) as lease,
                ):
                    lease.extend(LONG)
                until(lambda: raised_in)
                swallowed.append(raised_in[0])
            except SoftTimeLimitExceeded:
                interrupted += 1
            finally:
                armed = False
                signal.setitimer(signal.ITIMER_REAL, 0)
            if blocker is not None:
                blocker.release()
            assert taken(f"other:{turn}").release(), "it works as before"
            until(lambda: children(other, store.key("video:1")) == [])
        time.sleep(1.0)
        until(lambda: children(other, store.key("video:1")) == [])
    finally:
        signal.signal(signal.SIGALRM, before)
    # Python itself drops what is raised while it deletes an object.
    print("raised, and seen by no caller:", *swallowed, sep="\n")
    assert len(swallowed) < 5, swallowed
    assert interrupted + len(swallowed) == 150


@pytest.mark.nightly
def test_a_grant_that_nobody_waits_for_any_more_is_passed_on(store: ZooKeeperStore) -> None:
    token = new_token()
    assert isinstance(store.acquire("video:1", token, LONG, owner_record()), Grant)
    gone, next_one = new_token(), new_token()
    waiters = []
    for each in (gone, next_one):
        waiters.append(store.waiter("video:1", each, LONG, owner_record()))
        assert isinstance(waiters[-1].ask(), Refusal)
    assert store.release("video:1", token)
    waiters[0].quit()
    until(lambda: isinstance(waiters[1].wait(0.1), Grant))
    assert holder("video:1").token == next_one
