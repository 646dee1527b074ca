"""``until_commit``: a lock inside ``atomic()`` is released after the commit, so that the next
holder sees what this one has written."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from celery import Celery
from django.db import connection, connections, transaction
from django.test import TestCase

from django_tasklock import (
    InvalidLockConfig,
    Lease,
    LeaseLost,
    LockContext,
    LockNotAcquired,
    lock,
    locks,
)
from django_tasklock.celery import LockedTask
from django_tasklock.signals import lock_lost, lock_released
from django_tasklock.stores.base import BaseStore
from tests.agent import run_python
from tests.app.models import Job
from tests.conftest import UseRedis
from tests.inside import kept
from tests.servers import RedisServer
from tests.steps import (
    LONG,
    SOON_SECONDS,
    Meanwhile,
    all_of,
    holder,
    killed_in_child,
    sent,
    server,
    taken,
    unavailable,
)
from tests.waiting import until

NAME = "account:7"
TIMES = 200


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


on_database = pytest.mark.django_db(transaction=True)


def until_commit(name: Any = NAME, **options: Any) -> Any:
    return lock(name, ttl=LONG, until_commit=True, **options)


def is_refused() -> bool:
    """Whether another thread is refused; it is not this one, which may share the lease."""
    return Meanwhile(lambda: locks.acquire(NAME)).result() is None


def is_free_soon(*names: str) -> None:
    until(lambda: not any(map(locks.is_locked, names or [NAME])), "the release after a rollback")


ADD = f"""
import sys
from django.db import connections, transaction
from django_tasklock import lock

for _ in range({TIMES}):
    with transaction.atomic(sys.argv[1]), lock("{NAME}", wait=60, until_commit=sys.argv[1]):
        with connections[sys.argv[1]].cursor() as cursor:
            cursor.execute("SELECT coins FROM account")
            (coins,) = cursor.fetchone()
            cursor.execute(f"UPDATE account SET coins = {{coins + 1}}")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "database", ["postgres", "sqlite", pytest.param("mariadb", marks=pytest.mark.nightly)]
)
@pytest.mark.usefixtures("on_redis")
def test_of_what_two_processes_add_to_a_row_all_arrives(
    database: str, request: pytest.FixtureRequest
) -> None:
    # Given a row, and two processes that read it and write it, each time in a transaction
    alias = request.getfixturevalue(f"{database}_alias")
    with connections[alias].cursor() as cursor:
        cursor.execute("CREATE TABLE account (coins INTEGER)")
        cursor.execute("INSERT INTO account VALUES (0)")
        try:
            all_of(*[lambda: run_python(ADD, alias)] * 2)
            # I expect nothing to be lost, as half of it is where the lock ends before the commit
            cursor.execute("SELECT coins FROM account")
            assert cursor.fetchone() == (2 * TIMES,)
        finally:
            cursor.execute("DROP TABLE account")


@on_database
class TestTheEnd:
    def test_it_is_the_commit_or_the_rollback(
        self, each_store: BaseStore, sqlite_alias: str
    ) -> None:
        """Of a database that is not the locks' own: SQLite would have its one writer there."""

        def until_commit() -> LockContext[Lease]:
            return lock(NAME, ttl=LONG, until_commit=sqlite_alias)

        # Given a block in a transaction
        with transaction.atomic(sqlite_alias):
            with until_commit() as lease:
                pass
            # I expect its lock to be held after it
            assert is_refused()
            assert lease.held
        # and to be free after the commit
        assert not locks.is_locked(NAME)

        # And after a rollback, also of a block that raised nothing
        with transaction.atomic(sqlite_alias), until_commit():
            transaction.set_rollback(True, sqlite_alias)
        is_free_soon()
        with until_commit():
            assert is_refused()
        assert not locks.is_locked(NAME), "without a transaction it is the end of the block"
        until(lambda: kept() == 0, "nothing of its uses is kept")

    @pytest.mark.usefixtures("on_redis")
    def test_what_the_block_sends_on_commit_runs_after_the_release(self) -> None:
        app = Celery("orders", set_as_current=False)
        app.conf.task_always_eager = True
        ran: list[int] = []
        options: Any = {"base": LockedTask, "lock_name": "account:{pk}", "shared": False}

        def spend(pk: int) -> None:
            ran.append(pk)

        task: Any = app.task(**options)(spend)
        with transaction.atomic(), until_commit():
            task.delay_on_commit(7)
        assert ran == [7]

    @pytest.mark.usefixtures("on_redis")
    def test_a_block_that_raised_holds_its_lock_until_the_caller_has_committed(self) -> None:
        with transaction.atomic():
            with suppress(KeyError), until_commit():
                Job.objects.create()
                raise KeyError
            assert is_refused()
        assert not locks.is_locked(NAME)
        assert Job.objects.exists()

    @pytest.mark.usefixtures("on_redis")
    def test_several_locks_and_permits_end_together(self) -> None:
        names = ["seat:2", "seat:1"]
        with transaction.atomic():
            with until_commit(names, wait=1), until_commit("api", slots=2) as permit:
                pass
            assert permit.name == "api#1"
            assert {info.name for info in locks.list()} == {*names, "api#1"}
        assert locks.count() == 0

    @pytest.mark.usefixtures("on_redis")
    def test_it_cools_from_the_commit_or_from_its_error(self) -> None:
        def pay(*, fails: bool) -> None:
            with transaction.atomic(), until_commit(cooldown=600, cooldown_after_error=60):
                transaction.set_rollback(not fails)
                assert not fails

        pay(fails=False)
        is_free_soon()
        with pytest.raises(AssertionError):
            pay(fails=True)
        until(lambda: holder(NAME).cooling, "the end after a rollback")
        assert 50 < (holder(NAME).ttl or 0) <= 60
        locks.clear(NAME)
        with transaction.atomic():
            with until_commit(cooldown=600):
                pass
            assert not holder(NAME).cooling
        assert holder(NAME).cooling

    @pytest.mark.usefixtures("on_redis")
    def test_a_killed_process_leaves_neither_its_work_nor_its_lock(self) -> None:
        def work() -> None:
            with transaction.atomic(), until_commit():
                Job.objects.create()
                os.kill(os.getpid(), signal.SIGKILL)

        connections.close_all()
        killed_in_child(work)
        assert taken(NAME).held
        assert not Job.objects.exists()


