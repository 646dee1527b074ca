"""``GuardedRow``: the row of one run. Celery's tasks and ``@locked`` functions go through it.

At the end: a guard whose connection to the database is cut, before its UPDATE or in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from typing import Any

import pytest
from django.db import InterfaceError, OperationalError, connections, transaction

from django_tasklock import Lease, LeaseLost, StatusConflict, locks
from django_tasklock.guards import GuardedRow, StatusGuard, mark_of
from tests.app.models import Job
from tests.app.rows import guard, job, of
from tests.conftest import ProxyTo
from tests.jobs import jobs_through_proxy
from tests.proxy import CutProxy
from tests.steps import taken

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("on_redis")]

NAME, TASK_ID = "job:1", "a message"
MARK = mark_of(TASK_ID)
CUT = (OperationalError, InterfaceError)
FENCES = pytest.mark.parametrize("fence_field", ["lock_fence", None])
HOW = pytest.mark.parametrize(
    ("how", "fence_field"),
    [
        ("under the lock", "lock_fence"), ("under the lock", None),
        ("without", "lock_fence"), ("without", None),
        # Without a fence its end is not known: see the lost leases.
        ("under a lease handed on", "lock_fence"),
    ],
)  # fmt: skip


def work(
    row: Job, lease: Lease | None, body: Callable[[], object] = lambda: None, **options: Any
) -> bool:
    """One run on the row; whether it was claimed."""
    with GuardedRow(guard(**options), row.pk, TASK_ID).claimed(lease) as claimed:
        if claimed:
            body()
        return claimed


def test_a_run_claims_its_row_and_finishes_it_and_another_has_nothing_to_do() -> None:
    # Given a row that waits for work, and a run that holds the lock
    row, lease, seen = job(), taken(NAME), list[Any]()

    # I expect the row to say during the run that it is worked on, and by whom
    assert work(row, lease, lambda: seen.append(of(row)))
    assert seen == [("working", lease.fence)]

    # I expect it to say afterwards that it is done, and a second run to find nothing to do
    assert of(row)[0] == "done"
    assert lease.release()
    assert not work(row, taken(NAME))
    assert of(row)[0] == "done"


def lease_for(how: str) -> Lease | None:
    lease = None if how == "without" else taken(NAME)
    if how == "under a lease handed on":
        assert lease is not None
        lease.detach()
    return lease


@HOW
@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (None, "done"),
        (LookupError, "failed"),
        # What interrupts a run is repeated. Of a coroutine that is closed nobody waits for the end.
        (SystemExit, "queued"),
        (GeneratorExit, "working"),
        (StatusConflict, "changed by others"),
    ],
)
def test_the_row_says_how_the_run_has_ended(
    how: str, fence_field: str | None, error: type[BaseException] | None, ends: str
) -> None:
    def body() -> None:
        if error is StatusConflict:
            Job.objects.update(status=ends)
        elif error is not None:
            raise error

    row, lease = job(), lease_for(how)
    with pytest.raises(error) if error else nullcontext():
        assert work(row, lease, body, fence_field=fence_field)
    fence = MARK if lease is None else lease.fence
    assert of(row) == (ends, fence if fence_field else None)


@FENCES
@pytest.mark.parametrize("error", [None, LookupError])
def test_the_row_of_a_run_that_lost_its_lease_is_left_to_the_next_holder(
    fence_field: str | None, error: type[Exception] | None
) -> None:
    row, lease, others = job(), taken(NAME), list[Lease]()

    def body() -> None:
        # Given a run that loses its lock, which another run takes, with the row
        assert locks.clear(NAME)
        others.append(taken(NAME))
        assert guard(fence_field=fence_field).claim(row.pk, others[0].fence)
        assert not lease.extend()
        if error is not None:
            raise error

    with pytest.raises(error or LeaseLost):
        work(row, lease, body, fence_field=fence_field)
    assert of(row) == ("working", others[0].fence if fence_field else None)


@pytest.mark.parametrize("handed_on", [False, True])
@pytest.mark.parametrize(("fence_field", "ends"), [("lock_fence", "done"), (None, "working")])
def test_without_its_lease_a_run_counts_if_the_fence_says_that_the_row_is_its_own(
    fence_field: str | None, ends: str, handed_on: bool
) -> None:
    row, lease = job(), taken(NAME)

    def body() -> None:
        if handed_on:
            lease.detach()
        else:
            assert locks.clear(NAME)
            assert not lease.extend()

    with nullcontext() if fence_field else pytest.raises(LeaseLost):
        assert work(row, lease, body, fence_field=fence_field)
    assert of(row)[0] == ends


def test_a_run_that_lost_its_lease_says_so_and_not_that_there_is_no_work() -> None:
    """Or its message would be dropped."""
    row, lease = job("working", 10**16), taken(NAME)
    assert locks.clear(NAME)
    assert not lease.extend()
    with pytest.raises(LeaseLost):
        work(row, lease)


def test_a_run_without_the_lock_does_not_finish_the_row_that_its_redelivery_has() -> None:
    row = job()
    with pytest.raises(StatusConflict):
        work(row, None, lambda: guard().claim_again(row.pk, 5, mark_of(TASK_ID)))
    assert of(row) == ("working", 5)


@FENCES
def test_without_the_lock_the_row_of_its_holder_is_no_work_and_is_left_alone(
    fence_field: str | None,
) -> None:
    row = job("working", 5)
    run = GuardedRow(guard(fence_field=fence_field), row.pk, TASK_ID)
    with suppress(LookupError), run.claimed(None) as claimed:
        assert not claimed
        raise LookupError
    assert of(row) == ("working", 5)


@FENCES
@pytest.mark.parametrize(
    ("where", "error", "under_the_lock", "without"),
    [
        ("claim", LookupError, "failed", "working"),
        ("claim", SystemExit, "queued", "working"),
        # An outage: nobody knows whether it is claimed, and it would only be waited for once more.
        ("claim", OperationalError, "working", "working"),
        ("finish", LookupError, "done", "done"),
    ],
)
def test_an_error_in_the_claim_or_the_finish_strands_no_row(
    where: str, error: type[BaseException], under_the_lock: str, without: str,
    fence_field: str | None,
) -> None:  # fmt: skip
    """Without the lock the row may be that of the lock's holder, which is left to it."""

    class Fails(StatusGuard):
        def claim(self, *args: Any) -> bool:
            return raised(super().claim(*args), "claim")

        def claim_alone(self, *args: Any) -> bool:
            return raised(super().claim_alone(*args), "claim")

        def finish(self, *args: Any) -> None:
            raised(super().finish(*args) is None, "finish")

    def raised(answer: bool, here: str) -> bool:
        if where == here:
            raise error
        return answer

    for how, ends in (("under the lock", under_the_lock), ("without", without)):
        row = job()
        with pytest.raises(error):
            work(row, lease_for(how), kind=Fails, fence_field=fence_field)
        assert of(row)[0] == ends
        locks.clear(NAME)


