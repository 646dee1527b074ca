"""One call of the store fails at each place of a message's life: its body runs once. And the
database of a guard's rows is away before a body has begun: the message waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
from celery.exceptions import SoftTimeLimitExceeded
from django.db import InterfaceError, OperationalError

from django_tasklock import lock, locks
from django_tasklock.exceptions import StoreUnavailable
from django_tasklock.guards import mark_of
from django_tasklock.signals import task_not_run
from django_tasklock.stores import stores
from django_tasklock.testing import outage
from tests.app.models import Job
from tests.celery_tasks.conftest import has_reserved_nothing, job_guard, status
from tests.conftest import ProxyTo
from tests.jobs import jobs_through_proxy
from tests.mailroom import Mailroom, Runs, elsewhere
from tests.nights import by_day
from tests.proxy import CutProxy
from tests.steps import LONG, sent, taken
from tests.waiting import until

CALLS = ("acquire", "release", "get", "put")
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "guarded": {"guard": job_guard()},
    "guarded and unique": {"guard": job_guard(), "unique_while": "queued"},
    "guarded, without the lock": {"guard": job_guard(), "on_outage": "run"},
    "unique": {"unique_while": "queued"},
    "unique and coalesced": {"unique_while": "queued", "on_conflict": "coalesce"},
    "waiting": {"on_conflict": "retry"},
    "debounced": {"debounce": 0.001, "debounce_max": 1},
    "cooling": {"lock_cooldown": 0.05},
    "without the lock": {"on_outage": "run", "unique_while": "queued"},
    "beside": {"on_conflict": "run"},
    "handed on": {"lock_max_attempts": 1},
}


def fail_once(store: Any, monkeypatch: pytest.MonkeyPatch, number: int, *, late: bool) -> list[str]:
    """The call with this number fails, before it was carried out, or ``late``: its reply is lost.
    Returns a list that will have its name."""
    made: list[str] = []
    failed: list[str] = []

    def failing(name: str, real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            made.append(name)
            if len(made) != number:
                return real(*args, **kwargs)
            failed.append(name)
            if late:
                real(*args, **kwargs)
            raise StoreUnavailable("default", "cut")

        return call

    for name in CALLS:
        monkeypatch.setattr(store, name, failing(name, getattr(store, name)))
    return failed


def is_free(name: str) -> bool:
    return not locks.is_locked(name)


@pytest.mark.parametrize("late", by_day(True, False), ids=["reply lost", "not carried out"])
@pytest.mark.parametrize("redelivered", [False, True], ids=["", "redelivered"])
@pytest.mark.parametrize("kind", KINDS)
def test_it_runs_once_and_leaves_nothing(
    room: Mailroom, transactional_db: None, kind: str, redelivered: bool, late: bool
) -> None:
    number, failed = 0, ["at first"]
    while failed:
        # Given a message, and a store whose next call fails at each place of its life
        number += 1
        runs = Runs()
        row: Job = Job.objects.create()
        name = f"job:{row.pk}"
        task = room.task(runs, acks_late=True, **KINDS[kind])
        task.apply_async((row.pk,), lease=taken(name, ttl=1) if kind == "handed on" else None)
        message = room.take()
        with pytest.MonkeyPatch.context() as monkeypatch:
            failed = fail_once(stores["default"], monkeypatch, number, late=late)
            room.deliver(message, redelivered=redelivered)
        until(partial(is_free, name), "the release")

        # When it was delivered again, I expect its body to have run once, and the row to be done
        room.work_off()
        room.deliver(message, redelivered=True)
        room.work_off()
        assert len(runs) == 1, (number, failed)
        assert "guard" not in KINDS[kind] or status(row) == "done"

        # And nothing to be left, neither the lock nor what it had reserved
        until(partial(is_free, name), "the end of its cooling")
        until(partial(has_reserved_nothing, task, name), "the end of what it has reserved")
    assert number > 2


def test_a_message_is_kept_where_its_run_is_interrupted_in_an_outage(room: Mailroom) -> None:
    """As by a cold shutdown: with any other error Celery would acknowledge the message."""

    def work(self: Any, job: Any) -> None:
        silent.enter_context(outage())
        raise SystemExit

    message = room.message(work, acks_late=True)
    with ExitStack() as silent, pytest.raises(SystemExit):
        room.deliver(message, redelivered=True)


def test_a_soft_time_limit_is_not_the_backends_silence(
    room: Mailroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes once: a body that began after it would run without a limit."""
    runs = Runs()
    message = room.message(runs, acks_late=True)
    too_long = Mock(side_effect=SoftTimeLimitExceeded)
    monkeypatch.setattr(type(room.app.backend), "get_task_meta", too_long)
    room.fails(message, SoftTimeLimitExceeded, redelivered=True)
    assert (runs, room.ids()) == ([], [])


# ------------------------------------------------------------------------------ the row's database


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