@on_database
@pytest.mark.usefixtures("on_redis")
class TestTheSameLockAgain:
    def test_nested_or_one_after_the_other_is_one_lease_until_the_commit(self) -> None:
        @lock("account:{number}", until_commit=True)
        def spend(number: int) -> str:
            return str(holder(NAME).token)

        with transaction.atomic():
            with until_commit() as lease:
                assert spend(7) == lease.token
            assert spend(7) == lease.token
            with lock([NAME, "seat:1"], reentrant=True) as (same, _), lock(NAME, reentrant=True):
                assert same.token == lease.token
            with until_commit([NAME, "seat:1"]):
                pass
            assert is_refused()
            assert locks.is_locked("seat:1")
        assert locks.count() == 0

    def test_a_plain_block_around_it_in_the_transaction_ends_too_early(self) -> None:
        for reentrant in (False, True):
            with transaction.atomic(), lock(NAME, reentrant=reentrant) as outer:
                with pytest.raises(LockNotAcquired, match="until_commit=True of both"):
                    until_commit(wait=None).__enter__()
                assert outer.held
        # One that began before the transaction ends after it
        with until_commit() as outer:
            with transaction.atomic(), until_commit() as inner:
                assert inner.token == outer.token
            assert is_refused()
        assert not locks.is_locked(NAME)

    def test_of_another_database_it_ends_at_another_commit(self, sqlite_alias: str) -> None:
        with transaction.atomic(), transaction.atomic(sqlite_alias):
            with lock(NAME, until_commit=sqlite_alias):
                pass
            with pytest.raises(LockNotAcquired, match="until_commit=True of both"):
                until_commit().__enter__()
        assert not locks.is_locked(NAME)
        with transaction.atomic(sqlite_alias), until_commit():
            pass
        assert not locks.is_locked(NAME), "no transaction of its own database"

    @pytest.mark.usefixtures("no_garbage_collection")
    def test_after_a_rollback_whoever_tries_again_gets_it_soon(self) -> None:
        """Though the rolled back block is in the traceback of the error that is being handled, and
        its acquire in that of an error of redis-py, which is kept until the next collection."""

        @lock("account:{number}", ttl=LONG, wait=SOON_SECONDS, until_commit=True)
        def spend(number: int, attempt: int) -> str:
            if attempt < 5:
                raise KeyError(attempt)
            return str(holder(NAME).token)

        def tried(attempt: int = 0) -> str:
            server().script_flush()
            try:
                with transaction.atomic():
                    return spend(7, attempt)
            except KeyError:
                return tried(attempt + 1)

        # A whole transaction, or only a savepoint in one
        tried()
        is_free_soon()
        with transaction.atomic():
            Job.objects.create()
            token = tried()
            assert holder(NAME).token == token
            assert is_refused()
        assert not locks.is_locked(NAME)

    def test_a_hook_that_comes_before_the_release_shares_it(self) -> None:
        tokens: list[str] = []

        def work() -> None:
            with until_commit() as lease:
                tokens.append(lease.token)

        with transaction.atomic():
            transaction.on_commit(transaction.atomic(work))
            work()
        assert len(tokens) == 2
        assert len({*tokens}) == 1
        assert not locks.is_locked(NAME)

    def test_a_hook_that_comes_before_the_release_and_raises_costs_a_moment(self) -> None:
        """Django forgets the hooks behind it."""
        with suppress(KeyError), transaction.atomic():
            transaction.on_commit({}.popitem)
            with until_commit():
                pass
        is_free_soon()

    def test_a_savepoint_that_is_rolled_back_keeps_what_is_the_transactions(self) -> None:
        with transaction.atomic():
            with until_commit():
                pass
            with transaction.atomic(), until_commit([NAME, "seat:1"]):
                transaction.set_rollback(True)
            is_free_soon("seat:1")
            assert is_refused()
        assert not locks.is_locked(NAME)


