"""A run that a later call replaces (``on_conflict="replace"``): it is asked to end, and keeps its
lock until then."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

from django_tasklock import LeaseLost, locks
from django_tasklock.stores import stores
from tests.app.models import Job
from tests.celery_tasks.conftest import (
    FENCES,
    job_guard,
    raising,
    recalled,
    recording,
    replaced_by,
    replacing,
    retries,
    status,
)
from tests.conftest import UseCaches
from tests.inside import keeper_of, lose, recall_after
from tests.mailroom import REDELIVERY, Mailroom, elsewhere
from tests.servers import RedisServer
from tests.steps import LONG, Meanwhile, Traffic, holder, silent
from tests.store_cases import redis_cache
from tests.tenants import MAKE_KEY, tenant
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("recalls_soon")
MAX_SECONDS = 1.0


def asserts(task: Any, job: Any) -> None:
    task.lease.assert_held()


@pytest.mark.parametrize("late", [True, False], ids=["acks_late", "early"])
@pytest.mark.parametrize(
    "ends",
    [asserts, raising(ValueError("of the body")), retries, lambda task, job: "late"],
    ids=["assert_held", "another error", "retry", "returns"],
)
@FENCES
def test_a_run_that_is_replaced_ends_as_one_that_never_ran(
    room: Mailroom, row: Job, ends: Any, late: bool, fence: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    caplog.set_level(logging.INFO)

    # Given a run during which a later call comes
    def body(task: Any, job: Any) -> Any:
        recalled(task, job)
        assert (task.lease.remaining, task.lease.extend()) == (0.0, False)
        return ends(task, job)

    cooling = {"lock_cooldown": LONG, "lock_cooldown_after_error": LONG}
    guard = job_guard(fence)
    task, runs = replacing(room, body, None, guard=guard, acks_late=late, **cooling)
    task.delay(row.pk)
    message = room.take()
    outcome = room.deliver(message)
    newest = room.take()

    # I expect it to end with the marker; or, if it has sent a retry, that to end so
    if (ends, late) == (retries, False):
        assert outcome[0] == "RETRY"
        outcome = room.deliver(room.take(message.id))
    replaced_by(outcome, newest.id)
    assert f"the later call {newest.id} replaces it" in caplog.text
    # And its row to be open again, and the lock to be free
    assert (status(row), locks.get(f"job:{row.pk}")) == ("queued", None)
    # And the newest to run, and the old one never again
    assert room.deliver(newest)[0] == "SUCCESS"
    room.deliver(message, redelivered=REDELIVERY)
    assert (runs, status(row), room.waiting()) == ([message.id, newest.id], "done", [])


def test_with_on_loss_stop_it_ends_there_once(room: Mailroom, row: Job) -> None:
    """Though its lease is lost as well, while it cleans up."""
    cleaned: list[int] = []

    def body(task: Any, job: int) -> None:
        task.delay(job)
        try:
            while True:
                time.sleep(0.001)
        finally:
            lease = task.lease
            Meanwhile(lambda: lose(lease)).result()
            until(lambda: not lease.lasts)
            cleaned.append(job)

    task, runs = replacing(room, body, None, guard=job_guard(None), on_loss="stop")
    task.delay(row.pk)
    outcome = room.deliver(room.take())
    newest = room.take()
    replaced_by(outcome, newest.id)
    assert cleaned == [row.pk]
    locks.clear(f"job:{row.pk}")
    assert room.deliver(newest)[0] == "SUCCESS"
    assert (len(runs), status(row)) == (2, "done")


def test_the_row_of_a_guarded_call_in_a_run_that_is_replaced_is_open_again(
    room: Mailroom, row: Job
) -> None:
    def recalled_inside(task: Any, job: Any) -> None:
        outer.delay(job)
        until(lambda: not task.lease.held, "the recall")
        task.lease.assert_held()

    inner = room.task(recalled_inside, guard=job_guard(None))
    outer, _ = replacing(room, lambda task, job: inner(job), None)
    outer.delay(row.pk)
    outcome = room.deliver(room.take())
    replaced_by(outcome, room.ids()[0])
    assert status(row) == "queued"


def test_until_its_body_has_ended_it_keeps_and_renews_the_lock(room: Mailroom) -> None:
    """However short its ttl, and though it never asks whether it is replaced."""

    def ends() -> float:
        assert holder("job:1").token == task.lease.token
        return time.monotonic() + (holder("job:1").ttl or 0)

    def body(self: Any, job: Any) -> None:
        recalled(self, job)
        last = time.monotonic() + self.lease.ttl
        while ends() < last + 1:
            outcomes.append(elsewhere(room, room.take())[0])

    outcomes: list[str] = []
    task, runs = replacing(room, body, None, lock_ttl=1)
    first = task.delay(1).id
    room.deliver(room.take())
    (newest,) = room.ids()
    assert set(outcomes) == {"IGNORED"}
    room.work_off()
    assert runs == [first, newest]


def test_a_body_that_has_returned_before_the_recall_counts(
    room: Mailroom, row: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    recall_after(monkeypatch, LONG)
    task, _ = replacing(room, lambda task, job: task.delay(job).id, guard=job_guard(None))
    task.delay(row.pk)
    assert room.deliver(room.take()) == ("SUCCESS", room.ids()[0])
    assert status(row) == "done"


def test_a_call_inside_goes_on_under_the_lock_and_nothing_is_handed_on(room: Mailroom) -> None:
    def body(task: Any, job: Any) -> None:
        recalled(task, job)
        inside.append(task(job))  # The next one of the bodies.
        with pytest.raises(LeaseLost, match=r"the later call .* replaces it"):
            task.lease.detach()
        inside.append(holder("job:1").token == task.lease.token)
        inside.append(task.lease.release())

    inside: list[Any] = []
    task, _ = replacing(room, body, lambda task, job: "inside", None)
    task.delay(1)
    outcome = room.deliver(room.take())
    assert inside == ["inside", True, True]
    replaced_by(outcome, room.ids()[0])


def test_a_link_of_a_chain_that_is_replaced_gives_the_marker(room: Mailroom) -> None:
    task, _ = replacing(room, recalled, None, lock_name="job")
    collect, _ = recording(room)
    (task.s(1) | collect.s()).apply_async()
    outcome = room.deliver(room.take())
    newest, link = room.waiting()
    replaced_by(outcome, newest.id)
    assert link.args == [outcome[1]]


def test_a_run_of_a_tenant_is_recalled(
    room: Mailroom, use_caches: UseCaches, redis_server: RedisServer
) -> None:
    """By a thread that has no tenant."""
    cache = redis_cache(redis_server.url) | {"KEY_FUNCTION": MAKE_KEY}
    use_caches({"default": cache}, None)
    task, _ = replacing(room, recalled)
    with tenant("acme"):
        task.delay(1)
        outcome = room.deliver(room.take())
    replaced_by(outcome, room.ids()[0])


def test_with_debounce_max_a_run_is_not_replaced_for_ever(
    room: Mailroom, redis_server: RedisServer
) -> None:
    # Given a run that has ended, and one whose burst began longer ago than debounce_max when more
    # calls come
    def first(task: Any, job: Any) -> str:
        later.extend(task.delay(job).id for _ in range(2))
        traffic = Traffic(redis_server)
        until(lambda: traffic.scripts() > 3, "some looks at the note")
        assert task.lease.held
        return "first"

    later: list[str] = []
    task, runs = replacing(room, None, first, None, recalled, None, debounce_max=MAX_SECONDS)
    for _ in range(2):
        sent = task.delay(1).id
        began = time.time()
        until(lambda: time.time() > began + MAX_SECONDS, "the end of the burst")  # noqa: B023
        outcome = room.deliver(room.take())

    # I expect it not to be replaced, and of the other calls the last one to run
    assert outcome == ("SUCCESS", "first")
    replaced_by(room.deliver(room.take()), later[1])
    room.work_off()
    assert runs[1:] == [sent, later[1]]
    # And the next call to begin a burst of its own, and to be replaced
    task.delay(1)
    outcome = room.deliver(room.take())
    replaced_by(outcome, room.ids()[0])
    assert room.states() == ["SUCCESS"]
    # And nobody to look after a run that has ended
    until(lambda: not keeper_of(stores["default"]).jobs, "the end of the looks")


def test_in_an_outage_a_run_goes_on_and_is_recalled_after_it(
    room: Mailroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    recall_after(monkeypatch, 0.5)  # Not before the outage.

    def body(task: Any, job: Any) -> None:
        task.delay(job)
        with monkeypatch.context() as patch:
            asked = silent(patch, "get")
            until(lambda: len(asked) > 1, "looks in vain")
            assert task.lease.held
        until(lambda: not task.lease.held, "the recall")

    task, _ = replacing(room, body)
    task.delay(1)
    outcome = room.deliver(room.take())
    replaced_by(outcome, room.ids()[0])