@pytest.fixture
def row(database: CutProxy) -> Job:
    """A row behind it."""
    row: Job = Job.objects.create()
    return row


@pytest.mark.parametrize("kind", OPTIONS)
def test_52_a_message_whose_row_is_out_of_reach_comes_back_and_runs_once(
    room: Mailroom, database: CutProxy, row: Job, kind: str
) -> None:
    # Given a guarded task that may start once
    runs = Runs()
    options = {"guard": GUARD, "acks_late": True, "lock_max_attempts": 1, **OPTIONS[kind]}
    task = room.task(runs, **options)
    first = task.delay(row.pk).id

    # However often its row is out of reach, I expect the message to come back, and the lock to be
    # free, and not to cool
    for redelivered in (False, True, False):
        message = room.take()
        with database.away():
            assert room.deliver(message, redelivered=redelivered)[0] == "IGNORED"
            assert room.ids() == [first]
            if task.unique_while:  # What it has reserved is not used up.
                assert task.delay(row.pk).id == first
        assert not locks.is_locked(f"job:{row.pk}")
        assert (status(row), runs) == ("queued", [])

    # And it to run once when the row is there again, for no try was used up
    assert room.work_off() == [("SUCCESS", None)]
    assert (status(row), runs) == ("done", [first])
    assert has_reserved_nothing(task, f"job:{row.pk}")


@pytest.mark.parametrize("lease", ["lock", "outage", "beside"])
def test_52_a_claim_whose_reply_was_lost_is_made_again(
    room: Mailroom, database: CutProxy, row: Job, lease: str
) -> None:
    """With the lock and without: the row is claimed already then."""
    runs, options = Runs(), {"outage": {"on_outage": "run"}, "beside": {"on_conflict": "run"}}
    message = room.message(runs, row.pk, guard=GUARD, acks_late=True, **options.get(lease, {}))
    assert Job.objects.exists()
    database.drop_reply(b"UPDATE")
    database.refuse()
    with ExitStack() as meanwhile:
        if lease == "outage":
            meanwhile.enter_context(outage())
        elif lease == "beside":
            meanwhile.enter_context(lock(f"job:{row.pk}", ttl=LONG))
        assert room.deliver(message)[0] == "IGNORED"
    database.accept()
    assert status(row) == "working"
    assert (row.lock_fence == mark_of(message.id)) is (lease != "lock")
    if lease != "lock":  # For any other message it is that of a run which may live.
        other = room.task(guard=GUARD, lock_name="other")
        assert other(row.pk)["reason"] == "invalid_state"
    assert room.work_off() == [("SUCCESS", None)]
    assert (status(row), runs) == ("done", [message.id])


def test_52_where_the_task_says_so_or_nothing_can_come_back_the_error_is_raised(
    room: Mailroom, database: CutProxy, row: Job
) -> None:
    raising = room.task(guard=GUARD, on_outage="raise", unique_while="queued")
    raising.delay(row.pk)
    with sent(task_not_run) as told, database.away():
        state, error = room.deliver(room.take())
        assert (state, isinstance(error, AWAY)) == ("FAILURE", True)
        with pytest.raises(AWAY):
            room.task(guard=GUARD, on_outage="run")(row.pk)
    assert [(one["outcome"], one["reason"]) for one in told] == [("given_up", "outage")] * 2
    assert status(row) == "queued"
    # What it had reserved has ended
    raising.delay(row.pk)
    assert room.states() == ["SUCCESS"]


def test_52_an_error_of_the_database_in_the_body_is_the_bodys(
    room: Mailroom, database: CutProxy, row: Job
) -> None:
    def work(self: Any, job: int) -> None:
        with database.away():
            Job.objects.get(pk=job)

    state, error = room.deliver(room.message(work, row.pk, guard=GUARD, acks_late=True))
    assert (state, isinstance(error, AWAY), room.waiting()) == ("FAILURE", True, [])
    assert status(row) == "failed"


def test_52_a_follow_up_stays_the_follow_up(room: Mailroom, database: CutProxy, row: Job) -> None:
    """Calls that it stands for rely on it."""

    def first_run(self: Any, job: int) -> None:
        task.delay(job)
        assert elsewhere(room, room.take(task.delay(job).id))[0] == "IGNORED"

    runs = Runs(first_run, None)
    task = room.task(runs, guard=job_guard(source=["queued", "done"]), on_conflict="coalesce")
    first = task.delay(row.pk).id
    assert room.deliver(room.take())[0] == "SUCCESS"
    earlier, follow_up = room.ids()
    message = room.take(follow_up)
    with database.away():
        assert room.deliver(message)[0] == "IGNORED"
    assert room.ids() == [earlier, follow_up]
    with lock(f"job:{row.pk}", ttl=LONG):
        assert elsewhere(room, room.take(earlier))[1]["reason"] == "coalesced"
    assert room.work_off() == [("SUCCESS", None)]
    assert (runs, status(row)) == ([first, message.id], "done")