@on_database
@pytest.mark.usefixtures("on_redis")
class TestLoss:
    def test_in_the_block_it_rolls_the_transaction_back(self) -> None:
        def cleared(lease: Lease) -> None:
            locks.clear(NAME)

        def run_out(lease: Lease) -> None:
            until(lambda: not lease.held)

        def work(lose: Callable[[Lease], None], ttl: float) -> None:
            with lock([NAME, "seat:1"], ttl=ttl, renew=False, until_commit=True) as leases:
                Job.objects.create()
                lose(leases[0])

        for lose, ttl in ((cleared, LONG), (run_out, 0.5)):
            with pytest.raises(LeaseLost), transaction.atomic():
                work(lose, ttl)
            assert not Job.objects.exists()
            is_free_soon(NAME, "seat:1")

    def test_of_a_lease_that_is_shared_too(self) -> None:
        def work() -> None:
            with until_commit() as lease:
                Job.objects.create()
            locks.clear(NAME)
            assert not lease.extend()
            until_commit().__enter__()

        with pytest.raises(LeaseLost), transaction.atomic():
            work()
        assert not Job.objects.exists()

    def test_between_two_blocks_the_second_one_rolls_it_back(self) -> None:
        """Though it has begun when nobody here knew of the loss yet."""

        def work() -> None:
            with until_commit():
                Job.objects.create()
            locks.clear(NAME)
            other.append(taken(NAME))
            with until_commit():
                Job.objects.create()

        other: list[Lease] = []
        with pytest.raises(LeaseLost), transaction.atomic():
            work()
        assert not Job.objects.exists()
        assert other[0].release()

    def test_after_the_block_it_is_told_and_nothing_is_raised(self) -> None:
        ended: list[str] = []
        with sent(lock_lost) as lost, sent(lock_released) as released, transaction.atomic():
            with until_commit([NAME, "seat:1"]):
                Job.objects.create()
                transaction.on_commit(lambda: ended.append("after it"))
            locks.clear(NAME)
        assert Job.objects.exists()
        assert ended == ["after it"]
        assert [each["lease"].name for each in lost] == [NAME]
        assert [each["lease"].name for each in released] == ["seat:1"]

    def test_an_outage_is_no_reason_to_roll_back_nor_to_raise_after_the_commit(
        self, use_redis: UseRedis, own_redis_server: RedisServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        use_redis(own_redis_server.url)
        with transaction.atomic(), until_commit():
            Job.objects.create()
            own_redis_server.stop()
        assert Job.objects.exists()
        assert f"a transaction could not release its lock {NAME} now: " in caplog.text
        unavailable(lambda: until_commit().__enter__())


@pytest.mark.usefixtures("on_redis")
class TestInTestCase(TestCase):
    """Each test is a transaction that is rolled back; the next one needs the same locks."""

    def test_it_is_held_to_the_end_of_the_test(self) -> None:
        with until_commit():
            pass
        assert is_refused()
        with transaction.atomic(), until_commit():
            pass
        assert is_refused()

    test_and_so_in_the_next_one = test_it_is_held_to_the_end_of_the_test

    def test_or_of_the_block_that_runs_what_is_done_on_commit(self) -> None:
        with self.captureOnCommitCallbacks(execute=True) as done:
            with until_commit() as lease:
                pass
            assert is_refused()
        assert not locks.is_locked(NAME)
        with until_commit() as other:
            assert other.token != lease.token
        with self.captureOnCommitCallbacks() as later, until_commit("seat:1"):
            pass
        for hook in (*later, *done):
            hook()
        assert not locks.is_locked("seat:1")


@on_database
@pytest.mark.usefixtures("on_redis")
def test_where_nobody_would_see_the_commit_it_is_an_error() -> None:
    async def work() -> None: ...

    wrong: Any = 1
    errors: dict[type[Exception], list[Callable[[], Any]]] = {
        TypeError: [
            lambda: lock(NAME, until_commit=wrong),
            lambda: until_commit()(work),
            lambda: until_commit().__aenter__().send(None),
            lambda: locks.acquire(NAME, until_commit=True),  # type: ignore[call-arg]
        ],
        InvalidLockConfig: [lambda: lock(NAME, until_commit="nowhere")],
    }
    for error, calls in errors.items():
        for call in calls:
            with pytest.raises(error, match=r"until_commit|no database 'nowhere'"):
                call()
    transaction.set_autocommit(False)
    try:
        with pytest.raises(TypeError, match=r"atomic\(\)"):
            until_commit().__enter__()
        assert not locks.is_locked(NAME)
    finally:
        connection.close()
