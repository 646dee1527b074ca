"""The wait queues of `DatabaseStore`: rows, in order, of waiters that say that they are alive."""

from __future__ import annotations

import random
import threading
import time
from functools import partial

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from django_tasklock import locks
from django_tasklock._values.owner import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.models import WaiterRow
from django_tasklock.stores import stores
from django_tasklock.stores.base import Grant, Refusal
from django_tasklock.stores.database import DatabaseStore
from django_tasklock.stores.database.notifications import Notifications, Wakeup
from django_tasklock.stores.database.own_connection import new_connection
from django_tasklock.stores.database.queue_statements import ALIVE_SECONDS, QUEUE
from django_tasklock.stores.database.statements import TABLE
from django_tasklock.stores.database.waiter import DatabaseWaiter
from tests.agent import Agent
from tests.conftest import UseCaches
from tests.steps import LONG, Meanwhile, taken
from tests.store_cases import database_store as settings_of_store
from tests.store_cases import make_lease_table
from tests.waiting import PATIENCE, until


def queued(name: str = "video:1") -> int:
    return len(locks.waiters(name))


def rows(store: DatabaseStore) -> int:
    return int(store.run(f"SELECT COUNT(*) FROM {QUEUE}").rows[0][0])


def test_the_statements_are_for_the_table_of_the_model() -> None:
    assert WaiterRow._meta.db_table == QUEUE


def test_threads_get_the_lock_in_the_order_in_which_they_came(
    database_store: DatabaseStore,
) -> None:
    lease, order, waiters = taken("video:1"), [], []
    for number in range(5):

        def work(number: int = number) -> None:
            mine = taken("video:1", wait=PATIENCE)
            order.append(number)
            assert mine.release()

        waiters.append(Meanwhile(work))
        until(lambda: queued() == number + 1)  # noqa: B023 - called at once
    assert locks.acquire("video:1") is None
    assert lease.release()
    for waiter in waiters:
        waiter.result(PATIENCE)
    assert order == [0, 1, 2, 3, 4]
    assert rows(database_store) == 0


def test_the_waiters_are_shown_in_order(database_store: DatabaseStore) -> None:
    lease = taken("video:1")
    with Agent() as first, Agent() as second:
        for number, agent in enumerate((first, second)):
            agent.tell("acquire", name="video:1", wait=LONG)
            until(lambda: queued() == number + 1)  # noqa: B023 - called at once
        assert [owner.pid for owner in locks.waiters("video:1")] == [first.pid, second.pid]
        assert locks.waiters("video:2") == []
        assert lease.release()
        assert first.answer()["fence"] > (lease.fence or 0)
        assert [owner.pid for owner in locks.waiters("video:1")] == [second.pid]


def test_a_waiter_that_was_killed_is_passed_over_at_once(database_store: DatabaseStore) -> None:
    lease = taken("video:1")
    with Agent() as dead, Agent() as next_one:
        for number, agent in enumerate((dead, next_one)):
            agent.tell("acquire", name="video:1", wait=LONG)
            until(lambda: queued() == number + 1)  # noqa: B023 - called at once
        dead.kill()
        released = time.monotonic()
        assert lease.release()
        next_one.answer()
        assert time.monotonic() - released < ALIVE_SECONDS


def test_without_takeover_a_killed_waiter_is_passed_over_when_it_counts_as_dead(
    database_store: DatabaseStore, use_caches: UseCaches
) -> None:
    use_caches({}, {"default": settings_of_store(database_store.database, TAKEOVER=False)})
    lease = taken("video:1")
    with Agent() as dead:
        dead.tell("acquire", name="video:1", wait=LONG)
        until(lambda: queued() == 1)
        dead.kill()
        assert lease.release()
        assert locks.acquire("video:1") is None, "it is the other one's turn"
        assert not locks.is_locked("video:1")
        taken("video:1", wait=PATIENCE)


def test_a_waiter_that_gives_up_leaves_no_row(database_store: DatabaseStore) -> None:
    lease = taken("video:1")
    assert locks.acquire("video:1", wait=0.2) is None
    assert rows(database_store) == 0
    assert lease.release()


def test_a_lease_begins_when_it_is_granted(
    database_store: DatabaseStore,
) -> None:
    lease = taken("video:1")
    waiter = Meanwhile(lambda: taken("video:1", ttl=LONG, wait=PATIENCE))
    until(lambda: queued() == 1)
    time.sleep(6.0)
    assert lease.release()
    granted = waiter.result(PATIENCE)
    assert granted.remaining > LONG - 5.5


def test_a_waiter_that_was_stopped_for_long_takes_its_place_again(
    database_store: DatabaseStore,
) -> None:
    """Its row counts as dead meanwhile."""
    lease = taken("video:1")
    token = new_token()
    waiter = database_store.waiter("video:1", token, LONG, owner_record())
    assert isinstance(waiter.ask(), Refusal)
    database_store.run(f"UPDATE {QUEUE} SET alive = 0")
    assert queued() == 0
    assert database_store.sweep() == 1
    assert lease.release()
    until(lambda: isinstance(waiter.wait(0.5), Grant))
    assert rows(database_store) == 0
    assert database_store.release("video:1", token)


