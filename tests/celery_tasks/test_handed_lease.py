"""``apply_async(lease=...)``: the run goes on under the lease of its caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
from celery import Task
from celery.exceptions import SoftTimeLimitExceeded
from django.db import transaction

from django_tasklock import Lease, LeaseLost, lock, locks
from tests.app.models import Job
from tests.celery_tasks.conftest import FENCES, job_guard, retries_once, status
from tests.mailroom import Mailroom
from tests.steps import LONG, holder, in_child, silent, taken

NAME = "job:1"


@pytest.fixture
def seen() -> list[Any]:
    """What the bodies saw: their lease's token and fence, and the holder's task id."""
    return []


@pytest.fixture
def task(room: Mailroom, seen: list[Any]) -> Any:
    return room.task(looking(seen), acks_late=True)


def looking(seen: list[Any]) -> Any:
    def work(self: Any, job: Any) -> str:
        owner = holder(self.lease.name).owner
        seen.append((self.lease.token, self.lease.fence, owner.task_id))
        return "done"

    return work


@pytest.mark.parametrize("eager", [False, True])
def test_the_run_goes_on_under_the_lease_of_its_caller(
    room: Mailroom, task: Any, seen: list[Any], eager: bool
) -> None:
    # Given a view that takes the lock, and sends the task with its lease
    room.app.conf.task_always_eager = eager
    with lock(NAME, ttl=LONG) as lease:
        result = task.apply_async([1], lease=lease)

    # I expect the lock to stay taken, and a second click to be refused
    if not eager:
        assert holder(NAME).detached
        assert locks.acquire(NAME) is None
        assert room.work_off() == [("SUCCESS", "done")]

    # And the run to have that very lease, and to end it
    assert seen == [(lease.token, lease.fence, result.id)]
    assert not locks.is_locked(NAME)


def in_a_transaction(task: Any, lease: Lease) -> None:
    with transaction.atomic():
        task.apply_async_on_commit([1], lease=lease)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "send",
    [
        lambda task, lease: task.apply_async((1,), lease=lease.detach()),
        lambda task, lease: task.s(1).set(lease=lease.detach()).apply_async(),
        lambda task, lease: (task.si(1).set(lease=lease.detach()) | task.si(2)).apply_async(),
        lambda task, lease: (task.si(2) | task.si(1).set(lease=lease.detach())).apply_async(),
        in_a_transaction,
    ],
    ids=["handle", "signature", "first of a chain", "last of a chain", "on commit"],
)
def test_every_way_to_send_takes_the_lease_along(
    room: Mailroom, task: Any, seen: list[Any], send: Callable[[Any, Lease], Any]
) -> None:
    """A handle is as good. Though the block that held the lease has ended when it is sent."""
    with lock(NAME, ttl=LONG) as lease:
        send(task, lease)
    assert locks.acquire(NAME) is None
    assert {*room.states()} == {"SUCCESS"}
    assert lease.token in {token for token, _, _ in seen}
    assert not locks.is_locked(NAME)


def test_a_permit_is_handed_on_as_a_lock_is(room: Mailroom, seen: list[Any]) -> None:
    task = room.task(looking(seen), acks_late=True, lock_slots=2)
    permits = [taken(NAME, slots=2) for _ in range(2)]
    for permit in permits:
        task.apply_async([1], lease=permit)
    assert locks.acquire(NAME, slots=2) is None
    assert room.work_off() == [("SUCCESS", "done")] * 2
    assert [token for token, _, _ in seen] == [permit.token for permit in permits]
    assert locks.list() == []


def test_a_lease_that_lapsed_is_acquired_as_usual(
    room: Mailroom, task: Any, seen: list[Any]
) -> None:
    """And if somebody else holds it by then, on_conflict says what happens."""
    for _ in range(2):
        lease = taken(NAME)
        task.apply_async([1], lease=lease)
        locks.clear(NAME)
        if not seen:
            assert room.work_off() == [("SUCCESS", "done")]
            assert seen[0][0] != lease.token
    other = taken(NAME)
    ((_, marker),) = room.work_off()
    assert marker["reason"] == "already_processing"
    assert other.release()


@pytest.mark.parametrize("renewed", [False, True])
def test_the_lease_lasts_as_long_as_the_task_needs_it(room: Mailroom, renewed: bool) -> None:
    """And a countdown is added to the handle's time."""

    def work(self: Any, job: Any) -> float:
        return float(holder(self.lease.name).ttl or 0)

    task = room.task(work, acks_late=True, lock_ttl=10 * LONG, lock_renew=renewed)
    task.apply_async([1], lease=taken(NAME, ttl=10), countdown=100)
    assert 105 < (holder(NAME).ttl or 0) <= 111
    ((state, left),) = room.work_off()
    assert state == "SUCCESS"
    assert (left > 2 * LONG) is not renewed, "a renewed one is extended by the renewal"


