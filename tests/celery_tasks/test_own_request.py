"""In the body ``self.request`` is Celery's own request, as in a plain task."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest
from celery import Task, chain, current_task, signals
from celery.result import allow_join_result

from django_tasklock.celery import LockedTask
from tests.app.models import Job
from tests.celery_tasks.conftest import FENCES, call, held_elsewhere, job_guard, raising, status
from tests.mailroom import Mailroom, Runs
from tests.steps import Meanwhile

NAMES = pytest.mark.parametrize("lock_name", ["job:{job}", "other:{job}"])


class Converting(Task):
    """A mixin that hands the body objects made of the arguments."""

    def __call__(self, job: Any, *args: Any) -> Any:
        """Call the body with an object."""
        return super().__call__(complex(job), *args)


class Converted(Converting, LockedTask):
    """The mixin's call comes before ours."""


@pytest.mark.parametrize("bind", [True, False])
def test_a_body_breaks_its_chain(room: Mailroom, bind: bool) -> None:
    # Given a body that changes its request, as Celery's manual shows
    def work(self: Any, job: Any) -> Any:
        self.request.chain = None
        return self.request.id

    def unbound(job: int) -> Any:
        now: Any = current_task
        now.lease.assert_held()
        return work(now, job)

    body: Any = work if bind else unbound
    task = room.register(body, bind=bind, name="breaks", lock_name="job:{job}")
    chain(task.s(1), room.task().si(2)).apply_async()

    # I expect Celery to do what the request says: the chain ends here
    message = room.take()
    assert room.deliver(message) == ("SUCCESS", message.id)
    assert room.waiting() == []


def test_what_a_body_sets_on_its_request_reaches_its_hooks(room: Mailroom) -> None:
    seen: list[tuple[str, Any]] = []

    class Hooked(LockedTask):
        abstract = True
        request: Any

        def on_success(self, *_: Any) -> None:
            seen.append(("on_success", self.request.left_by_the_body))

        def after_return(self, *_: Any) -> None:
            seen.append(("after_return", self.request.left_by_the_body))

    def work(self: Any, job: int) -> None:
        self.request.left_by_the_body = job

    assert room.deliver(room.message(work, 7, base=Hooked))[0] == "SUCCESS"
    assert seen == [("on_success", 7), ("after_return", 7)]


def test_a_call_in_a_hook_takes_the_lock_of_its_own_arguments(room: Mailroom) -> None:
    class Next(LockedTask):
        abstract = True

        def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
            if args[0] == 1:
                assert self(2) == "job:2"

    room.task(lambda self, job: self.lease.name, base=Next, acks_late=True).delay(1)
    assert room.work_off() == [("SUCCESS", "job:1")]


def test_another_class_may_repeat_the_call_of_a_message(room: Mailroom) -> None:
    """After an error, as of a connection that was cut: it is the message's run again, which may
    wait for its lock in the queue."""

    class Twice(Task):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            try:
                return super().__call__(*args, **kwargs)
            except LookupError:
                with held_elsewhere():
                    return super().__call__(*args, **kwargs)

    class Base(Twice, LockedTask):
        abstract = True

    runs = Runs(raising(LookupError()), None)
    message = room.message(runs, base=Base, acks_late=True, on_conflict="retry")
    sent = message.ours["sent"]
    assert room.deliver(message)[0] == "IGNORED"
    assert [(each.id, each.ours["sent"]) for each in room.waiting()] == [(message.id, sent)]
    assert room.work_off() == [("SUCCESS", None)]
    assert runs == [message.id] * 2


@pytest.mark.parametrize("base", [LockedTask, Converted])
def test_the_request_is_that_of_the_worker(room: Mailroom, base: Any) -> None:
    requests: list[Any] = []

    def note(task: Any, **_: Any) -> None:
        requests.append(task.request)

    def body(self: Any, job: Any) -> Any:
        requests.append(self.request)
        assert current_task.request is self.request
        assert (self.lease.name, job) == ("job:1", 1 if base is LockedTask else complex(1))
        vars(self.request)["note"] = object()  # Would not go into a message.
        return self.request.headers if self.request.retries else self.retry(countdown=0)

    task = room.register(body, bind=True, base=base, name="plain", lock_name="job:{job}")
    task.apply_async((1,), headers={"of": "the user"})
    signals.task_prerun.connect(note)
    try:
        assert room.work_off()[-1] == ("SUCCESS", {"of": "the user"})
    finally:
        signals.task_prerun.disconnect(note)
    assert requests[0] is requests[1]
    assert not [name for name, has in vars(requests[0]).items() if "tasklock_" in name and has]


