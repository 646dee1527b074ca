"""Uniqueness in the queue, message by message. With workers: ``tests/celery_tasks/queue``."""

from __future__ import annotations

import itertools
import pickle
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import celery
import celery.schedules
import pytest
from celery.beat import ScheduleEntry, Scheduler
from django.db import transaction
from kombu import Connection
from kombu.exceptions import EncodeError, OperationalError

from django_tasklock import (
    InvalidLockConfig,
    Lease,
    LockNotAcquired,
    StoreUnavailable,
    lock,
    locks,
)
from django_tasklock.celery import LockedTask
from django_tasklock.exceptions import AlreadyQueued
from django_tasklock.signals import lock_contended
from tests.conftest import UseCaches, UseRedis
from tests.mailroom import Mailroom, mailroom
from tests.servers import RedisServer, free_port
from tests.steps import Meanwhile, all_of, in_child
from tests.store_cases import own_prefix
from tests.waiting import PATIENCE, until

MODES = ["queued", "unfinished"]


# ------------------------------------------------------------------------------ duplicates


@pytest.mark.parametrize("mode", MODES)
def test_of_many_who_send_at_once_one_message_is_sent(room: Mailroom, mode: str) -> None:
    task = room.task(unique_while=mode)
    results = all_of(*[lambda: [task.delay(1).id for _ in range(25)] for _ in range(8)])
    (message,) = room.waiting()
    assert {task_id for ids in results for task_id in ids} == {message.id}


def test_without_the_option_every_call_is_sent(room: Mailroom) -> None:
    task = room.task()
    assert len({task.delay(1).id for _ in range(3)}) == 3
    assert len(room.waiting()) == 3


def test_a_job_is_its_task_and_its_locks_name(room: Mailroom) -> None:
    """However the arguments are passed; and two tasks under one lock are two jobs."""
    task, other = room.task(unique_while="queued"), room.task(unique_while="queued")
    first = task.delay(1)
    same = [task.apply_async(kwargs={"job": 1}), task.s(1).delay(), task.delay(1, other=2)]
    assert {result.id for result in same} == {first.id}
    different = [task.delay(2), other.delay(1)]
    assert room.ids() == [first.id, *(result.id for result in different)]


def test_the_default_lock_tells_every_argument_apart(room: Mailroom) -> None:
    task = room.task(lock_name=None, unique_while="queued")
    assert task.delay(1).id == task.delay(job=1, other=None).id
    assert task.delay(1, other=2).id != task.delay(1).id
    assert len(room.waiting()) == 2


def test_every_way_to_send_a_task_is_one(room: Mailroom) -> None:
    task = room.task(unique_while="queued")
    first = task.apply_async([1], countdown=30)
    results = [
        task.delay(1),
        task.s(1).delay(),
        task.s(1).apply_async(countdown=5),
        task.si(1).set(eta=datetime.now(timezone.utc) + timedelta(hours=1)).apply_async(),
        task.signature((1,), immutable=True)(),
        task.apply_async([1], task_id="of-my-own"),
        task.apply_async([1], retry=False, priority=3, queue=room.queue),
    ]
    ids = {getattr(result, "id", first.id) for result in results}
    assert ids == {first.id}
    assert room.ids() == [first.id]


def test_a_duplicate_may_raise(room: Mailroom) -> None:
    task = room.task(unique_while="queued", on_duplicate="raise")
    first = task.delay(1)
    with pytest.raises(AlreadyQueued, match=first.id) as caught:
        task.delay(1)
    assert isinstance(caught.value, LockNotAcquired)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.name, copy.task_id, copy.holder) == ("job:1", first.id, None)
    assert room.ids() == [first.id]


def test_a_message_that_starts_ends_its_reservation(room: Mailroom) -> None:
    """ "queued": while one runs another may wait, and no third."""
    sent: list[str] = []

    def work(self: Any, job: Any) -> None:
        if not sent:
            sent.extend(self.delay(job).id for _ in range(3))

    task = room.task(work, unique_while="queued")
    first = task.delay(1)
    assert room.deliver(room.take()) == ("SUCCESS", None)
    assert len(set(sent)) == 1
    assert room.ids() == sent[:1] != [first.id]
    assert room.work_off() == [("SUCCESS", None)]
    assert task.delay(1).id not in (first.id, sent[0])