def test_a_redelivery_finds_the_handle_spent_and_a_retry_too(
    room: Mailroom, seen: list[Any]
) -> None:
    """They acquire as usual. The first run was killed, and the lock is taken over."""

    def work(self: Any, job: Any) -> Any:
        looking(seen)(self, job)
        return retries_once(self, job)

    task, lease = room.task(work, acks_late=True), taken(NAME)
    task.apply_async([1], lease=lease)
    message = room.take()
    assert in_child(lambda: locks.adopt(message.ours["lease"]) is not None)
    assert holder(NAME).token == lease.token
    assert room.deliver(message, redelivered=True)[0] == "RETRY"
    assert room.states() == ["SUCCESS"]
    assert lease.token not in {token for token, _, _ in seen}
    lease = taken(NAME)
    task.apply_async([1], lease=lease)
    assert room.states() == ["RETRY", "SUCCESS"]
    assert [token == lease.token for token, _, _ in seen[2:]] == [True, False]


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        (lambda: taken("job:2"), {}, "of the lock 'job:2', and this call takes 'job:1'"),
        (lambda: taken(NAME, slots=2), {}, "of the lock 'job:1#1', and this call takes 'job:1'"),
        (lambda: taken(NAME), {"lock_slots": 2}, "and this call takes a permit of 'job:1'"),
        (lambda: taken(NAME), {"lock_store": "other"}, "of the store 'default', and task"),
        (lambda: taken(NAME), {"debounce": 5}, "has debounce"),
        (lambda: taken(NAME), {"on_conflict": "replace"}, "has debounce or replaces"),
        (lambda: 5, {}, "handle"),
        (lambda: "abc", {}, "handle"),
    ],
    ids=["lock", "permit", "no permit", "store", "debounce", "replace", "no lease", "no handle"],
)
def test_what_cannot_be_handed_on_is_refused_before_anything_is_sent(
    room: Mailroom, given: Callable[[], Any], options: dict[str, Any], said: str
) -> None:
    """And the lease stays held."""
    lease = given()
    with pytest.raises((TypeError, ValueError), match=said):
        room.task(**options).apply_async([1], lease=lease)
    assert room.waiting() == []
    if isinstance(lease, Lease):
        lease.assert_held()
        assert lease.release()


def test_a_lease_that_is_over_and_a_run_that_is_here_are_refused(room: Mailroom, task: Any) -> None:
    lease = taken(NAME)
    with pytest.raises(TypeError, match="takes no lease"):
        task.apply([1], lease=lease)
    lease.release()
    with pytest.raises(LeaseLost):
        task.apply_async([1], lease=lease)
    assert room.waiting() == []


def test_if_sending_fails_the_lease_is_held_again(
    task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Task, "apply_async", Mock(side_effect=ConnectionError("no broker")))
    with lock(NAME, ttl=LONG) as lease:
        with pytest.raises(ConnectionError):
            task.apply_async([1], lease=lease)
        lease.assert_held()
        assert lease.renew
    assert not locks.is_locked(NAME)


def test_a_duplicate_ends_the_lease(room: Mailroom, seen: list[Any]) -> None:
    """The message that is in the queue takes the lock itself."""
    task = room.task(looking(seen), unique_while="queued", acks_late=True)
    first = task.delay(1)
    with lock(NAME) as lease:
        assert task.apply_async([1], lease=lease).id == first.id
    assert not locks.is_locked(NAME)
    assert room.work_off() == [("SUCCESS", "done")]


def test_a_wrong_handle_in_a_message_is_no_handle(room: Mailroom, task: Any) -> None:
    for wrong in (5, "1.x", None, ["a"], taken("job:7").detach()):
        task.apply_async([1], headers={"tasklock": {"lease": wrong}})
        assert room.work_off() == [("SUCCESS", "done")]
    assert holder("job:7").detached


