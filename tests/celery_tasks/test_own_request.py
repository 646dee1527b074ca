"""In the body ``self.request`` is Celery's own request, as in a plain task."""

from __future__ import annotations

import gc
import json
import threading
from typing import Any

import pytest
from celery import Task, chain, current_task, signals
from celery.exceptions import Ignore
from celery.result import allow_join_result

from django_tasklock import locks
from django_tasklock._values import clock
from django_tasklock.celery import LockedTask
from django_tasklock.celery.body import Body
from django_tasklock.celery.delivery import Delivery
from django_tasklock.celery.locked_run import LockedRun
from django_tasklock.guards import StatusGuard
from tests.app.models import Job
from tests.mailroom import Mailroom
from tests.steps import taken

GUARD = StatusGuard(
    "app.Job", pk="job", source="queued", to="working", done="done", failed="failed"
)


@pytest.fixture
def row(transactional_db: None) -> Job:
    row: Job = Job.objects.create()
    return row


def status(row: Job) -> str:
    row.refresh_from_db()
    return row.status


class Hooked(LockedTask):
    """Notes what its hooks see."""

    seen: list[tuple[str, Any]]
    request: Any

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        """Note what the body has left on the request."""
        self.seen.append(("on_success", self.request.left_by_the_body))

    def after_return(self, *args: Any) -> None:
        """Note what the body has left on the request."""
        self.seen.append(("after_return", self.request.left_by_the_body))


class Number:
    """What a mixin makes of an argument."""

    def __init__(self, number: int) -> None:
        self.number = number


class Converting(Task):
    """A mixin that hands the body objects made of the arguments."""

    def __call__(self, job: Any, *args: Any) -> Any:
        """Call the body with an object."""
        return super().__call__(Number(job), *args)


class Converted(Converting, LockedTask):
    """The mixin's call comes before ours."""


def test_a_body_breaks_its_chain(room: Mailroom) -> None:
    def work(self: Any, job: Any) -> str:
        self.request.chain = None
        return "enough"

    task, following = room.task(work), room.task(lambda self, job: "too much")
    chain(task.s(1), following.si(2)).apply_async()
    assert room.deliver(room.take()) == ("SUCCESS", "enough")
    assert room.waiting() == []


def test_a_run_that_starts_over_is_followed_by_what_the_message_says(room: Mailroom) -> None:
    """What a run that lost its lease had made of the chain ends with that run."""
    runs: list[str] = []

    def work(self: Any, job: Any) -> str:
        runs.append("run")
        if len(runs) == 1:
            self.request.chain = self.request.callbacks = None
        elif len(runs) == 2:
            self.request.chain += self.request.chain
        elif len(runs) == 3:
            self.request.chain.clear()
            self.request.callbacks.clear()
        else:
            return "done"
        self.lease._deadline = clock.now() - 1
        self.lease.assert_held()
        raise AssertionError("the lease was over")

    first = room.task(work, acks_late=True)
    step = room.task(lambda self, job: runs.append("step"))
    link = room.task(lambda self, job: runs.append("link"))
    chain(first.si(1).set(link=[link.si(3)]), step.si(2)).apply_async()
    room.work_off()
    assert sorted(runs) == ["link", *["run"] * 4, "step"]


def test_a_run_that_starts_over_has_the_arguments_of_the_message(room: Mailroom) -> None:
    """What a run that lost its lease had changed in them ends with that run."""
    seen: list[Any] = []

    def work(self: Any, job: Any, other: Any = None) -> str:
        seen.append(json.dumps([job, other]))
        job.pop("id")
        other[0]["parts"].append(len(seen))
        if len(seen) == 3:
            return "done"
        self.lease._deadline = clock.now() - 1
        self.lease.assert_held()
        raise AssertionError("the lease was over")

    task = room.register(work, bind=True, lock_name="job:{job[id]}", acks_late=True)
    task.delay({"id": 1, "how": "fast"}, other=[{"parts": []}])
    assert [state for state, _ in room.work_off()] == ["IGNORED", "IGNORED", "SUCCESS"]
    assert seen == ['[{"id": 1, "how": "fast"}, [{"parts": []}]]'] * 3


@pytest.mark.parametrize("late", [False, True], ids=["", "acks_late"])
@pytest.mark.parametrize("eager", [False, True], ids=["", "eager"])
def test_a_call_in_a_hook_takes_the_lock_of_its_own_arguments(
    room: Mailroom, late: bool, eager: bool
) -> None:
    class Next(LockedTask):
        abstract = True

        def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
            if args[0] == 1:
                assert self(2) == "job:2"

    seen: list[tuple[str, Any]] = []

    def work(self: Any, job: Any) -> str:
        seen.append((self.lease.name, self.request.args))
        return str(self.lease.name)

    task = room.task(work, base=Next, acks_late=late, unique_while="queued")
    if eager:
        assert task.apply((1,)).get() == "job:1"
    else:
        task.delay(1)
        assert room.deliver(room.take()) == ("SUCCESS", "job:1")
    assert [(name, [*args]) for name, args in seen] == [("job:1", [1]), ("job:2", [2])]
    assert (locks.list(), room.redis.keys(f"*queued {task.name} *")) == ([], [])