def test_unfinished_a_running_one_is_the_only_one(room: Mailroom) -> None:
    sent: list[str] = []

    def work(self: Any, job: Any) -> None:
        sent.extend(self.delay(job).id for _ in range(3))

    task = room.task(work, unique_while="unfinished")
    first = task.delay(1)
    assert room.deliver(room.take()) == ("SUCCESS", None)
    assert sent == [first.id] * 3
    assert room.waiting() == []
    assert task.delay(1).id != first.id


def test_unfinished_a_duplicate_of_a_running_one_may_raise(room: Mailroom) -> None:
    raised: list[AlreadyQueued] = []

    def work(self: Any, job: Any) -> None:
        with pytest.raises(AlreadyQueued) as caught:
            self.delay(job)
        raised.append(caught.value)

    task = room.task(work, unique_while="unfinished", on_duplicate="raise")
    first = task.delay(1)
    assert room.deliver(room.take())[0] == "SUCCESS"
    (error,) = raised
    assert error.holder is not None
    assert (error.task_id, error.holder.owner.task_id) == (first.id, first.id)
    assert str(error) == f"the job 'job:1' is running already, as {first.id}"


def test_unfinished_other_work_under_the_lock_is_no_duplicate(room: Mailroom) -> None:
    """A direct call, code with ``lock()``, another task: there is nothing of theirs to wait for."""
    task = room.task(lambda self, job: inside(job), unique_while="unfinished")
    other = room.task(lambda self, job: inside(job))

    def inside(job: int) -> str:
        return str(task.delay(job).id)

    with lock("job:1", ttl=60):
        assert inside(1) == room.take().id
    assert task(2) == room.take().id
    other.delay(3)
    state, sent = room.deliver(room.take())
    assert (state, sent) == ("SUCCESS", room.take().id)


def test_unfinished_a_dead_run_counts_if_its_message_is_delivered_again(
    room: Mailroom,
) -> None:
    for job, late in enumerate((False, True)):
        task = room.task(unique_while="unfinished", acks_late=late)
        in_child(partial(run_that_ends_nowhere, task.name, job))
        assert (task.delay(job).id == "of-the-dead") is late


def run_that_ends_nowhere(task: str, job: int) -> None:
    assert isinstance(
        locks.try_acquire(f"job:{job}", ttl=60, task=task, task_id="of-the-dead"), Lease
    )


# ------------------------------------------------------------------------------ for how long


def test_a_reservation_lasts_until_the_eta_and_then_its_own_time(room: Mailroom) -> None:
    task = room.task(unique_while="queued", unique_for=0.5)
    room.app.conf.update(timezone="Asia/Tokyo")
    now = datetime.now(timezone.utc)
    eta = now + timedelta(seconds=1)
    ways: list[dict[str, Any]] = [
        {"countdown": 1},
        {"eta": eta},
        {"eta": eta.replace(tzinfo=None)},  # UTC, as Celery takes it
        {"eta": eta.astimezone(room.app.timezone).isoformat()},
        {"countdown": 1, "expires": 600},
    ]
    assert_let_in_after(1.5, now, task, ways)


def test_a_reservation_ends_when_the_message_expires(room: Mailroom) -> None:
    task = room.task(unique_while="queued", unique_for=600)
    short = room.task(unique_while="queued", expires=1)
    now = datetime.now(timezone.utc)
    moment = now + timedelta(seconds=1)
    ways: list[dict[str, Any]] = [
        {"expires": 1},
        {"expires": moment, "countdown": 30},
        {"expires": moment.isoformat()},
    ]
    assert_let_in_after(1, now, task, ways)
    assert_let_in_after(1, datetime.now(timezone.utc), short, [{}])