def test_the_runs_own_error_is_reported_if_the_row_cannot_be_changed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Away(StatusGuard):
        def fail(self, pk: Any, fence: int | None = None) -> bool:
            raise OperationalError("away")

    row = job()
    with pytest.raises(ZeroDivisionError):
        work(row, taken(NAME), lambda: 1 // 0, kind=Away)
    assert f"could not change the row {row.pk} of app.Job after an error" in caplog.text
    # I expect the next run to claim it as it is
    locks.clear(NAME)
    assert work(row, taken(NAME))


def test_a_guard_may_override_how_its_row_is_reopened() -> None:
    class Again(StatusGuard):
        def reopen(self, pk: Any, fence: int | None = None) -> bool:
            return super().reopen(pk, fence) and bool(Job.objects.update(done_count=7))

    def body() -> None:
        raise SystemExit

    row = job()
    with pytest.raises(SystemExit):
        work(row, taken(NAME), body, kind=Again)
    assert (*of(row)[:1], row.done_count) == ("queued", 7)


# ------------------------------------------------------------------------------ connections


@pytest.fixture(params=["postgres_alias", pytest.param("mariadb_alias", marks=pytest.mark.nightly)])
def proxy(request: pytest.FixtureRequest, proxy_to: ProxyTo) -> Iterator[CutProxy]:
    """Between the guards and their database, which has a table of jobs."""
    with jobs_through_proxy(request.getfixturevalue(request.param), proxy_to) as proxy:
        yield proxy


@pytest.mark.parametrize("reply_lost", [False, True])
@pytest.mark.parametrize(
    ("verb", "status"), [("finish", "done"), ("fail", "failed"), ("reopen", "queued")]
)
def test_a_row_is_claimed_and_left_though_the_connection_was_cut_before_or_in_the_update(
    proxy: CutProxy, reply_lost: bool, verb: str, status: str
) -> None:
    # Given a connection that is cut before the UPDATE, or when the UPDATE has been carried out
    def trouble() -> None:
        proxy.drop_reply(b"UPDATE") if reply_lost else proxy.cut()

    # I expect every verb to have its effect once, and to say so
    row, alone = job(), job()
    trouble()
    assert guard().claim(row.pk, 7) is True
    assert of(row) == ("working", 7)
    trouble()
    assert guard().claim_alone(alone.pk, MARK) is True
    assert of(alone) == ("working", MARK)
    trouble()
    assert guard().claim_again(alone.pk, 7, MARK) is True
    assert of(alone) == ("working", 7)
    trouble()
    assert getattr(guard(), verb)(row.pk, 7) is (None if verb == "finish" else True)
    assert of(row)[0] == status


def test_a_row_of_another_run_is_no_ones_who_asks_twice(proxy: CutProxy) -> None:
    row, later, done = job(), job("working", 9), job("done", 9)
    others = job("working", MARK - 1)
    proxy.cut()
    assert not guard().claim(later.pk, 7)
    for other in (later, done):
        proxy.cut()
        with pytest.raises(StatusConflict):
            guard().finish(other.pk, 7)
    proxy.drop_reply(b"UPDATE")
    assert not guard().claim(done.pk, 10)
    for other in (later, done, others):
        proxy.cut()
        assert not guard().claim_alone(other.pk, MARK)
        proxy.cut()
        assert not guard().claim_again(other.pk, 7, MARK)
    # Without a fence a row does not show whose it is
    proxy.drop_reply(b"UPDATE")
    assert guard(fence_field=None).claim_alone(row.pk, MARK) is False
    assert [of(each) for each in (row, later, done, others)] == [
        ("working", None), ("working", 9), ("done", 9), ("working", MARK - 1)
    ]  # fmt: skip


def test_a_database_that_stays_away_and_a_transaction_that_is_gone_are_reported(
    proxy: CutProxy,
) -> None:
    row = job()
    with proxy.away(), pytest.raises(CUT):
        guard().claim(row.pk, 7)
    assert of(row) == ("queued", None)
    # As in a `TestCase`.
    block: Any = transaction.atomic(using="cut")
    block._from_testcase = True
    proxy.cut()
    with pytest.raises(CUT), block:
        guard().claim(row.pk, 7)
    connections["cut"].close()
    assert of(row) == ("queued", None)