def test_what_a_body_sets_on_its_request_reaches_its_hooks(room: Mailroom) -> None:
    Hooked.seen = []

    def body(self: Any, job: int) -> None:
        self.request.left_by_the_body = job

    room.register(body, bind=True, base=Hooked, name="hooked", lock_name="job:{job}").delay(7)
    assert room.deliver(room.take())[0] == "SUCCESS"
    assert Hooked.seen == [("on_success", 7), ("after_return", 7)]


@pytest.mark.parametrize("base", [LockedTask, Converted])
def test_the_request_is_that_of_the_worker(room: Mailroom, base: Any) -> None:
    requests: list[Any] = []

    @signals.task_prerun.connect
    def note(task: Any, **_: Any) -> None:
        requests.append(task.request)

    def body(self: Any, job: Any) -> Any:
        requests.append(self.request)
        assert current_task.request is self.request
        assert self.lease.held
        return self.request.headers

    try:
        task = room.register(body, bind=True, base=base, name="plain", lock_name="job:{job}")
        task.apply_async((1,), headers={"of": "the user"})
        assert room.deliver(room.take()) == ("SUCCESS", {"of": "the user"})
        assert requests[0] is requests[1]
        assert not [name for name in vars(requests[0]) if name.startswith("tasklock_")]
    finally:
        signals.task_prerun.disconnect(note)


def test_the_name_and_the_row_are_of_the_message_whatever_a_mixin_makes_of_it(
    room: Mailroom, row: Job
) -> None:
    seen: list[tuple[str, int, str]] = []

    def body(self: Any, job: Any) -> None:
        seen.append((self.lease.name, job.number, status(row)))
        if not self.request.retries:
            raise self.retry(countdown=0)

    task = room.register(
        body, bind=True, base=Converted, name="converted", lock_name="job:{job}", guard=GUARD
    )
    task.delay(row.pk)
    lease = taken(f"job:{row.pk}")
    state, value = room.deliver(room.take())
    assert (state, value["reason"]) == ("SUCCESS", "already_processing")
    lease.release()
    task.delay(row.pk)
    assert [state for state, _ in room.work_off()] == ["RETRY", "SUCCESS"]
    assert seen == [(f"job:{row.pk}", row.pk, "working")] * 2
    assert status(row) == "done"


@pytest.mark.parametrize("fence_field", [None, "lock_fence"])
@pytest.mark.parametrize("lock_name", ["job:{job}", "other:{job}"])
def test_the_replacement_of_a_guarded_task_works_on_its_row(
    room: Mailroom, row: Job, lock_name: str, fence_field: str | None
) -> None:
    guard = StatusGuard(
        "app.Job",
        pk="job",
        source="queued",
        to="working",
        done="done",
        failed="failed",
        fence_field=fence_field,
    )
    runs: list[str] = []
    other = room.task(lambda self, job: runs.append("other"), lock_name=lock_name, guard=guard)

    def work(self: Any, job: Any) -> Any:
        runs.append("task")
        raise self.replace(other.s(job))

    room.task(work, acks_late=True, guard=guard).delay(row.pk)
    assert room.deliver(room.take())[0] == "IGNORED"
    assert status(row) == "queued"
    assert room.deliver(room.take()) == ("SUCCESS", None)
    assert (status(row), runs) == ("done", ["task", "other"])


def test_the_row_waits_already_when_the_replacement_is_sent(room: Mailroom, row: Job) -> None:
    """Another worker may have it before this run has ended: the row is that one's then."""
    seen: list[str] = []

    def other_work(self: Any, job: Any) -> None:
        seen.append(status(row))

    other = room.task(other_work, lock_name="other:{job}", guard=GUARD)

    class AtOnce(LockedTask):
        def on_replace(self, sig: Any) -> Any:
            try:
                return super().on_replace(sig)
            finally:
                assert room.deliver(room.take()) == ("SUCCESS", None)

    def body(self: Any, job: Any) -> Any:
        raise self.replace(other.s(job))

    room.register(
        body, bind=True, base=AtOnce, name="replaced", lock_name="job:{job}", guard=GUARD
    ).delay(row.pk)
    assert room.deliver(room.take())[0] == "IGNORED"
    assert (status(row), seen) == ("done", ["working"])