def assert_let_in_after(
    seconds: float, since: datetime, task: Any, ways: list[dict[str, Any]]
) -> None:
    """A second message is sent so many seconds after ``since``, for each way to send one."""
    firsts = {job: task.apply_async([job], **options).id for job, options in enumerate(ways)}
    passed = 0.0
    while firsts:
        passed = (datetime.now(timezone.utc) - since).total_seconds()
        assert passed < seconds + PATIENCE, f"not let in: {[ways[job] for job in firsts]}"
        for job in list(firsts):
            sent = task.apply_async([job]).id
            answered = (datetime.now(timezone.utc) - since).total_seconds()
            if sent != firsts[job]:
                assert answered > seconds - 0.1, f"let in after {answered} s: {ways[job]}"
                del firsts[job]
    assert passed < seconds + PATIENCE / 4


def test_a_reservation_of_a_lost_message_ends_by_itself(room: Mailroom) -> None:
    task = room.task(unique_while="unfinished", unique_for=0.3)
    first = task.delay(1)
    room.take()
    until(lambda: task.delay(1).id != first.id)
    assert len(room.waiting()) == 1


def test_a_revoked_message_keeps_no_reservation(room: Mailroom) -> None:
    """What the worker that was told of it has written to the result backend is enough."""
    task = room.task(unique_while="queued")
    first = task.apply_async([1], countdown=60)
    task.backend.mark_as_revoked(first.id)
    second = task.delay(1)
    assert second.id != first.id
    assert task.delay(1).id == second.id
    assert room.ids() == [first.id, second.id]


# ------------------------------------------------------------------------------ not sent


def test_a_publish_that_fails_ends_the_reservation(room: Mailroom) -> None:
    task = room.task(unique_while="unfinished")
    address, impatient = f"redis://127.0.0.1:{free_port()}/0", {"max_retries": 0}
    nowhere = Connection(address, transport_options=impatient)
    with nowhere, pytest.raises(OperationalError):
        task.apply_async([1], connection=nowhere, retry=False)
    assert room.waiting() == []
    assert task.delay(1).id == room.take().id


def test_what_cannot_be_written_into_a_message_reserves_nothing(room: Mailroom) -> None:
    task = room.task(unique_while="queued")
    with pytest.raises(EncodeError):
        task.delay(1, other=object())
    assert task.delay(1).id == room.take().id


@pytest.mark.django_db(transaction=True)
def test_a_transaction_that_is_rolled_back_reserves_nothing(room: Mailroom) -> None:
    task = room.task(unique_while="unfinished")
    with transaction.atomic():
        task.delay_on_commit(1)
        task.apply_async_on_commit([1], countdown=5)
        transaction.set_rollback(True)
    assert room.waiting() == []
    with transaction.atomic():
        for _ in range(3):
            task.delay_on_commit(1)
        assert room.waiting() == []
    (message,) = room.waiting()
    assert task.delay(1).id == message.id


def test_a_store_that_does_not_answer(
    use_redis: UseRedis, own_redis_server: RedisServer, redis_server: RedisServer
) -> None:
    """on_outage says it: raise, and nothing is sent; or go on without. A retry always goes on."""
    use_redis(own_redis_server.url)
    with mailroom(redis_server.url) as room:
        careful = room.task(unique_while="queued")
        bold = room.task(unique_while="queued", on_outage="run")
        own_redis_server.kill()
        with pytest.raises(StoreUnavailable):
            careful.delay(1)
        assert room.waiting() == []
        assert bold.delay(1).id == room.take().id
        retried = careful.apply_async([1], task_id="retried", retries=1)
        assert room.take().id == retried.id
        # And a message that meets the outage goes back to its queue.
        careful.send_anyway([1], task_id="met-it")
        assert room.deliver(room.take())[0] == "IGNORED"
        assert room.ids() == ["met-it"]


def test_eager_calls_are_never_refused(room: Mailroom) -> None:
    task = room.task(unique_while="unfinished")
    task.delay(1)
    room.app.conf.task_always_eager = True
    assert task.delay(1).get() == "done:1"
    room.app.conf.task_always_eager = False
    assert task.apply([1]).get() == "done:1"
    assert task(1) == "done:1"
    assert len(room.waiting()) == 1