def test_the_row_is_that_of_the_message_whatever_a_mixin_makes_of_it(
    room: Mailroom, row: Job
) -> None:
    def body(self: Any, job: Any) -> Any:
        assert (self.lease.name, job, status(row)) == (f"job:{row.pk}", row.pk, "working")

    options = {"base": Converted, "lock_name": "job:{job}", "guard": job_guard()}
    room.register(body, bind=True, name="converted", **options).delay(row.pk)
    assert room.work_off() == [("SUCCESS", None)]
    assert status(row) == "done"


def test_a_direct_call_gets_a_request_of_its_own_as_in_celery(room: Mailroom) -> None:
    task = room.task(lambda self, job: self.request)
    assert (task(1).id, task(1).args, task(1).called_directly) == (None, (1,), True)


# ------------------------------------------------------------------------------ replacements


def replaced_by(other: Any) -> Any:
    """The body of a task that another one replaces."""
    return lambda self, job: self.replace(other.s(job))


@FENCES
@NAMES
def test_26_the_replacement_of_a_guarded_task_works_on_its_row(
    room: Mailroom, row: Job, lock_name: str, fence: str | None
) -> None:
    guard = job_guard(fence)
    other = room.task(lambda self, job: status(row), lock_name=lock_name, guard=guard)
    message = room.message(replaced_by(other), row.pk, acks_late=True, guard=guard)
    assert room.deliver(message)[0] == "IGNORED"
    assert status(row) == "queued"
    assert room.deliver(room.take()) == ("SUCCESS", "working")
    assert status(row) == "done"


def test_the_row_waits_already_when_the_replacement_is_sent(room: Mailroom, row: Job) -> None:
    """Another worker may have it before this run has ended: the row is that one's then."""
    guard = job_guard()
    other = room.task(lambda self, job: status(row), lock_name="other:{job}", guard=guard)

    class AtOnce(LockedTask):
        abstract = True

        def on_replace(self, sig: Any) -> Any:
            try:
                return super().on_replace(sig)
            finally:
                assert room.deliver(room.take()) == ("SUCCESS", "working")

    message = room.message(replaced_by(other), row.pk, base=AtOnce, guard=guard)
    assert room.deliver(message)[0] == "IGNORED"
    assert status(row) == "done"


@NAMES
def test_an_eager_replacement_finishes_the_row(room: Mailroom, row: Job, lock_name: str) -> None:
    room.app.conf.task_always_eager = True
    other = room.task(lock_name=lock_name, guard=job_guard())

    def work(self: Any, job: Any) -> Any:
        with allow_join_result():  # Or Celery refuses it, for a plain task too.
            return self.replace(other.s(job))

    assert room.task(work, guard=job_guard()).delay(row.pk).get() == f"done:{row.pk}"
    assert status(row) == "done"


# ------------------------------------------------------------------------------ leases


@pytest.mark.parametrize("inner", ["directly", "eagerly"])
@pytest.mark.parametrize("outer", ["as a message", "eagerly"])
def test_each_call_of_a_task_sees_its_own_lease(room: Mailroom, inner: str, outer: str) -> None:
    """A call inside the body, under another lock's name, leaves the outer lease where it was."""

    def work(self: Any, job: int) -> list[str]:
        mine = self.lease
        names = call(self, inner, job - 1) if job else []
        assert self.lease is mine
        assert mine.held
        return [mine.name, *names]

    task = room.task(work)
    if outer == "eagerly":
        said = call(task, outer, 2)
    else:
        task.delay(2)
        _, said = room.deliver(room.take())
    assert said == ["job:2", "job:1", "job:0"]
    with pytest.raises(RuntimeError, match="holds no lease"):
        _ = task.lease


def test_runs_in_two_threads_see_their_own_leases(room: Mailroom) -> None:
    both = threading.Barrier(2, timeout=20)

    def work(self: Any, job: int) -> list[str]:
        both.wait()
        names = [self.lease.name, self.request.id]
        both.wait()
        return names

    task = room.task(work)
    results = [task.delay(number) for number in (1, 2)]
    runs = [Meanwhile(partial(room.deliver, room.take())) for _ in results]
    for number, (result, run) in enumerate(zip(results, runs, strict=True), 1):
        assert run.result() == ("SUCCESS", [f"job:{number}", result.id])