def test_a_body_may_hand_its_own_lease_on(room: Mailroom, task: Any, seen: list[Any]) -> None:
    """Two jobs under one lease, one after the other."""

    def first(self: Any, job: Any) -> str:
        seen.append((self.lease.token, self.lease.fence, None))
        task.apply_async([1], lease=self.lease)
        return "handed on"

    room.task(first, acks_late=True).delay(1)
    assert room.work_off() == [("SUCCESS", "handed on"), ("SUCCESS", "done")]
    assert len({(token, fence) for token, fence, _ in seen}) == 1
    assert not locks.is_locked(NAME)


# ------------------------------------------------------------------------------ rows


@pytest.mark.parametrize(
    ("way", "fence"),
    [
        ("apply_async", "lock_fence"),
        ("apply_async", None),
        ("apply_async_on_commit", None),
        ("handle", "lock_fence"),
    ],
)
def test_a_run_that_has_a_row_to_finish_keeps_its_lease(
    room: Mailroom, row: Job, way: str, fence: str | None
) -> None:
    """Nothing is sent, and it goes on; also where the message would be sent later."""
    next_one = room.task()

    def work(self: Any, job: Any) -> bool:
        lease = self.lease.detach() if way == "handle" else self.lease
        send = next_one.apply_async if way == "handle" else getattr(next_one, way)
        with pytest.raises(ValueError, match=r"finishes the row app.Job \d+ under the lease"):
            send([job], lease=lease)
        return bool(self.lease.held)

    room.task(work, guard=job_guard(fence)).delay(row.pk)
    assert room.work_off() == [("SUCCESS", way != "handle")]
    assert status(row) == "done"


def test_the_run_that_gets_the_lease_may_have_a_row(
    room: Mailroom, row: Job, seen: list[Any]
) -> None:
    """So may the replacement of a run that has one: the row waits for it."""
    lease = taken(f"job:{row.pk}")
    next_one = room.task(looking(seen), guard=job_guard())
    next_one.apply_async([row.pk], lease=lease)
    assert room.work_off() == [("SUCCESS", "done")]
    assert seen[0][0] == lease.token
    assert (status(row), row.lock_fence) == ("done", lease.fence)

    def work(self: Any, job: Any) -> Any:
        return self.replace(next_one.s(job).set(lease=self.lease.detach()))

    Job.objects.update(status="queued")
    room.task(work, guard=job_guard()).delay(row.pk)
    assert room.work_off()[-1] == ("SUCCESS", "done")
    assert (len(seen), status(row)) == (2, "done")


@FENCES
@pytest.mark.parametrize(
    "error",
    [None, LookupError("no codec"), SoftTimeLimitExceeded(), SystemExit(0)],
    ids=["its own loss", "an error", "a time limit", "the end of the worker"],
)
def test_a_lease_that_was_handed_on_is_not_a_lost_one(
    room: Mailroom, row: Job, fence: str | None, error: BaseException | None
) -> None:
    # Given a run that hands its lease on, and ends with an error after that
    next_ones: list[tuple[str, Lease | None]] = []

    def work(self: Any, job: Any) -> None:
        handle = self.lease.detach()
        next_ones.append((self.lease.token, locks.adopt(handle)))
        if error is not None:
            raise error
        self.lease.assert_held()

    message = room.message(work, row.pk, acks_late=True, guard=job_guard(fence))

    # I expect the error to be the run's own
    if isinstance(error, SystemExit):
        with pytest.raises(SystemExit):
            room.deliver(message)
    else:
        room.fails(message, LeaseLost if error is None else type(error))
    assert room.waiting() == []

    # And the next run to have the lock
    ((token, next_one),) = next_ones
    assert holder(f"job:{row.pk}").token == token
    assert locks.acquire(f"job:{row.pk}") is None
    assert next_one is None or next_one.release()

    # And the row to be as its fence says; without one it is left to the next holder of the lock
    ended = "queued" if isinstance(error, SystemExit) else "failed"
    assert status(row) == (ended if fence else "working")


def test_a_silent_store_at_its_end_leaves_the_lease_that_it_handed_on(
    room: Mailroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(self: Any, job: Any) -> None:
        next_one.apply_async((job,), lease=self.lease)
        silent(monkeypatch, "set_note")

    next_one = room.task()
    assert room.deliver(room.message(work, acks_late=True)) == ("SUCCESS", None)
    assert locks.is_locked(NAME)