# ------------------------------------------------------------------------------ left alone


def test_groups_chords_chains_and_callbacks_are_sent_as_they_are(room: Mailroom) -> None:
    """Somebody else's result would leave them waiting."""
    task, plain = room.task(unique_while="unfinished"), room.task(lock_name="plain:{job}")
    first = task.delay(1)
    assert room.take().id == first.id
    group = celery.group([task.s(1), task.s(1), task.si(1)])()
    chain = (task.s(1) | task.si(1) | plain.s()).apply_async()
    linked = task.apply_async([1], link=plain.s())
    watched = task.apply_async([1], link_error=plain.si(1))
    own = [*(result.id for result in group.results), chain.parent.parent.id, linked.id, watched.id]
    assert room.ids() == own
    assert len(set(own)) == len(own) == 6
    outcomes = room.work_off()
    assert {state for state, _ in outcomes} == {"SUCCESS"}
    assert len(outcomes) == 9  # two more steps of the chain, and the link
    assert chain.get(timeout=PATIENCE) == "done:done:1"
    # They did not take its place either.
    assert task.delay(1).id == first.id


def test_what_replaces_a_task_is_sent(room: Mailroom) -> None:
    task = room.task(unique_while="unfinished")
    replaced = room.task(lambda self, job: self.replace(task.si(job)), lock_name="first:{job}")
    task.delay(1)
    result = replaced.delay(1)
    assert room.deliver(room.take(result.id))[0] == "IGNORED"
    assert room.deliver(room.take(result.id)) == ("SUCCESS", "done:1")


@pytest.mark.parametrize("mode", MODES)
def test_its_own_retry_is_never_refused(room: Mailroom, mode: str) -> None:
    """Not beside another message that waits either. Alone, it is the message that waits."""
    others: list[str] = []

    def work(self: Any, job: Any) -> str:
        if self.request.retries < 3:
            if mode == "queued" and self.request.retries == 1:
                others.append(self.delay(job).id)
            raise self.retry(countdown=0, max_retries=3)
        return f"done:{job}"

    task = room.task(work, unique_while=mode)
    first = task.delay(1)
    assert room.deliver(room.take())[0] == "RETRY"
    assert [message.headers["retries"] for message in room.waiting()] == [1]
    assert task.delay(1).id == first.id
    assert room.deliver(room.take(first.id))[0] == "RETRY"
    assert sorted(room.ids()) == sorted([*others, first.id])
    assert room.deliver(room.take(first.id))[0] == "RETRY"
    assert room.deliver(room.take(first.id)) == ("SUCCESS", "done:1")
    assert room.ids() == others


def test_the_scheduler_of_beat_sends_one(room: Mailroom) -> None:
    task = room.task(unique_while="queued")
    scheduler = Scheduler(room.app, lazy=True)
    entry = ScheduleEntry(
        "every", task.name, schedule=celery.schedules.schedule(1), args=(1,), app=room.app
    )
    with room.app.producer_pool.acquire(block=True) as producer:
        results = [scheduler.apply_async(entry, producer, advance=False) for _ in range(5)]
    assert room.ids() == [results[0].id]
    assert {result.id for result in results} == {results[0].id}


def test_on_a_cache_that_is_no_redis(use_caches: UseCaches, redis_server: RedisServer) -> None:
    backend = "django.core.cache.backends.locmem.LocMemCache"
    use_caches({"default": {"BACKEND": backend, "LOCATION": own_prefix()}}, {"default": {}})
    with mailroom(redis_server.url) as room:
        for mode in MODES:
            task = room.task(unique_while=mode)
            sent = set(all_of(*[lambda task=task: task.delay(1).id] * 16))
            assert room.ids() == list(sent)
            assert room.deliver(room.take()) == ("SUCCESS", "done:1")
            assert task.delay(1).id not in sent
            room.take()


