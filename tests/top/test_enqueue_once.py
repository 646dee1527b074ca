"""``enqueue_once``: of one job of Django's tasks, one call waits.

On a stand-in for a backend, as every Django can have it, and on Django's own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Any

import django
import pytest
from asgiref.sync import async_to_sync, iscoroutinefunction
from django.dispatch import Signal
from django.test import override_settings

from django_tasklock import AlreadyQueued, LockNotAcquired, StoreUnavailable, lock, locks
from django_tasklock.signals import lock_acquired, lock_contended
from django_tasklock.stores import stores
from django_tasklock.tasks import aenqueue_once, enqueue_once, locked
from tests.agent import Agent
from tests.conftest import UseRedis
from tests.inside import operators
from tests.proxy import CutProxy
from tests.steps import LONG, Meanwhile, all_of, sent, taken, waiting
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("on_redis")


class Unknown(Exception):
    """No task has a result with this id."""


@dataclass
class Result:
    id: str
    args: Any
    kwargs: Any
    is_finished: bool = False


@dataclass
class Task:
    """What ``@task()`` makes of a function, and its backend: a queue, whose worker is `run`."""

    func: Any
    takes_context: bool = False
    run_after: datetime | None = None
    queue: list[Result] = field(default_factory=list)
    known: dict[str, Result] = field(default_factory=dict)
    ids: Any = field(default_factory=lambda: itertools.count(1))
    meanwhile: Any = None
    """called while something is enqueued"""
    at_once: bool = False
    """whether it runs before `enqueue` returns"""

    def enqueue(self, *args: Any, **kwargs: Any) -> Result:
        if self.meanwhile is not None:
            self.meanwhile()
        result = Result(f"id-{next(self.ids)}", args, kwargs)
        self.known[result.id] = result
        self.queue.append(result)
        if self.at_once:
            self.run()
        return result

    def get_result(self, result_id: str) -> Result:
        try:
            return self.known[result_id]
        except KeyError:
            raise Unknown(result_id) from None

    def run(self) -> Any:
        """Run the call that was enqueued first."""
        result = self.queue.pop(0)
        context = type("Context", (), {"task_result": result})
        call = async_to_sync(self.func) if iscoroutinefunction(self.func) else self.func
        try:
            return call(*[context] * self.takes_context, *result.args, **result.kwargs)
        finally:
            result.is_finished = True


def task(function: Callable[..., Any] | None = None, **options: Any) -> Task:
    """A task of account 7, say, whose lock is ``account:7``."""

    def sync(account: int, amount: int = 0) -> str:
        return "done"

    return Task(locked("account:{account}", **options)(function or sync))


def gone(proxy: CutProxy) -> None:
    """From now on the store is not there."""
    proxy.refuse()
    proxy.cut()


@contextmanager
def told(which: Signal, receive: Callable[..., None]) -> Iterator[None]:
    """Have a signal received."""
    which.connect(receive)
    try:
        yield
    finally:
        which.disconnect(receive)


def reserved() -> list[Any]:
    """What ``manage.py locks list --queued`` shows."""
    found: list[Any] = operators("held").queued_jobs(stores["default"])
    return found


# ------------------------------------------------------------------------------ the caller


def test_of_one_job_one_call_waits_and_the_others_get_its_result() -> None:
    # Given a job of which a call waits, and further ones, whatever their other arguments are
    sync = task()
    first = enqueue_once(sync, 7, amount=1)
    again = [enqueue_once(sync, 7), enqueue_once(sync, account=7, amount=2)]

    # I expect these to get the result of the one that waits, and another job to be enqueued
    assert [each.id for each in (first, *again)] == [first.id] * 3
    assert enqueue_once(sync, 8).id != first.id
    assert [each.args for each in sync.queue] == [(7,), (8,)]

    # And the list of reservations to have both
    path = f"{__name__}.task.<locals>.sync"
    shown = {(each.task, each.name, each.task_id) for each in reserved()}
    assert shown == {(path, "account:7", "id-1"), (path, "account:8", "id-2")}

    # And an ordinary call to be enqueued all the same
    assert sync.enqueue(7) in sync.queue


def test_of_calls_at_the_same_time_one_is_enqueued() -> None:
    sync = task()

    def enqueue() -> str | None:
        try:
            return str(enqueue_once(sync, 7).id)
        except AlreadyQueued as error:
            return error.task_id  # None while the first one is being enqueued.

    assert {*all_of(*[enqueue] * 20)} - {None} == {"id-1"}
    assert len(sync.queue) == 1


def test_a_duplicate_of_what_the_backend_does_not_know_raises() -> None:
    sync = task()
    enqueue_once(sync, 7)
    sync.known.clear()
    with pytest.raises(AlreadyQueued, match="'account:7' is in the queue already, as id-1") as said:
        enqueue_once(sync, 7)
    assert (said.value.task_id, said.value.holder) == ("id-1", None)
    assert isinstance(said.value.__cause__, Unknown)

    # As long as no id is known there is none to be told
    other = task()
    other.meanwhile = lambda: enqueue_once(other, 8)
    with pytest.raises(AlreadyQueued, match=r"'account:8' is in the queue already$") as said:
        enqueue_once(other, 8)
    assert said.value.task_id is None


def test_a_call_that_cannot_be_enqueued_leaves_no_reservation() -> None:
    sync = task()

    def other() -> None:
        raise AlreadyQueued("another job", None, "id-9")

    for error, meanwhile in ((ZeroDivisionError, lambda: 1 / 0), (AlreadyQueued, other)):
        sync.meanwhile = meanwhile
        with pytest.raises(error):
            enqueue_once(sync, 7)
    sync.meanwhile = None
    assert enqueue_once(sync, 7) is sync.queue[0]


def test_a_call_that_meets_an_outage_is_not_enqueued_and_leaves_no_reservation(
    use_redis: UseRedis, cut_proxy: CutProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_redis(cut_proxy.url)
    sync = task()
    reserve = stores["default"].reserve

    def reserved_unseen(*args: Any, **options: Any) -> Any:
        assert reserve(*args, **options) is None
        gone(cut_proxy)
        return reserve(*args, **options)

    monkeypatch.setattr(stores["default"], "reserve", reserved_unseen)
    with pytest.raises(StoreUnavailable):
        enqueue_once(sync, 7)
    assert sync.queue == []
    cut_proxy.accept()
    until(lambda: not reserved())
    monkeypatch.undo()
    # Nor does one fail that is enqueued, when its id cannot be written any more
    sync.meanwhile = lambda: gone(cut_proxy)
    assert enqueue_once(sync, 7) is sync.queue[0]
    cut_proxy.accept()
    sync.meanwhile = None
    with pytest.raises(AlreadyQueued):
        enqueue_once(sync, 7)


def test_a_reservation_lasts_for_unique_for_beyond_the_moment_before_which_nothing_runs() -> None:
    sync, soon = task(), task(unique_for=20)
    enqueue_once(sync, 1)
    enqueue_once(soon, 2)
    enqueue_once(replace(soon, run_after=datetime.now(timezone.utc) + timedelta(seconds=500)), 3)
    enqueue_once(replace(soon, run_after=datetime.now() + timedelta(seconds=500)), 4)  # noqa: DTZ005
    enqueue_once(replace(soon, run_after=datetime.now(timezone.utc) - timedelta(days=1)), 5)
    lasts = {each.name: round(each.ttl, -1) for each in reserved()}
    hour = {"account:1": 3600.0}
    assert lasts == hour | {f"account:{n}": 520.0 if n in (3, 4) else 20.0 for n in (2, 3, 4, 5)}


def test_the_senders_name_is_the_runs_and_a_sender_has_no_context() -> None:
    def sync(context: Any, account: int) -> Any:
        return locks.get(f"account:{account}").owner.task_id  # type: ignore[union-attr]

    for name in ("account:{account}", lambda context, account: f"account:{account}"):
        own = Task(locked(name)(sync), takes_context=True)
        result = enqueue_once(own, 7)
        assert own.run() == result.id
        assert reserved() == []
    for name in (
        "account:{context.attempt}", "account:{context}", lambda context, account: context.attempt
    ):  # fmt: skip
        own = Task(locked(name)(sync), takes_context=True)
        with pytest.raises((ValueError, TypeError, AttributeError), match="NoContextBeforeTheRun"):
            enqueue_once(own, 7)
    with pytest.raises(TypeError):
        enqueue_once(Task(locked(lambda context, account: account)(sync)), 7, 8)
    assert reserved() == []


@pytest.mark.parametrize("wrong", [print, Task(print), locked("job")(lambda: None)])
def test_only_a_task_whose_function_is_locked_is_enqueued(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"takes a task, @task\(\) over @locked"):
        enqueue_once(wrong)


def test_it_can_be_awaited() -> None:
    sync = task()

    async def twice() -> list[str]:
        return [(await aenqueue_once(sync, 7)).id for _ in "ab"]

    assert async_to_sync(twice)() == ["id-1"] * 2


# ------------------------------------------------------------------------------ the run


@pytest.mark.parametrize("is_async", [False, True])
def test_the_reservation_ends_when_the_run_has_the_lock(is_async: bool) -> None:
    calls: list[str] = []

    def body(account: int) -> None:
        assert locks.is_locked("account:7")
        calls.append(enqueue_once(sync, 7).id)

    async def abody(account: int) -> None:
        assert await locks.ais_locked("account:7")
        calls.append((await aenqueue_once(sync, 7)).id)

    # Given a run that waits for the lock, which another one has
    sync = task(abody if is_async else body, wait=LONG)
    first, lease = enqueue_once(sync, 7), taken("account:7")
    run = Meanwhile(sync.run)
    until(lambda: waiting("account:7") == 1)
    # I expect a call to be its duplicate till then, and one that its body makes to be enqueued
    assert enqueue_once(sync, 7) is first
    assert lease.release()
    run.result()
    assert calls == ["id-2"] == [each.id for each in sync.queue]


@pytest.mark.parametrize("on_conflict", ["skip", "raise"])
def test_a_run_that_is_not_to_run_ends_the_reservation(on_conflict: str) -> None:
    sync = task(on_conflict=on_conflict)
    enqueue_once(sync, 7)
    with lock("account:7", ttl=LONG):
        if on_conflict == "skip":
            assert sync.run()["reason"] == "already_processing"
        else:
            with pytest.raises(LockNotAcquired):
                sync.run()
        assert enqueue_once(sync, 7).id == "id-2"


def test_a_run_that_is_not_to_run_tries_once_more_without_its_reservation() -> None:
    """A call that was refused may rely on it, while the lock's holder was just ending. The second
    try does not wait once more."""
    sync = task(wait=0.1)
    first, lease = enqueue_once(sync, 7), taken("account:7")

    def ends(**said: Any) -> None:
        waits.append(said["wait"])
        assert enqueue_once(sync, 7) is first
        lease.release()

    waits: list[float] = []
    with told(lock_contended, ends):
        assert sync.run() == "done"
    enqueue_once(sync, 7)
    with lock("account:7", ttl=LONG), sent(lock_contended) as refused:
        assert sync.run()["reason"] == "already_processing"
    assert waits + [each["wait"] for each in refused] == [0.1, 0.1, 0]


def test_a_run_that_meets_an_outage_ends_its_reservation_as_soon_as_the_store_answers(
    use_redis: UseRedis, cut_proxy: CutProxy
) -> None:
    use_redis(cut_proxy.url)
    sync = task(hold_at_least=LONG)
    enqueue_once(sync, 7)
    with cut_proxy.away(), pytest.raises(StoreUnavailable):
        sync.run()
    until(lambda: not reserved())
    # Also one that was refused, and cannot end it now
    enqueue_once(sync, 7)

    def falls_silent(**_: Any) -> None:
        gone(cut_proxy)

    with Agent() as agent:
        assert agent.ask("acquire", name="account:7", ttl=LONG)
        with told(lock_contended, falls_silent), pytest.raises(StoreUnavailable):
            sync.run()
        cut_proxy.accept()
        until(lambda: not reserved())
    # One that has the lock already gives it back, and does not begin
    enqueue_once(sync, 7)

    def leaves(**_: Any) -> None:
        gone(cut_proxy)

    with told(lock_acquired, leaves), pytest.raises(StoreUnavailable) as kept:
        sync.run()
    cut_proxy.accept()
    until(lambda: not (reserved() or locks.is_locked("account:7")))
    del kept  # With its frames, and all that they have.


def test_a_call_that_has_run_when_it_was_enqueued_leaves_no_reservation() -> None:
    sync = task()
    sync.at_once = True
    assert [enqueue_once(sync, 7).id for _ in "ab"] == ["id-1", "id-2"]
    assert reserved() == []


def test_a_call_takes_over_from_one_that_has_ended_and_could_not_say_so() -> None:
    sync = task()
    first = enqueue_once(sync, 7)
    # Given a worker that was killed before it could ask for the lock, which its backend knows
    sync.queue.clear()
    assert enqueue_once(sync, 7) is first
    first.is_finished = True
    second = enqueue_once(sync, 7)
    assert (second.id, enqueue_once(sync, 7)) == ("id-2", second)


# ------------------------------------------------------------------------------ Django's backends


@pytest.mark.skipif(django.VERSION < (6, 0), reason="Django has tasks since 6.0")
@pytest.mark.parametrize("name", ["immediate.ImmediateBackend", "dummy.DummyBackend"])
def test_on_djangos_own_backends(name: str) -> None:
    from tests import django_tasks

    with override_settings(TASKS={"default": {"BACKEND": f"django.tasks.backends.{name}"}}):
        in_async: Any = django_tasks.in_async
        one, two = enqueue_once(in_async, 7), async_to_sync(aenqueue_once)(in_async, 7)
        context = enqueue_once(django_tasks.with_context, 7)
        if name == "dummy.DummyBackend":  # It keeps what is enqueued, and runs nothing.
            assert (one.id, two.status.name) == (two.id, "READY")
            return
        # Each has run, before it was said to be enqueued: nothing waits any more.
        assert (one.return_value, two.return_value, one.id == two.id) == (True, True, False)
        assert context.return_value == context.id
        assert reserved() == []