@pytest.mark.parametrize("lock_name", ["job:{job}", "other:{job}"])
def test_an_eager_replacement_finishes_the_row(room: Mailroom, row: Job, lock_name: str) -> None:
    room.app.conf.task_always_eager = True
    other = room.task(lambda self, job: f"other:{job}", lock_name=lock_name, guard=GUARD)

    def work(self: Any, job: Any) -> Any:
        with allow_join_result():  # Or Celery refuses it, for a plain task too.
            return self.replace(other.s(job))

    task = room.task(work, guard=GUARD)
    assert task.delay(row.pk).get() == f"other:{row.pk}"
    assert status(row) == "done"


def test_a_body_that_ignores_itself_has_not_been_replaced(room: Mailroom, row: Job) -> None:
    def work(self: Any, job: Any) -> None:
        raise Ignore

    room.task(work, guard=GUARD).delay(row.pk)
    assert room.deliver(room.take())[0] == "IGNORED"
    assert status(row) == "failed"


@pytest.mark.parametrize("eager", [False, True])
def test_each_call_of_a_task_sees_its_own_lease(room: Mailroom, eager: bool) -> None:
    """A call inside the body, under another lock's name, leaves the outer lease where it was."""

    def work(self: Any, job: int) -> list[str]:
        mine = self.lease
        inner = self(job - 1) if job else []
        assert self.lease is mine
        assert mine.held
        return [mine.name, *inner]

    task = room.task(work)
    if eager:
        assert task.apply((2,)).get() == ["job:2", "job:1", "job:0"]
    else:
        task.delay(2)
        assert room.deliver(room.take()) == ("SUCCESS", ["job:2", "job:1", "job:0"])
    with pytest.raises(RuntimeError, match="holds no lease"):
        _ = task.lease


def test_an_eager_call_inside_the_body_sees_its_own_lease(room: Mailroom) -> None:
    def work(self: Any, job: int) -> list[str]:
        mine = self.lease
        inner = self.apply((job - 1,)).get(disable_sync_subtasks=False) if job else []
        assert self.lease is mine
        return [mine.name, *inner]

    task = room.task(work)
    task.delay(1)
    assert room.deliver(room.take()) == ("SUCCESS", ["job:1", "job:0"])


def test_runs_in_two_threads_see_their_own_leases(room: Mailroom) -> None:
    both = threading.Barrier(2, timeout=20)

    def work(self: Any, job: int) -> list[str]:
        both.wait()
        names = [self.lease.name, self.request.id]
        both.wait()
        return names

    task = room.task(work)
    sent = [task.delay(number) for number in (1, 2)]
    messages = [room.take(), room.take()]
    said: dict[str, Any] = {}
    threads = [
        threading.Thread(target=lambda m=message: said.update({m.id: room.deliver(m)}))
        for message in messages
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert said == {
        result.id: ("SUCCESS", [f"job:{number}", result.id])
        for number, result in enumerate(sent, 1)
    }


def test_a_retry_keeps_what_the_user_put_into_the_headers_and_nothing_else(room: Mailroom) -> None:
    def work(self: Any, job: Any) -> Any:
        self.request.note = object()  # Would not go into a message.
        if not self.request.retries:
            raise self.retry(countdown=0)
        return self.request.headers

    room.task(work).apply_async((1,), headers={"of": "the user"})
    outcomes = room.work_off()
    assert outcomes[-1] == ("SUCCESS", {"of": "the user"})


def test_a_direct_call_gets_a_request_of_its_own_as_in_celery(room: Mailroom) -> None:
    def work(self: Any, job: Any) -> Any:
        return (self.request.id, self.request.args, self.request.called_directly)

    assert room.task(work)(1) == (None, (1,), True)


def test_without_bind_the_current_task_has_the_request(room: Mailroom) -> None:
    def body(job: int) -> Any:
        task: Any = current_task
        task.lease.assert_held()
        current_task.request.chain = None
        return current_task.request.id

    task = room.register(body, name="unbound", lock_name="job:{job}")
    following = room.task(lambda self, job: "too much")
    chain(task.s(1), following.si(2)).apply_async()
    message = room.take()
    assert room.deliver(message) == ("SUCCESS", message.id)
    assert room.waiting() == []


def test_a_run_leaves_nothing_to_the_garbage_collector(room: Mailroom) -> None:
    """It would hold the request and the arguments of each call until then."""

    def of_runs() -> list[object]:
        return [each for each in gc.get_objects() if isinstance(each, Body | LockedRun | Delivery)]

    room.task(acks_late=True).delay(1)
    gc.collect()
    gc.disable()
    try:
        before = of_runs()
        assert room.deliver(room.take())[0] == "SUCCESS"
        assert len(of_runs()) == len(before)
    finally:
        gc.enable()