# ------------------------------------------------------------------------------ refused calls
# A refused call relies on a message that starts later.


def test_a_skipped_message_tries_once_more_after_its_reservation(room: Mailroom) -> None:
    """A refused call may rely on this message, while the lock's holder was just ending."""
    for conflict, mode in itertools.product(["skip", "raise", "retry"], MODES):
        task = room.task(on_conflict=conflict, unique_while=mode, lock_retry_for=0)
        sent = task.delay(1)
        lease = locks.acquire("job:1", ttl=60)
        assert lease is not None
        told: list[str] = []

        def ends(told: list[str] = told, lease: Any = lease, task: Any = task, **_: Any) -> None:
            told.append(task.delay(1).id)
            lease.release()

        lock_contended.connect(ends, weak=False)
        try:
            outcome = room.deliver(room.take())
        finally:
            lock_contended.disconnect(ends)
        assert told == [sent.id]
        assert outcome == ("SUCCESS", "done:1"), (conflict, mode)
        assert room.waiting() == []


@pytest.mark.parametrize("conflict", ["skip", "raise", "retry"])
def test_a_message_that_does_not_run_leaves_no_reservation(room: Mailroom, conflict: str) -> None:
    task = room.task(on_conflict=conflict, unique_while="queued", lock_retry_for=0)
    first = task.delay(1)
    with lock("job:1", ttl=60):
        state, value = room.deliver(room.take())
        assert state == ("SUCCESS" if conflict == "skip" else "FAILURE")
        assert "job:1" in str(value)
        assert task.delay(1).id == room.take().id != first.id


def test_a_message_that_waits_for_the_lock_stays_reserved(room: Mailroom) -> None:
    task = room.task(on_conflict="retry", unique_while="queued")
    first = task.delay(1)
    with lock("job:1", ttl=60):
        for _ in range(2):
            assert room.deliver(room.take())[0] == "IGNORED"
            assert task.delay(1).id == first.id
    assert room.ids() == [first.id]
    assert room.deliver(room.take()) == ("SUCCESS", "done:1")


def test_a_redelivery_of_a_run_that_goes_on_reserves_nothing(room: Mailroom) -> None:
    """It is dropped when that run has ended, so no refused call may rely on it."""
    seen: list[Any] = []

    def work(self: Any, job: Any) -> str:
        if not seen:
            redelivery = Meanwhile(lambda: room.deliver(message, redelivered=True))
            seen.append(redelivery.result())
            seen.append(task.delay(job).id)
        return f"done:{job}"

    task = room.task(work, unique_while="queued", acks_late=True)
    first = task.delay(1)
    message = room.take()
    assert room.deliver(message) == ("SUCCESS", "done:1")
    outcome, second = seen
    assert outcome[0] == "IGNORED"
    assert second != first.id
    requeued, new = room.waiting()
    assert (requeued.id, new.id) == (first.id, second)
    room.take(requeued.id)
    assert room.deliver(requeued)[0] == "IGNORED"
    assert task.delay(1).id == second
    assert room.deliver(room.take()) == ("SUCCESS", "done:1")


def test_a_rejected_message_is_reserved_again(room: Mailroom) -> None:
    """Reject(requeue=True), and a worker that is told to stop."""
    for ends in (celery.exceptions.Reject(requeue=True), SystemExit(1)):

        def work(self: Any, job: Any, ends: BaseException = ends) -> None:
            raise ends

        task = room.task(work, unique_while="unfinished", acks_late=True)
        first = task.delay(1)
        message = room.take()
        try:
            room.deliver(message)
        except SystemExit:
            pass
        assert task.delay(1).id == first.id
        assert room.waiting() == []


def test_the_options_are_checked() -> None:
    for wrong in (
        {"unique_while": "running"},
        {"unique_while": True},
        {"unique_for": 0},
        {"unique_for": None},
        {"on_duplicate": "skip"},
        {"unique_whlie": "queued"},
    ):
        with pytest.raises(InvalidLockConfig):
            type("Wrong", (LockedTask,), {"abstract": True, "name": "wrong", **wrong})
