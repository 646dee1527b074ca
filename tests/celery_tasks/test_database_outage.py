"""The database of a guard's rows is away before a body has begun: the message waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import InterfaceError, OperationalError

from django_tasklock import lock, locks
from django_tasklock.guards import mark_of
from django_tasklock.signals import task_not_run
from django_tasklock.testing import outage
from tests.app.models import Job
from tests.celery_tasks.conftest import job_guard, status
from tests.conftest import ProxyTo
from tests.jobs import jobs_through_proxy
from tests.mailroom import Mailroom, elsewhere
from tests.proxy import CutProxy
from tests.steps import LONG, Meanwhile

AWAY = (OperationalError, InterfaceError)
GUARD = job_guard()
OPTIONS: dict[str, dict[str, Any]] = {
    "skip": {},
    "no fence": {"guard": job_guard(None)},
    "retry": {"on_conflict": "retry"},
    "coalesce": {"on_conflict": "coalesce"},
    "queued": {"unique_while": "queued"},
    "unfinished": {"unique_while": "unfinished", "on_conflict": "coalesce"},
    "debounced": {"debounce": 0.001},
    "cooling": {"lock_cooldown": LONG, "lock_cooldown_after_error": LONG},
    "alone": {"on_outage": "run"},
    "beside": {"on_conflict": "run"},
    "early": {"acks_late": False},
}


@pytest.fixture(params=["postgres_alias", pytest.param("mariadb_alias", marks=pytest.mark.nightly)])
def database(request: pytest.FixtureRequest, proxy_to: ProxyTo) -> Iterator[CutProxy]:
    """What is between the tasks and the rows."""
    with jobs_through_proxy(request.getfixturevalue(request.param), proxy_to) as proxy:
        yield proxy


def reply_lost(database: CutProxy) -> None:
    """The next claim is carried out; its reply is lost, and the database is away."""
    assert Job.objects.exists()
    database.drop_reply(b"UPDATE")
    database.refuse()


@pytest.mark.parametrize("kind", OPTIONS)
def test_52_a_message_whose_row_is_out_of_reach_comes_back_and_runs_once(
    room: Mailroom, database: CutProxy, kind: str
) -> None:
    """However often. Nothing is used up: no try, no reservation; and nothing cools."""
    runs: list[int] = []
    options = {"guard": GUARD, "acks_late": True, "lock_max_attempts": 1, **OPTIONS[kind]}
    task = room.task(lambda self, job: runs.append(job), **options)
    row = Job.objects.create()
    first = task.delay(row.pk).id
    for redelivered in (False, True, False):
        message = room.take()
        with database.away():
            assert room.deliver(message, redelivered=redelivered)[0] == "IGNORED"
            assert room.ids() == [first]
            if task.unique_while:
                assert task.delay(row.pk).id == first
        assert not locks.is_locked(f"job:{row.pk}")
        assert (status(row), runs) == ("queued", [])
    assert room.work_off() == [("SUCCESS", None)]
    assert (status(row), runs) == ("done", [row.pk])
    assert [
        key for what in ("queued", "next") for key in room.redis.keys(f"*{what} {task.name} *")
    ] == []


@pytest.mark.parametrize("lease", ["lock", "outage", "beside"])
def test_52_a_claim_whose_reply_was_lost_is_made_again(
    room: Mailroom, database: CutProxy, lease: str
) -> None:
    """With the lock and without: the row is claimed already then."""
    options = {"outage": {"on_outage": "run"}, "beside": {"on_conflict": "run"}}
    runs: list[int] = []
    task = room.task(
        lambda self, job: runs.append(job), guard=GUARD, acks_late=True, **options.get(lease, {})
    )
    row = Job.objects.create()
    task.delay(row.pk)
    message = room.take()
    reply_lost(database)
    if lease == "outage":
        with outage():
            assert room.deliver(message)[0] == "IGNORED"
    elif lease == "beside":
        with lock(f"job:{row.pk}", ttl=LONG):
            assert room.deliver(message)[0] == "IGNORED"
    else:
        assert room.deliver(message)[0] == "IGNORED"
    database.accept()
    assert status(row) == "working"
    assert (row.lock_fence == mark_of(message.id)) is (lease != "lock")
    if lease != "lock":  # For any other message it is that of a run which may live.
        other = room.task(guard=GUARD, lock_name="other")
        assert other(row.pk)["reason"] == "invalid_state"
    assert room.work_off() == [("SUCCESS", None)]
    assert (status(row), runs) == ("done", [row.pk])


def test_52_where_the_task_says_so_or_nothing_can_come_back_the_error_is_raised(
    room: Mailroom, database: CutProxy
) -> None:
    told: list[tuple[str, str]] = []

    def tell(outcome: str, reason: str, **_: Any) -> None:
        told.append((outcome, reason))

    row = Job.objects.create()
    raising = room.task(guard=GUARD, on_outage="raise", unique_while="queued")
    raising.delay(row.pk)
    task_not_run.connect(tell)
    try:
        with database.away():
            state, error = room.deliver(room.take())
            assert state == "FAILURE"
            assert isinstance(error, AWAY)
            with pytest.raises(AWAY):
                room.task(guard=GUARD, on_outage="run")(row.pk)
    finally:
        task_not_run.disconnect(tell)
    assert told == [("given_up", "outage")] * 2
    assert status(row) == "queued"
    # What it had reserved has ended
    raising.delay(row.pk)
    assert [state for state, _ in room.work_off()] == ["SUCCESS"]


def test_52_an_error_of_the_database_in_the_body_is_the_bodys(
    room: Mailroom, database: CutProxy
) -> None:
    def work(self: Any, job: int) -> None:
        with database.away():
            Job.objects.get(pk=job)

    row = Job.objects.create()
    room.task(work, guard=GUARD, acks_late=True).delay(row.pk)
    state, error = room.deliver(room.take())
    assert (state, room.waiting()) == ("FAILURE", [])
    assert isinstance(error, AWAY)
    assert status(row) == "failed"


def test_52_a_follow_up_stays_the_follow_up(room: Mailroom, database: CutProxy) -> None:
    """Calls that it stands for rely on it."""
    runs: list[str] = []

    def work(self: Any, job: int) -> None:
        runs.append(self.request.id)
        if len(runs) == 1:
            task.delay(job)
            assert elsewhere(room, room.take(task.delay(job).id))[0] == "IGNORED"

    task = room.task(work, guard=job_guard(source=["queued", "done"]), on_conflict="coalesce")
    row = Job.objects.create()
    first = task.delay(row.pk).id
    assert room.deliver(room.take())[0] == "SUCCESS"
    earlier, follow_up = room.ids()
    message = room.take(follow_up)
    with database.away():
        assert room.deliver(message)[0] == "IGNORED"
    assert room.ids() == [earlier, follow_up]
    with lock(f"job:{row.pk}", ttl=LONG):
        state, marker = Meanwhile(lambda: room.deliver(room.take(earlier))).result()
        assert (state, marker["reason"]) == ("SUCCESS", "coalesced")
    assert room.work_off() == [("SUCCESS", None)]
    assert (runs, status(row)) == ([first, follow_up], "done")