def test_the_holder_may_ask_again_while_others_wait(database_store: DatabaseStore) -> None:
    """As after a reply that was lost."""
    token = new_token()
    first = database_store.acquire("video:1", token, LONG, owner_record())
    assert isinstance(first, Grant)
    waiter = database_store.waiter("video:1", new_token(), LONG, owner_record())
    assert isinstance(waiter.ask(), Refusal)
    again = database_store.acquire("video:1", token, LONG, owner_record())
    assert isinstance(again, Grant)
    assert again.fence == first.fence
    waiter.quit()


def test_with_the_lock_a_waiter_has_left_the_queue(database_store: DatabaseStore) -> None:
    lease, token = taken("video:1"), new_token()
    waiter = database_store.waiter("video:1", token, LONG, owner_record())
    assert isinstance(waiter.ask(), Refusal)
    assert lease.release()
    until(lambda: isinstance(waiter.wait(0.5), Grant))
    assert rows(database_store) == 0
    assert database_store.release("video:1", token)


def test_a_waiter_that_has_the_lock_already_leaves_the_queue(
    database_store: DatabaseStore,
) -> None:
    """As after a reply that was lost, while somebody stands before it again."""
    lease, token = taken("video:1"), new_token()
    first = database_store.waiter("video:1", new_token(), LONG, owner_record())
    second = database_store.waiter("video:1", token, LONG, owner_record())
    for waiter in (first, second):
        assert isinstance(waiter.ask(), Refusal)
    database_store.run(
        f"UPDATE {TABLE} SET token = %(token)s WHERE token = %(of)s",
        {"token": token, "of": lease.token},
    )
    assert isinstance(second.ask(), Grant)
    assert rows(database_store) == 1
    first.quit()
    assert database_store.release("video:1", token)


def test_a_storm_of_threads_that_come_and_give_up(database_store: DatabaseStore) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance, inside, overlaps = random.Random(seed), threading.Lock(), []
    fences: list[int] = []

    def work(waits: list[float]) -> None:
        for wait in waits:
            lease = locks.acquire("video:1", ttl=LONG, wait=wait)
            if lease is None:
                continue
            if not inside.acquire(blocking=False):
                overlaps.append(lease.fence)
                continue
            fences.append(lease.fence or 0)
            time.sleep(0.002)
            inside.release()
            assert lease.release()

    plans = [[chance.uniform(0, 0.3) for _ in range(6)] for _ in range(8)]
    for worker in [Meanwhile(partial(work, plan)) for plan in plans]:
        worker.result(PATIENCE)
    assert overlaps == []
    assert fences == sorted(set(fences))
    assert rows(database_store) == 0
    assert taken("video:1").release()


class TestNotifications:
    """PostgreSQL tells the waiters of a process when a lock may be free."""

    @pytest.fixture
    def store(self, postgres_alias: str, use_caches: UseCaches) -> DatabaseStore:
        make_lease_table(postgres_alias)
        use_caches({}, {"default": settings_of_store(postgres_alias)})
        store = stores["default"]
        assert isinstance(store, DatabaseStore)
        return store

    @pytest.mark.parametrize("verb", ["release", "clear", "clear with a token"])
    def test_a_waiter_is_notified_when_a_lease_is_ended(
        self, store: DatabaseStore, verb: str
    ) -> None:
        lease, other = taken("video:1"), taken("video:2")
        waiter = DatabaseWaiter(store, "video:1", new_token(), LONG, {})
        assert isinstance(waiter.ask(), Refusal)
        notifications = store.notifications
        assert notifications is not None
        until(lambda: notifications.arrive)
        waiter._wakeup.clear()
        assert other.release()
        if verb == "release":
            assert lease.release()
        else:
            assert locks.clear("video:1", lease.token if "token" in verb else None)
        until(waiter._wakeup.is_set)
        assert isinstance(waiter.wait(0), Grant)

    def test_notifications_that_do_not_arrive_are_noticed(
        self, store: DatabaseStore, postgres_dsn: str
    ) -> None:
        """As behind a pooler that gives each transaction another session: here they are sent in
        another database."""

        def notify(channel: str) -> None:
            elsewhere = make_conninfo(postgres_dsn, dbname="postgres")
            with psycopg.connect(elsewhere, autocommit=True) as connection:
                connection.execute("SELECT pg_notify(%s, '')", [channel])

        notifications = Notifications(partial(new_connection, store.database, PATIENCE), notify)
        event = Wakeup()
        notifications.join("video:1", event)
        until(lambda: notifications._thread is None)
        assert not notifications.arrive
        assert event.is_set(), "whoever waits is told to look, and polls from then on"
        notifications.join("video:2", Wakeup())
        assert notifications._thread is None, "no further attempt is made at once"

    def test_waiters_poll_when_the_connection_is_lost(self, store: DatabaseStore) -> None:
        lease = taken("video:1")
        waiter = Meanwhile(lambda: taken("video:1", wait=PATIENCE))
        notifications = store.notifications
        assert notifications is not None
        until(lambda: notifications.arrive)
        notifications.close()
        until(lambda: not notifications.arrive)
        assert lease.release()
        assert waiter.result(PATIENCE).release()
