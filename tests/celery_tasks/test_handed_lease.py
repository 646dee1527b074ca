"""``apply_async(lease=...)``: the run goes on under the lease of its caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import Task
from celery.exceptions import Retry, SoftTimeLimitExceeded
from django.db import transaction

from django_tasklock import Lease, LeaseLost, StatusConflict, lock, locks
from django_tasklock.celery import LockedTask, exiting
from django_tasklock.celery.request import LockedRequest
from django_tasklock.celery.runnote import RunNote
from django_tasklock.guards import StatusGuard
from tests.app.models import Job
from tests.mailroom import Mailroom
from tests.steps import LONG, holder, in_child, taken

NAME = "job:1"


@pytest.fixture
def seen() -> list[Any]:
    """What the bodies saw: their lease's token and fence, and the holder's task id."""
    return []


@pytest.fixture
def task(room: Mailroom, seen: list[Any]) -> Any:
    return room.task(looking(seen), acks_late=True)


def guard(**options: Any) -> StatusGuard:
    own: dict[str, Any] = {
        "pk": "job", "source": "queued", "to": "working", "done": "done", "failed": "failed",
        "fence_field": "lock_fence",
    }  # fmt: skip
    return StatusGuard("app.Job", **own | options)


def looking(seen: list[Any]) -> Any:
    def work(self: Any, job: Any) -> str:
        owner = holder(self.lease.name).owner
        seen.append((self.lease.token, self.lease.fence, owner.task_id))
        return "done"

    return work


def test_the_run_goes_on_under_the_lease_of_its_caller(
    room: Mailroom, task: Any, seen: list[Any]
) -> None:
    # Given a view that takes the lock, and sends the task with its lease
    with lock(NAME, ttl=LONG) as lease:
        result = task.apply_async([1], lease=lease)

    # I expect the lock to stay taken, and a second click to be refused
    assert holder(NAME).detached
    assert locks.acquire(NAME) is None

    # And the run to have that very lease, and to end it
    assert room.work_off() == [("SUCCESS", "done")]
    assert seen == [(lease.token, lease.fence, result.id)]
    assert not locks.is_locked(NAME)


def test_a_handle_is_as_good_and_fits_everywhere(
    room: Mailroom, task: Any, seen: list[Any]
) -> None:
    ways: tuple[Callable[[str], Any], ...] = (
        lambda handle: task.apply_async((1,), lease=handle),
        lambda handle: task.s(1).set(lease=handle).apply_async(),
        lambda handle: task.s(1).apply_async(lease=handle),
        lambda handle: (task.si(1).set(lease=handle) | task.si(2)).apply_async(),
        lambda handle: (task.si(2) | task.si(1).set(lease=handle)).apply_async(),
    )
    for send in ways:
        lease = taken(NAME)
        send(lease.detach())
        assert all(state == "SUCCESS" for state, _ in room.work_off())
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


def test_a_permit_that_lapsed_leaves_any_to_be_acquired(room: Mailroom, seen: list[Any]) -> None:
    task = room.task(looking(seen), acks_late=True, lock_slots=2)
    permit = taken(NAME, slots=2)
    task.apply_async([1], lease=permit)
    locks.clear(permit.name)
    other = taken(NAME, slots=2)
    assert room.work_off() == [("SUCCESS", "done")]
    assert seen[0][0] not in (permit.token, other.token)
    assert [info.name for info in locks.list()] == [other.name]


def test_a_lease_that_lapsed_is_acquired_as_usual(
    room: Mailroom, task: Any, seen: list[Any]
) -> None:
    lease = taken(NAME)
    task.apply_async([1], lease=lease)
    locks.clear(NAME)
    assert room.work_off() == [("SUCCESS", "done")]
    assert seen[0][0] != lease.token
    # And if somebody else holds it by then, on_conflict says what happens.
    lease = taken(NAME)
    task.apply_async([1], lease=lease)
    locks.clear(NAME)
    other = taken(NAME)
    ((_, marker),) = room.work_off()
    assert marker["reason"] == "already_processing"
    assert other.release()


@pytest.mark.parametrize("renewed", [False, True])
def test_the_lease_lasts_as_long_as_the_task_needs_it(room: Mailroom, renewed: bool) -> None:
    def work(self: Any, job: Any) -> float:
        return float(holder(self.lease.name).ttl or 0)

    task = room.task(work, acks_late=True, lock_ttl=10 * LONG, lock_renew=renewed)
    task.apply_async([1], lease=taken(NAME))
    ((state, left),) = room.work_off()
    assert state == "SUCCESS"
    assert (left > LONG) is not renewed, "a renewed one is extended by the renewal"


def test_a_redelivery_finds_the_handle_spent(room: Mailroom, task: Any, seen: list[Any]) -> None:
    """The first run was killed: its process is dead, and the lock is taken over."""
    lease = taken(NAME)
    task.apply_async([1], lease=lease)
    message = room.take()

    def die() -> bool:
        handle = message.ours["lease"]
        assert locks.adopt(handle) is not None
        return True

    assert in_child(die)
    assert holder(NAME).token == lease.token
    assert room.deliver(message, redelivered=True) == ("SUCCESS", "done")
    assert seen[0][0] != lease.token


def test_a_retry_acquires_as_usual(room: Mailroom, seen: list[Any]) -> None:
    def work(self: Any, job: Any) -> str:
        looking(seen)(self, job)
        if self.request.retries == 0:
            raise self.retry(countdown=0)
        return "done"

    task = room.task(work, acks_late=True)
    lease = taken(NAME)
    task.apply_async([1], lease=lease)
    (first, error), second = room.work_off()
    assert first == "RETRY"
    assert isinstance(error, Retry)
    assert second == ("SUCCESS", "done")
    assert [token == lease.token for token, _, _ in seen] == [True, False]


def test_a_requeued_message_keeps_its_handle(room: Mailroom, task: Any, seen: list[Any]) -> None:
    lease = taken(NAME)
    task.apply_async([1], lease=lease)
    handle = room.waiting()[0].ours["lease"]

    message = room.take()
    again: Any = room.app.tasks[message.task]
    again.send_again([1], {}, task_id=message.id, headers={"tasklock": message.ours})
    assert room.waiting()[0].ours["lease"] == handle
    assert room.work_off() == [("SUCCESS", "done")]
    assert seen[0][0] == lease.token


class TestWhatIsRefused:
    """Before anything is sent, and the lease stays held."""

    def test_a_lease_of_another_lock(self, room: Mailroom, task: Any) -> None:
        lease = taken("job:2", renew=True)
        with pytest.raises(ValueError, match="of the lock 'job:2', and this call takes 'job:1'"):
            task.apply_async([1], lease=lease)
        assert room.waiting() == []
        assert lease.held
        assert lease.renew
        lease.assert_held()
        assert holder("job:2").owner.mark is None
        assert lease.extend(LONG)
        assert lease.release()

    def test_a_permit_for_a_lock_and_a_lock_for_a_permit(self, room: Mailroom, task: Any) -> None:
        permit, whole = taken(NAME, slots=2), taken(NAME)
        with pytest.raises(ValueError, match="of the lock 'job:1#1', and this call takes 'job:1'"):
            task.apply_async([1], lease=permit)
        limited = room.task(lock_slots=2)
        with pytest.raises(ValueError, match="and this call takes a permit of 'job:1'"):
            limited.apply_async([1], lease=whole)
        other = taken("job:2", slots=2)
        with pytest.raises(ValueError, match="'job:2#1', and this call takes a permit of 'job:1'"):
            limited.apply_async([1], lease=other)
        assert room.waiting() == []
        assert permit.release()
        assert whole.release()
        assert other.release()

    def test_wrong_arguments(self, room: Mailroom, task: Any) -> None:
        lease = taken(NAME)
        with pytest.raises(TypeError):
            task.apply_async([1, 2, 3, 4], lease=lease)
        assert lease.release()

    def test_a_lease_of_another_store(self, room: Mailroom) -> None:
        task = room.task(lock_store="other")
        lease = taken(NAME)
        with pytest.raises(ValueError, match="of the store 'default', and task"):
            task.apply_async([1], lease=lease)
        assert lease.release()

    @pytest.mark.parametrize("wrong", [5, True, "abc", b"1.x", object()])
    def test_what_is_neither_lease_nor_handle(self, room: Mailroom, task: Any, wrong: Any) -> None:
        with pytest.raises((TypeError, ValueError), match="handle"):
            task.apply_async([1], lease=wrong)
        assert room.waiting() == []

    def test_a_lease_that_is_over(self, room: Mailroom, task: Any) -> None:
        lease = taken(NAME)
        lease.release()
        with pytest.raises(LeaseLost):
            task.apply_async([1], lease=lease)
        assert room.waiting() == []

    def test_apply_runs_here(self, room: Mailroom, task: Any) -> None:
        lease = taken(NAME)
        with pytest.raises(TypeError, match="apply\\(\\) takes no lease"):
            task.apply([1], lease=lease)
        assert lease.release()


def test_if_sending_fails_the_lease_is_held_again(room: Mailroom, task: Any) -> None:
    def broken(*args: Any, **options: Any) -> Any:
        raise ConnectionError("no broker")

    with lock(NAME, ttl=LONG) as lease:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Task, "apply_async", broken)
            with pytest.raises(ConnectionError):
                task.apply_async([1], lease=lease)
        lease.assert_held()
        assert lease.renew
    assert not locks.is_locked(NAME)


def test_a_countdown_is_added_to_the_handles_time(room: Mailroom, task: Any) -> None:
    lease = taken(NAME, ttl=10)
    task.apply_async([1], lease=lease, countdown=100)
    assert 105 < (holder(NAME).ttl or 0) <= 111


def test_a_duplicate_ends_the_lease(room: Mailroom, seen: list[Any]) -> None:
    """The message that is in the queue takes the lock itself."""
    task = room.task(looking(seen), unique_while="queued", acks_late=True)
    first = task.delay(1)
    with lock(NAME) as lease:
        assert task.apply_async([1], lease=lease).id == first.id
    assert not locks.is_locked(NAME)
    assert room.work_off() == [("SUCCESS", "done")]


@pytest.mark.parametrize("while_", ["queued", "unfinished"])
def test_a_unique_task_is_sent_under_the_lease_of_its_caller(
    room: Mailroom, seen: list[Any], while_: str
) -> None:
    task = room.task(looking(seen), unique_while=while_, acks_late=True)
    lease = taken(NAME)
    task.apply_async([1], lease=lease)
    assert room.work_off() == [("SUCCESS", "done")]
    assert seen[0][0] == lease.token


def test_an_eager_call_goes_on_under_the_lease(room: Mailroom, task: Any, seen: list[Any]) -> None:
    room.app.conf.task_always_eager = True
    with lock(NAME) as lease:
        assert task.apply_async([1], lease=lease).get() == "done"
    assert seen[0][0] == lease.token
    assert not locks.is_locked(NAME)


def test_a_wrong_handle_in_a_message_is_no_handle(
    room: Mailroom, task: Any, seen: list[Any]
) -> None:
    for wrong in (5, "1.x", None, ["a"], taken("job:7").detach()):
        task.apply_async([1], headers={"tasklock": {"lease": wrong}})
        assert room.work_off() == [("SUCCESS", "done")]
    assert holder("job:7").detached


class OnCommit(Task):
    """Sends when the transaction commits."""

    def apply_async(self, *args: Any, **options: Any) -> Any:
        transaction.on_commit(lambda: super(OnCommit, self).apply_async(*args, **options))


class Mixed(OnCommit, LockedTask):
    """What its caller gives it reaches our class at the commit."""


@pytest.mark.django_db(transaction=True)
def test_a_message_that_is_sent_at_the_commit_takes_the_lease_along(
    room: Mailroom, task: Any, seen: list[Any]
) -> None:
    """Though the block that held the lease has ended by then."""
    mixed = room.task(looking(seen), base=Mixed, acks_late=True)
    sends: tuple[Callable[[Any], Any], ...] = (
        lambda lease: task.apply_async_on_commit([1], lease=lease),
        lambda lease: mixed.apply_async([1], lease=lease.detach()),
    )
    for send in sends:
        with transaction.atomic():
            with lock(NAME, ttl=LONG) as lease:
                send(lease)
            assert room.waiting() == []
        assert locks.acquire(NAME) is None
        assert room.work_off() == [("SUCCESS", "done")]
        assert seen.pop()[0] == lease.token
        assert not locks.is_locked(NAME)


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


@pytest.mark.django_db
class TestRowsOfBothRuns:
    """The run that hands its lease on has claimed a row, and the next one claims a row too."""

    @pytest.fixture
    def row(self) -> Job:
        row: Job = Job.objects.create()
        return row

    def status(self, row: Job) -> str:
        row.refresh_from_db()
        return row.status

    @pytest.mark.parametrize("by_hand", [False, True], ids=["lease", "handle"])
    def test_a_row_that_is_not_finished_is_refused(
        self, room: Mailroom, row: Job, by_hand: bool
    ) -> None:
        next_one = room.task(guard=guard(source="done", to="publishing", done="published"))

        def work(self: Any, job: Any) -> bool:
            lease = self.lease.detach() if by_hand else self.lease
            with pytest.raises(ValueError, match=r"has claimed the row .* of app.Job, and"):
                next_one.apply_async([str(job)], lease=lease)
            return bool(self.lease.held)

        room.task(work, guard=guard()).delay(row.pk)
        # Nothing was sent, and the run goes on with its lease and its row
        assert room.work_off() == [("SUCCESS", not by_hand)]
        assert self.status(row) == "done"

    @pytest.mark.parametrize("send", ["apply_async", "apply_async_on_commit"])
    def test_a_row_without_a_fence_keeps_its_lease(
        self, room: Mailroom, row: Job, send: str
    ) -> None:
        """Also where the message would be sent later, when nobody can hold the lease again."""
        next_one = room.task()

        def work(self: Any, job: Any) -> None:
            with pytest.raises(ValueError, match="claimed without a fence"):
                getattr(next_one, send)([job], lease=self.lease)
            self.lease.assert_held()

        room.task(work, guard=guard(fence_field=None)).delay(row.pk)
        assert room.work_off() == [("SUCCESS", None)]
        assert self.status(row) == "done"

    @pytest.mark.parametrize("guarded", [False, True], ids=["no row", "another row"])
    def test_other_rows_may_be_worked_on(
        self, room: Mailroom, row: Job, seen: list[Any], guarded: bool
    ) -> None:
        other: Job = Job.objects.create()
        options: dict[str, Any] = {"guard": guard(pk="other")} if guarded else {}
        next_one = room.task(looking(seen), **options)

        def work(self: Any, job: Any) -> None:
            looking(seen)(self, job)
            next_one.apply_async([job, other.pk], lease=self.lease)

        room.task(work, guard=guard()).delay(row.pk)
        assert room.work_off() == [("SUCCESS", None), ("SUCCESS", "done")]
        assert seen[0][0] == seen[1][0]
        assert self.status(row) == "done"
        assert self.status(other) == ("done" if guarded else "queued")

    def test_a_caller_without_a_guard_hands_its_lease_on(
        self, room: Mailroom, row: Job, seen: list[Any]
    ) -> None:
        lease = taken(f"job:{row.pk}")
        room.task(looking(seen), guard=guard()).apply_async([row.pk], lease=lease)
        assert room.work_off() == [("SUCCESS", "done")]
        assert seen[0][0] == lease.token
        row.refresh_from_db()
        assert (row.status, row.lock_fence) == ("done", lease.fence)

    @pytest.mark.parametrize("retries", [0, 1])
    def test_the_row_of_a_caller_that_died_is_claimed_with_a_later_fence(
        self, room: Mailroom, row: Job, seen: list[Any], retries: int
    ) -> None:
        def work(self: Any, job: Any) -> str:
            answer = looking(seen)(self, job)
            if self.request.retries < retries:
                raise self.retry(countdown=0)
            return str(answer)

        # Given a run that claims the row, hands its lease on and is killed before its finish
        lease = taken(f"job:{row.pk}")
        assert lease.fence
        assert guard().claim(row.pk, lease.fence)
        task = room.task(work, acks_late=True, guard=guard())
        task.apply_async([row.pk], lease=lease)
        message = room.take()
        # When the next one runs
        first, *others = [room.deliver(message), *room.work_off()]
        # I expect it to have a lease and a fence of its own
        assert (others[-1] if retries else first) == ("SUCCESS", "done")
        assert all(fence > lease.fence for _, fence, _ in seen)
        assert self.status(row) == "done"
        assert not locks.is_locked(f"job:{row.pk}")
        # And neither a redelivery nor the first run, if it lives after all, to change the row
        runs = len(seen)
        room.deliver(message, redelivered=True)
        assert len(seen) == runs
        with pytest.raises(StatusConflict):
            guard().finish(row.pk, lease.fence)
        assert self.status(row) == "done"

    def test_the_first_run_does_not_finish_what_the_next_one_has_claimed(
        self, room: Mailroom, row: Job
    ) -> None:
        """The handle was sent by other code, while the first run still has the row."""
        lease = taken(f"job:{row.pk}")
        assert guard().claim(row.pk, lease.fence)

        def work(self: Any, job: Any) -> None:
            with pytest.raises(StatusConflict):
                guard().finish(job, lease.fence)
            assert not guard().fail(job, lease.fence)

        room.task(work, guard=guard()).apply_async([row.pk], lease=lease)
        assert room.work_off() == [("SUCCESS", None)]
        assert self.status(row) == "done"

    def test_the_next_step_of_a_row_takes_a_later_fence(
        self, room: Mailroom, row: Job, seen: list[Any]
    ) -> None:
        handles = []
        room.task(lambda self, job: handles.append(self.lease.detach()), guard=guard()).delay(
            row.pk
        )
        assert room.work_off() == [("SUCCESS", None)]
        assert self.status(row) == "done"
        step = guard(source="done", to="publishing", done="published")
        room.task(looking(seen), guard=step).apply_async([row.pk], lease=handles[0])
        assert room.work_off() == [("SUCCESS", "done")]
        assert self.status(row) == "published"

    def test_a_replacement_may_get_the_lease(
        self, room: Mailroom, row: Job, seen: list[Any]
    ) -> None:
        """The row waits for it, and the run that it replaces does not finish it."""
        next_one = room.task(looking(seen), guard=guard())

        def work(self: Any, job: Any) -> Any:
            return self.replace(next_one.s(job).set(lease=self.lease.detach()))

        room.task(work, guard=guard()).delay(row.pk)
        assert room.work_off()[-1] == ("SUCCESS", "done")
        assert len(seen) == 1
        assert self.status(row) == "done"


@pytest.mark.django_db
@pytest.mark.parametrize("fence_field", ["lock_fence", None], ids=["fence", "no fence"])
@pytest.mark.parametrize(
    "error",
    [None, LookupError("no codec"), SoftTimeLimitExceeded(), SystemExit(0)],
    ids=["its own loss", "an error", "a time limit", "the end of the worker"],
)
@pytest.mark.parametrize("adopted", [False, True])
def test_a_lease_that_was_handed_on_is_not_a_lost_one(
    room: Mailroom, fence_field: str | None, error: BaseException | None, adopted: bool
) -> None:
    # Given a run that hands its lease on, and ends with an error after that
    row, next_ones = Job.objects.create(), []

    def work(self: Any, job: Any) -> None:
        handle = self.lease.detach()
        next_ones.append((self.lease.token, locks.adopt(handle) if adopted else None))
        if error is not None:
            raise error
        self.lease.assert_held()

    room.task(work, acks_late=True, guard=guard(fence_field=fence_field)).delay(row.pk)
    # I expect the error to be the run's own
    if isinstance(error, SystemExit):
        with pytest.raises(SystemExit):
            room.work_off()
    else:
        ((state, said),) = room.work_off()
        assert state == "FAILURE"
        assert isinstance(said, LeaseLost if error is None else type(error))
    # And the next run to have the lock
    ((token, next_one),) = next_ones
    assert holder(f"job:{row.pk}").token == token
    assert locks.acquire(f"job:{row.pk}") is None
    assert next_one is None or next_one.release()
    # And the row to be as its fence says; without one it is left to the next holder of the lock
    row.refresh_from_db()
    ended = "queued" if isinstance(error, SystemExit) else "failed"
    assert row.status == (ended if fence_field else "working")


@pytest.mark.parametrize("handed_on", [False, True])
def test_the_exit_of_the_process_is_no_death_of_its_runs(room: Mailroom, handed_on: bool) -> None:
    starts = []

    def work(self: Any, job: Any) -> None:
        delivery = exiting.running[self.lease]
        if handed_on:
            self.lease.detach()
        exiting._take_starts_back()
        starts.append(RunNote.read(locks.using("default").store.get_note(delivery.key)).starts)

    room.task(work, acks_late=True).delay(1)
    assert room.work_off() == [("SUCCESS", None)]
    assert starts == [0]


@pytest.mark.django_db
def test_a_result_that_does_not_count_is_a_conflict_where_the_lease_was_handed_on(
    room: Mailroom,
) -> None:
    """It was not lost."""
    row = Job.objects.create()

    def work(self: Any, job: Any) -> None:
        self.lease.detach()
        Job.objects.update(status="cancelled")

    room.task(work, guard=guard()).delay(row.pk)
    ((state, error),) = room.work_off()
    assert (state, type(error)) == ("FAILURE", StatusConflict)


@pytest.mark.parametrize("adopted", [False, True])
def test_a_lease_that_a_dead_child_has_handed_on_is_left_alone(
    room: Mailroom, adopted: bool
) -> None:
    """The main process clears what a dead child held, by its token, which the next run has too."""
    task = room.task(acks_late=True)
    lease = locks.try_acquire(NAME, ttl=LONG, task_id="the-first")
    assert isinstance(lease, Lease)
    handle = lease.detach()
    next_one = locks.adopt(handle) if adopted else None
    request: Any = LockedRequest.__new__(LockedRequest)
    request._task, request._token, request._args, request._kwargs = task, lease.token, [1], {}
    request._already_revoked, request._ended, request._handle = False, None, None
    request.id = "the-first"
    request._clear_lease()
    assert holder(NAME).token == lease.token
    assert next_one is None or next_one.held
